package delivery_test

import (
	"cmp"
	"context"
	"encoding/json"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pushfx/pushfx"
	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/fault"
	"github.com/pushfx/pushfx/module/match"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/pusher"
	"github.com/pushfx/pushfx/module/redistest"
)

// texts sends text messages to phones: the pushkey of a pusher of kind "com.example.sms" is a number.
type texts struct {
	send func(ctx context.Context, number, text string) (status int, err error)
}

func (t *texts) Kind() pusher.Kind { return "com.example.sms" }

func (t *texts) CheckPusher(p pusher.Pusher) error {
	if p.Pushkey[0] != '+' {
		return fault.New(fault.InvalidParam, "pushkey must be a telephone number such as +4930123456.")
	}
	return nil
}

func (t *texts) Send(ctx context.Context, _ mxid.UserID, to pusher.Pusher, notification []byte) module.ChannelAnswer {
	var body struct {
		Notification struct {
			EventID string `json:"event_id"`
			Sender  string `json:"sender_display_name"`
			Room    string `json:"room_name"`
		} `json:"notification"`
	}
	if err := json.Unmarshal(notification, &body); err != nil {
		return module.ChannelAnswer{Outcome: module.Unfit, Err: err}
	}
	if body.Notification.EventID == "" { // counts alone
		return module.ChannelAnswer{Outcome: module.Delivered}
	}
	status, err := t.send(ctx, to.Pushkey, cmp.Or(body.Notification.Sender, "Somebody")+" wrote in "+cmp.Or(body.Notification.Room, "a room"))
	outcome := map[int]module.Outcome{200: module.Delivered, 404: module.Gone, 429: module.Throttled}[status]
	return module.ChannelAnswer{Outcome: outcome, Status: status, RetryAfter: time.Minute, Err: err}
}

// A host adds a channel for a kind of pushers of its own.
func Example_channel() {
	channel := &texts{send: func(context.Context, string, string) (int, error) { return 200, nil }}
	_ = pushfx.Options{Delivery: &pushfx.DeliveryOptions{Channels: []module.Channel{channel}}} // or fx.Provide(pushfx.AsChannel(newTexts))
}

func TestTheExampleOfAChannelSends(t *testing.T) {
	sent, calls := make(chan string, 10), new(atomic.Int64)
	channel := &texts{send: func(_ context.Context, number, text string) (int, error) {
		sent <- number + ": " + text
		if calls.Add(1) == 1 {
			return 200, nil
		}
		return 404, nil
	}}
	push, err := pushfx.New(redistest.Single(t).Client(t), pushfx.DefaultConfig(), pushfx.Options{Delivery: &pushfx.DeliveryOptions{Channels: []module.Channel{channel}}})
	if err == nil {
		err = push.Check(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		push.Run(ctx)
	}()
	defer func() {
		stop()
		<-ended
	}()
	const alice mxid.UserID = "@alice:example.org"
	p := pusher.Pusher{Key: pusher.Key{AppID: "app", Pushkey: "4930123456"}, Kind: channel.Kind(), Data: `{}`}
	if err := push.Pushers.Set(t.Context(), alice, p, pusher.KeepOthers); fault.KindOf(err) != fault.InvalidParam {
		t.Errorf("a wrong number: %v", err)
	}
	p.Pushkey = "+4930123456"
	if err := push.Pushers.Set(t.Context(), alice, p, pusher.KeepOthers); err != nil {
		t.Fatal(err)
	}
	p.Kind = "com.example.fax"
	if err := push.Pushers.Set(t.Context(), alice, p, pusher.KeepOthers); err == nil || err.Error() != "kind must be 'http', 'com.example.sms' or null." {
		t.Errorf("another kind: %v", err)
	}
	notify := func(event string) {
		t.Helper()
		e := module.NewEvent{
			Event: module.Event{
				JSON:       `{"event_id":"` + event + `","room_id":"!lobby:example.org","type":"m.room.message","sender":"@bob:example.org","content":{"msgtype":"m.text","body":"Lunch?"}}`,
				SenderName: "Bob", RoomName: "Lobby", Room: match.Room{MemberCount: 2},
			},
			Sender: "@bob:example.org", Members: []match.Member{{User: alice}},
		}
		if rest, err := push.Events.HandOver(t.Context(), e, "", nil); err != nil || rest != "" {
			t.Fatal(rest, err)
		}
		if got := <-sent; got != "+4930123456: Bob wrote in Lobby" {
			t.Errorf("sent %s", got)
		}
	}
	notify("$1")
	notify("$2")
	for {
		if list, err := push.Pushers.List(t.Context(), alice); err != nil || list.Len() == 0 {
			if err != nil {
				t.Error(err)
			}
			return
		}
		select {
		case <-t.Context().Done():
			t.Fatal("a pusher that is gone stays")
		case <-time.After(10 * time.Millisecond):
		}
	}
}
