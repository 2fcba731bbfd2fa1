package httppush

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/delivery/channel"
	"github.com/pushfx/pushfx/module/delivery/content"
	"github.com/pushfx/pushfx/module/match"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/pusher"
	"github.com/pushfx/pushfx/module/pushrule"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// astronaut is the specification's example.
func astronaut() (module.Event, pusher.Pusher) {
	return module.Event{
			JSON: `{"event_id":"$3957tyerfgewrf384","room_id":"!slw48wfj34rtnrf:example.com","type":"m.room.message",
				"sender":"@exampleuser:matrix.org","content":{"msgtype":"m.text","body":"I'm floating in a most peculiar way."}}`,
			RoomName: "Mission Control", RoomAlias: "#exampleroom:matrix.org", SenderName: "Major Tom",
		}, pusher.Pusher{
			Key:  pusher.Key{AppID: "org.matrix.matrixConsole.ios", Pushkey: "V2h5IG9uIGVhcnRoIGRpZCB5b3UgZGVjb2RlIHRoaXM/"},
			Kind: pusher.HTTP, SetAt: 12345678_999_999, Data: `{"url":"https://push.example.com/_matrix/push/v1/notify"}`,
		}
}

// notified returns the body of a request to a user's pusher.
func notified(t *testing.T, e module.Event, p pusher.Pusher, counts *module.Counts, cfg content.Limits, user mxid.UserID, actions ...pushrule.Action) string {
	t.Helper()
	ev, of, err := content.ReadEvent(e, cfg, time.Now())
	if err != nil || !of {
		t.Fatalf("the event: got %v, %v", of, err)
	}
	rules := pushrule.ServerDefault("@nobody:example.org")
	if err := rules.Put(pushrule.Override, "all", pushrule.Draft{Actions: actions}, pushrule.Position{}); err != nil {
		t.Fatal(err)
	}
	event, err := match.ReadEvent(e.JSON)
	if err != nil {
		t.Fatal(err)
	}
	result := match.Compile(rules).Evaluate(event, match.Facts{User: user})
	n := ev.Notification(content.To{User: user, Outcome: ev.Outcome(result)}, cfg)
	return posted(t, user, p, channel.Notification{Notification: n, Meta: content.Meta{Event: ev.ID, Room: ev.Room}, Counts: counts}, cfg)
}

func defaultLimits() content.Limits {
	return content.Limits{Content: content.FullContent, MaxNotificationBytes: 8 << 10, MaxEventBytes: 64 << 10, MaxAge: 24 * time.Hour, CallAge: time.Minute}
}

