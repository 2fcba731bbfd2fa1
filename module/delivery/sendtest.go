package delivery

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"strings"
	"time"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/delivery/channel"
	"github.com/pushfx/pushfx/module/delivery/content"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/pusher"
)

// TestResult is the result of a test notification.
type TestResult struct {
	Gateway string // see [GatewayName]
	Status  int    // of HTTP or SMTP; 0 without an answer, and for an accepted mail
	Outcome PostOutcome
	Class   string // "status" with an answer, otherwise why there is none, for example "dns"
	Took    time.Duration
	Err     error // why there is no answer, or of SMTP another one, without URL and address
}

var errNotSentTo = errors.New("delivery: the pusher gets no notifications: its kind is not sent, it is disabled, or its URL or address is invalid")

// SendTest sends a notification of an invented message to a pusher, by the Gateway, the Mailer or a
// Channel of the seams. It stores and removes nothing, even if the gateway rejects the pushkey. It
// fails for a pusher that the seams do not send to; see [GatewayOf].
func SendTest(ctx context.Context, seams Seams, user mxid.UserID, p pusher.Pusher, cfg Config) (TestResult, error) {
	seams.Now = time.Now
	channels, err := cfg.channels(seams)
	if err != nil {
		return TestResult{}, err
	}
	to, ok := channels.Read(user, p)
	if !ok || !to.IsSent() {
		return TestResult{}, errNotSentTo
	}
	n, m, err := testNotification(user, cfg.limits())
	if err != nil {
		return TestResult{}, err
	}
	var send func(context.Context) channel.Answer
	if to.Poster != nil {
		send = func(ctx context.Context) channel.Answer {
			return to.Poster.Post(ctx, channel.Notification{Notification: n, Meta: m})
		}
	} else if send, err = to.Collector.Compose(collectionID(to.ID, 0, m.Event), []channel.Notification{{Notification: n, Meta: m}}, false); err != nil {
		return TestResult{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, cfg.RequestTimeout)
	defer cancel()
	began := time.Now()
	a := send(ctx)
	return TestResult{Gateway: to.Gateway, Status: a.Status, Outcome: outcomeOf(a), Class: string(a.Class), Took: time.Since(began), Err: a.Err}, nil
}

// testNotification returns a notification of an invented message.
func testNotification(user mxid.UserID, limits content.Limits) (n module.Notification, m content.Meta, err error) {
	_, server, _ := strings.Cut(string(user), ":")
	text, _ := json.Marshal(map[string]any{
		"event_id": "$pushfx_test_" + rand.Text(), "room_id": "!pushfx_test:" + server, "type": "m.room.message", "sender": user,
		"content": map[string]string{"msgtype": "m.text", "body": "Test notification"},
	})
	ev, _, err := content.ReadEvent(module.Event{JSON: string(text)}, limits, time.Now())
	if err != nil {
		return n, m, err
	}
	n = ev.Notification(content.To{User: user, Outcome: content.Outcome{High: true, Tweaks: "{}"}}, limits)
	return n, content.Meta{Event: ev.ID, Room: ev.Room, Added: time.Now().UnixMilli()}, nil
}