func TestBodies(t *testing.T) {
	const bing, notify = `{"set_tweak":"sound","value":"bing"}`, `"notify"`
	two := &module.Counts{Unread: 2, MissedCalls: 1}
	for name, test := range map[string]struct {
		change  func(*module.Event, *pusher.Pusher, *content.Limits)
		counts  *module.Counts
		user    mxid.UserID
		actions []pushrule.Action
	}{
		"specification": {counts: two, actions: []pushrule.Action{notify, bing}},
		"event_id_only": {counts: two, actions: []pushrule.Action{notify, bing}, change: func(_ *module.Event, p *pusher.Pusher, _ *content.Limits) {
			p.Data = `{"format":"event_id_only","url":"https://push.example.com/_matrix/push/v1/notify","default_payload":{"aps":{"mutable-content":1}}}`
		}},
		"counts_zero":   {counts: &module.Counts{}, actions: []pushrule.Action{notify}},
		"counts_absent": {actions: []pushrule.Action{notify}},
		"counts_off_in_data": {counts: two, actions: []pushrule.Action{notify}, change: func(_ *module.Event, p *pusher.Pusher, _ *content.Limits) {
			p.Data = `{"url":"https://push.example.com/_matrix/push/v1/notify","org.matrix.msc4076.disable_badge_count":true}`
		}},
		"counts_off_at_top": {counts: two, actions: []pushrule.Action{notify}, change: func(_ *module.Event, p *pusher.Pusher, _ *content.Limits) {
			p.Extra = []pusher.Member{{Name: "disable_badge_count", Value: "true"}}
		}},
		"highlight": {actions: []pushrule.Action{notify, `{"set_tweak":"highlight"}`}},
		"tweak_twice": {actions: []pushrule.Action{
			notify, bing, `{"set_tweak":"highlight","value":false}`, `{"value":"ring","set_tweak":"sound"}`, `{"set_tweak":"odd","value":{"a":[1e400]}}`}},
		"invite": {user: "@me:h", actions: []pushrule.Action{notify}, change: func(e *module.Event, _ *pusher.Pusher, _ *content.Limits) {
			*e = module.Event{JSON: `{"event_id":"$i","room_id":"!r:h","type":"m.room.member","state_key":"@me:h","sender":"@you:h","content":{"membership":"invite"}}`}
		}},
		"invite_of_another": {user: "@you:h", actions: []pushrule.Action{notify}, change: func(e *module.Event, _ *pusher.Pusher, _ *content.Limits) {
			*e = module.Event{JSON: `{"event_id":"$i","room_id":"!r:h","type":"m.room.member","state_key":"@me:h","sender":"@other:h","content":{"membership":"invite"}}`}
		}},
		"encrypted": {actions: []pushrule.Action{notify}, change: func(e *module.Event, _ *pusher.Pusher, _ *content.Limits) {
			e.JSON = `{"event_id":"$e","room_id":"!r:h","type":"m.room.encrypted","sender":"@you:h","content":{"algorithm":"m.megolm.v1.aes-sha2"}}`
		}},
		"call": {actions: []pushrule.Action{notify}, change: func(e *module.Event, _ *pusher.Pusher, _ *content.Limits) {
			e.JSON = `{"event_id":"$e","room_id":"!r:h","type":"m.call.invite","sender":"@you:h","content":{"lifetime":30000}}`
		}},
		"large": {actions: []pushrule.Action{notify}, change: func(e *module.Event, _ *pusher.Pusher, _ *content.Limits) {
			e.JSON = `{"event_id":"$e","room_id":"!r:h","type":"m.room.message","sender":"@you:h","content":{"body":"` + strings.Repeat("x", 60_000) + `"}}`
		}},
		"large_names": {actions: []pushrule.Action{notify}, change: func(e *module.Event, _ *pusher.Pusher, _ *content.Limits) {
			e.RoomName = strings.Repeat("x", 10_000)
		}},
		"names_only": {actions: []pushrule.Action{notify, bing}, change: func(_ *module.Event, _ *pusher.Pusher, cfg *content.Limits) { cfg.Content = content.NamesOnly }},
		"no_names":   {actions: []pushrule.Action{notify, bing}, change: func(_ *module.Event, _ *pusher.Pusher, cfg *content.Limits) { cfg.Content = content.NoNames }},
		"no_time":    {actions: []pushrule.Action{notify}, change: func(_ *module.Event, p *pusher.Pusher, _ *content.Limits) { p.SetAt = 0 }},
	} {
		t.Run(name, func(t *testing.T) {
			e, p := astronaut()
			cfg := defaultLimits()
			if test.change != nil {
				test.change(&e, &p, &cfg)
			}
			got := notified(t, e, p, test.counts, cfg, test.user, test.actions...)
			if !json.Valid([]byte(got)) && !strings.Contains(got, "1e400") {
				t.Errorf("no JSON: %s", got)
			}
			if len(got) > cfg.MaxNotificationBytes {
				t.Errorf("%d bytes", len(got))
			}
			golden(t, name+".json", got)
		})
	}
}

func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, []byte(got+"\n"), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if got+"\n" != string(want) {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

func TestPushersWithoutNotifications(t *testing.T) {
	_, http := astronaut()
	for name, change := range map[string]func(*pusher.Pusher){
		"disabled": func(p *pusher.Pusher) { p.Extra = []pusher.Member{{Name: "enabled", Value: "false"}} },
		"MSC3881": func(p *pusher.Pusher) {
			p.Extra = []pusher.Member{{Name: "org.matrix.msc3881.enabled", Value: "false"}}
		},
		"no URL":    func(p *pusher.Pusher) { p.Data = `{}` },
		"null URL":  func(p *pusher.Pusher) { p.Data = `{"url":null}` },
		"bad URL":   func(p *pusher.Pusher) { p.Data = `{"url":"https://[::1"}` },
		"no object": func(p *pusher.Pusher) { p.Data = `[]` },
	} {
		p := http
		change(&p)
		if d, ok := setOf(nil, 0).Read("@me:h", p); ok {
			t.Errorf("%s: got %+v", name, d.Gateway)
		}
	}
	d, ok := setOf(nil, 0).Read("@me:h", http)
	if !ok || d.Gateway != "https://push.example.com:443" {
		t.Errorf("got %v, %v", d.Gateway, ok)
	}
}

// The pushers of a user share the stored text. One with large data gets no content.
func TestAStoredTextFitsEachPusher(t *testing.T) {
	t.Parallel()
	e, p := astronaut()
	e.JSON = `{"event_id":"$e","room_id":"!r:h","type":"m.room.message","sender":"@you:h","content":{"body":"` + strings.Repeat("x", 6000) + `"}}`
	limits := defaultLimits()
	ev, _, err := content.ReadEvent(e, limits, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	n := ev.Notification(content.To{User: "@me:h", Outcome: content.Outcome{Tweaks: "{}"}}, limits)
	for _, test := range []struct {
		data     int // bytes
		has, not string
	}{{10, `"content":`, "\x00"}, {3000, `"room_name":`, `"content":`}, {7900, `"event_id":`, `"room_name":`}} {
		p.Data = fmt.Sprintf(`{"url":"https://gw/_matrix/push/v1/notify","x":"%s"}`, strings.Repeat("x", test.data))
		got := posted(t, "@me:h", p, channel.Notification{Notification: n, Meta: content.Meta{Event: ev.ID, Room: ev.Room}, Counts: &module.Counts{}}, limits)
		if !json.Valid([]byte(got)) || len(got) > limits.MaxNotificationBytes || !strings.Contains(got, test.has) || strings.Contains(got, test.not) {
			t.Errorf("data of %d bytes: got %d bytes: %.300s", test.data, len(got), got)
		}
	}
}

// Without "prio", gateways wake the phone.
func TestCountsAloneHaveLowPriority(t *testing.T) {
	t.Parallel()
	_, p := astronaut()
	m := content.Meta{Expires: 1}
	got := posted(t, "@me:h", p, channel.Notification{Notification: content.Counts("12345678", m), Meta: m, Counts: &module.Counts{Unread: 2}}, defaultLimits())
	if !strings.HasPrefix(got, `{"notification":{"prio":"low","counts":{"unread":2},"devices":[`) || !json.Valid([]byte(got)) {
		t.Errorf("got %s", got)
	}
}

func setOf(gateway module.Gateway, maxBytes int) channel.Set {
	return channel.Set{Channels: map[pusher.Kind]channel.Channel{pusher.HTTP: &Channel{Gateway: gateway, MaxBytes: maxBytes}}}
}

// bodies are the bodies of requests.
type bodies []string

func (b *bodies) Post(_ context.Context, r module.GatewayRequest) (module.GatewayAnswer, error) {
	*b = append(*b, string(r.Body))
	return module.GatewayAnswer{Status: 200}, nil
}

// posted returns the body of a request to a pusher.
func posted(t *testing.T, user mxid.UserID, p pusher.Pusher, n channel.Notification, limits content.Limits) string {
	t.Helper()
	var sent bodies
	to, ok := setOf(&sent, limits.MaxNotificationBytes).Read(user, p)
	if !ok {
		t.Fatal("the pusher gets no notifications")
	}
	if a := to.Poster.Post(t.Context(), n); a.Outcome != module.Delivered {
		t.Fatalf("got %+v", a)
	}
	return sent[0]
}
