package content

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/pushfx/pushfx/module"
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
func notified(t *testing.T, e module.Event, p pusher.Pusher, counts *module.Counts, cfg Limits, user mxid.UserID, actions ...pushrule.Action) string {
	t.Helper()
	ev, of, err := ReadEvent(e, cfg, time.Now())
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
	d, ok := ReadTarget(user, p, cfg)
	if !ok {
		t.Fatal("the pusher gets no notifications")
	}
	m := Meta{Event: ev.ID, Room: ev.Room}
	n := ev.Notification(To{User: user, Outcome: ev.Outcome(result)}, cfg)
	return string(Body(n, m, d, counts, cfg))
}

func defaultLimits() Limits {
	return Limits{Content: FullContent, MaxNotificationBytes: 8 << 10, MaxEventBytes: 64 << 10, MaxAge: 24 * time.Hour, CallAge: time.Minute}
}

func TestBodies(t *testing.T) {
	const bing, notify = `{"set_tweak":"sound","value":"bing"}`, `"notify"`
	two := &module.Counts{Unread: 2, MissedCalls: 1}
	for name, test := range map[string]struct {
		change  func(*module.Event, *pusher.Pusher, *Limits)
		counts  *module.Counts
		user    mxid.UserID
		actions []pushrule.Action
	}{
		"specification": {counts: two, actions: []pushrule.Action{notify, bing}},
		"event_id_only": {counts: two, actions: []pushrule.Action{notify, bing}, change: func(_ *module.Event, p *pusher.Pusher, _ *Limits) {
			p.Data = `{"format":"event_id_only","url":"https://push.example.com/_matrix/push/v1/notify","default_payload":{"aps":{"mutable-content":1}}}`
		}},
		"counts_zero":   {counts: &module.Counts{}, actions: []pushrule.Action{notify}},
		"counts_absent": {actions: []pushrule.Action{notify}},
		"counts_off_in_data": {counts: two, actions: []pushrule.Action{notify}, change: func(_ *module.Event, p *pusher.Pusher, _ *Limits) {
			p.Data = `{"url":"https://push.example.com/_matrix/push/v1/notify","org.matrix.msc4076.disable_badge_count":true}`
		}},
		"counts_off_at_top": {counts: two, actions: []pushrule.Action{notify}, change: func(_ *module.Event, p *pusher.Pusher, _ *Limits) {
			p.Extra = []pusher.Member{{Name: "disable_badge_count", Value: "true"}}
		}},
		"highlight": {actions: []pushrule.Action{notify, `{"set_tweak":"highlight"}`}},
		"tweak_twice": {actions: []pushrule.Action{
			notify, bing, `{"set_tweak":"highlight","value":false}`, `{"value":"ring","set_tweak":"sound"}`, `{"set_tweak":"odd","value":{"a":[1e400]}}`}},
		"invite": {user: "@me:h", actions: []pushrule.Action{notify}, change: func(e *module.Event, _ *pusher.Pusher, _ *Limits) {
			*e = module.Event{JSON: `{"event_id":"$i","room_id":"!r:h","type":"m.room.member","state_key":"@me:h","sender":"@you:h","content":{"membership":"invite"}}`}
		}},
		"invite_of_another": {user: "@you:h", actions: []pushrule.Action{notify}, change: func(e *module.Event, _ *pusher.Pusher, _ *Limits) {
			*e = module.Event{JSON: `{"event_id":"$i","room_id":"!r:h","type":"m.room.member","state_key":"@me:h","sender":"@other:h","content":{"membership":"invite"}}`}
		}},
		"encrypted": {actions: []pushrule.Action{notify}, change: func(e *module.Event, _ *pusher.Pusher, _ *Limits) {
			e.JSON = `{"event_id":"$e","room_id":"!r:h","type":"m.room.encrypted","sender":"@you:h","content":{"algorithm":"m.megolm.v1.aes-sha2"}}`
		}},
		"call": {actions: []pushrule.Action{notify}, change: func(e *module.Event, _ *pusher.Pusher, _ *Limits) {
			e.JSON = `{"event_id":"$e","room_id":"!r:h","type":"m.call.invite","sender":"@you:h","content":{"lifetime":30000}}`
		}},
		"large": {actions: []pushrule.Action{notify}, change: func(e *module.Event, _ *pusher.Pusher, _ *Limits) {
			e.JSON = `{"event_id":"$e","room_id":"!r:h","type":"m.room.message","sender":"@you:h","content":{"body":"` + strings.Repeat("x", 60_000) + `"}}`
		}},
		"large_names": {actions: []pushrule.Action{notify}, change: func(e *module.Event, _ *pusher.Pusher, _ *Limits) {
			e.RoomName = strings.Repeat("x", 10_000)
		}},
		"names_only": {actions: []pushrule.Action{notify, bing}, change: func(_ *module.Event, _ *pusher.Pusher, cfg *Limits) { cfg.Content = NamesOnly }},
		"no_names":   {actions: []pushrule.Action{notify, bing}, change: func(_ *module.Event, _ *pusher.Pusher, cfg *Limits) { cfg.Content = NoNames }},
		"no_time":    {actions: []pushrule.Action{notify}, change: func(_ *module.Event, p *pusher.Pusher, _ *Limits) { p.SetAt = 0 }},
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
		"email":    func(p *pusher.Pusher) { p.Kind = pusher.Email },
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
		if d, ok := ReadTarget("@me:h", p, defaultLimits()); ok {
			t.Errorf("%s: got %+v", name, d.Gateway)
		}
	}
	d, ok := ReadTarget("@me:h", http, defaultLimits())
	if !ok || d.Gateway != "https://push.example.com:443" {
		t.Errorf("got %v, %v", d.Gateway, ok)
	}
}

func TestEventsWithoutNotifications(t *testing.T) {
	now := time.Now()
	for name, e := range map[string]module.Event{
		"redacted": {JSON: `{"event_id":"$e","room_id":"!r:h","unsigned":{"redacted_because":{"event_id":"$f"}}}`},
		"expired":  {JSON: `{"event_id":"$e","room_id":"!r:h"}`, Expires: now},
	} {
		if _, of, err := ReadEvent(e, defaultLimits(), now); of || err != nil {
			t.Errorf("%s: got %v, %v", name, of, err)
		}
	}
}

func TestLifetimeOfNotifications(t *testing.T) {
	now := time.Now()
	const ring = `{"event_id":"$e","room_id":"!r:h","type":"m.call.invite","content":{"lifetime":30000}}`
	for name, test := range map[string]struct {
		event           module.Event
		want, wantRings time.Duration
	}{
		"a message":                     {module.Event{JSON: `{"event_id":"$e","room_id":"!r:h","type":"m.room.message"}`}, 24 * time.Hour, 0},
		"set by the host":               {module.Event{JSON: ring, Expires: now.Add(time.Hour)}, time.Hour, 30 * time.Second},
		"set by the host, for a moment": {module.Event{JSON: ring, Expires: now.Add(time.Second)}, time.Second, time.Second},
		"longer than MaxAge":            {module.Event{JSON: `{"event_id":"$e","room_id":"!r:h"}`, Expires: now.Add(1000 * time.Hour)}, 24 * time.Hour, 0},
		"a call":                        {module.Event{JSON: ring}, 24 * time.Hour, 30 * time.Second},
	} {
		ev, of, err := ReadEvent(test.event, defaultLimits(), now)
		if err != nil || !of || ev.Lifetime != test.want || ev.RingsFor != test.wantRings {
			t.Errorf("%s: got %+v, %v, %v", name, ev, of, err)
		}
	}
}

func TestOnlyRingingEventsAreCalls(t *testing.T) {
	for name, test := range map[string]struct {
		kind, content string
		want          time.Duration
	}{
		"an invite":             {"m.call.invite", `{}`, time.Minute},
		"a short invite":        {"m.call.invite", `{"lifetime":30000}`, 30 * time.Second},
		"an endless invite":     {"m.call.invite", `{"lifetime":9007199254740991}`, 2 * time.Minute},
		"an invite, no number":  {"m.call.invite", `{"lifetime":"x"}`, time.Minute},
		"an invite, no content": {"m.call.invite", `1`, time.Minute},
		"MSC4075": {"m.rtc.notification",
			`{"application":{"type":"m.call","notification_type":"ring","lifetime":30000}}`, 30 * time.Second},
		"earlier MSC4075": {"org.matrix.msc4075.rtc.notification",
			`{"notification_type":"ring","lifetime":30000,"m.call.intent":"audio"}`, 30 * time.Second},
		"first MSC4075":            {"org.matrix.msc4075.call.notify", `{"application":"m.call","notify_type":"ring","call_id":""}`, time.Minute},
		"both forms":               {"m.rtc.notification", `{"notification_type":"ring","lifetime":1,"application":{"notification_type":"ring","lifetime":30000}}`, 30 * time.Second},
		"the forms differ":         {"m.rtc.notification", `{"application":{"notification_type":"notification"},"notification_type":"ring"}`, 0},
		"another application":      {"m.rtc.notification", `{"application":{"type":"m.call"},"notification_type":"ring"}`, time.Minute},
		"endless":                  {"m.rtc.notification", `{"application":{"notification_type":"ring","lifetime":9007199254740991}}`, 2 * time.Minute},
		"no ring":                  {"m.rtc.notification", `{"application":{"notification_type":"notification","lifetime":30000}}`, 0},
		"no ring, earlier MSC4075": {"org.matrix.msc4075.rtc.notification", `{"notification_type":"notification","lifetime":30000}`, 0},
		"no ring, first MSC4075":   {"m.call.notify", `{"application":"m.call","notify_type":"notify"}`, 0},
		"no type":                  {"m.rtc.notification", `{"lifetime":30000}`, 0},
		"a type that is no string": {"m.rtc.notification", `{"application":{"notification_type":["ring"]}}`, 0},
		"escaped":                  {"m.rtc.notification", `{"application":{"notification_type":"r\u0069ng"}}`, time.Minute},
		"nothing":                  {"m.rtc.notification", `{}`, 0},
		"another event":            {"m.room.message", `{"notification_type":"ring","lifetime":30000}`, 0},
	} {
		e := module.Event{JSON: `{"event_id":"$e","room_id":"!r:h","type":"` + test.kind + `","content":` + test.content + `}`}
		ev, of, err := ReadEvent(e, defaultLimits(), time.Now())
		if err != nil || !of || ev.RingsFor != test.want || ev.Lifetime != 24*time.Hour {
			t.Errorf("%s: got %+v, %v, %v", name, ev, of, err)
		}
		if high := ev.isHigh(match.Result{}); high != (test.want > 0) {
			t.Errorf("%s: high is %v", name, high)
		}
	}
}

// A ring lives from its own time, not from Notify. What rings no more is an ordinary notification.
func TestARingLivesFromItsOwnTime(t *testing.T) {
	now := time.UnixMilli(1_700_000_000_000)
	for name, test := range map[string]struct {
		kind         string
		sent, origin time.Duration // before now; 0 is none
		want         time.Duration
	}{
		"an invite of 20 s ago":                   {"m.call.invite", 0, 20 * time.Second, 10 * time.Second},
		"an invite, sender_ts is not its":         {"m.call.invite", 10 * time.Second, 20 * time.Second, 10 * time.Second},
		"an invite of 30 s ago":                   {"m.call.invite", 0, 30 * time.Second, 0},
		"an invite of yesterday":                  {"m.call.invite", 0, 24 * time.Hour, 0},
		"an invite of tomorrow":                   {"m.call.invite", 0, -24 * time.Hour, 30 * time.Second},
		"an invite of any time":                   {"m.call.invite", 0, 0, 30 * time.Second},
		"a ring, by sender_ts":                    {"m.rtc.notification", 25 * time.Second, 5 * time.Second, 5 * time.Second},
		"a ring, unstable name":                   {"org.matrix.msc4075.rtc.notification", 25 * time.Second, 5 * time.Second, 5 * time.Second},
		"a ring, sender_ts 20 s later":            {"m.rtc.notification", 5 * time.Second, 25 * time.Second, 25 * time.Second},
		"a ring, more than 20 s apart":            {"m.rtc.notification", 26 * time.Second, 5*time.Second + 999*time.Millisecond, 24*time.Second + time.Millisecond},
		"a ring, more than 20 s apart, the other": {"m.rtc.notification", 4 * time.Second, 25 * time.Second, 5 * time.Second},
		"a ring without sender_ts":                {"m.rtc.notification", 0, 10 * time.Second, 20 * time.Second},
		"a ring without origin_server_ts":         {"m.rtc.notification", 10 * time.Second, 0, 20 * time.Second},
		"a ring of yesterday":                     {"m.rtc.notification", 24 * time.Hour, 24 * time.Hour, 0},
		"a ring of yesterday by sender_ts alone":  {"m.rtc.notification", 24 * time.Hour, 5 * time.Second, 25 * time.Second},
		"a ring, first form":                      {"m.call.notify", 0, 10 * time.Second, 20 * time.Second},
	} {
		sent, origin := "", ""
		if test.sent != 0 {
			sent = fmt.Sprintf(`,"sender_ts":%d`, now.Add(-test.sent).UnixMilli())
		}
		if test.origin != 0 {
			origin = fmt.Sprintf(`,"origin_server_ts":%d`, now.Add(-test.origin).UnixMilli())
		}
		e := module.Event{JSON: `{"event_id":"$e","room_id":"!r:h","type":"` + test.kind + `"` + origin +
			`,"content":{"lifetime":30000,"notification_type":"ring","notify_type":"ring"` + sent + `}}`}
		ev, of, err := ReadEvent(e, defaultLimits(), now)
		if err != nil || !of || ev.RingsFor != test.want || ev.Lifetime != 24*time.Hour {
			t.Errorf("%s: got %+v, %v, %v", name, ev, of, err)
		}
		if high := ev.isHigh(match.Result{}); high != (test.want > 0) {
			t.Errorf("%s: high is %v", name, high)
		}
	}
	for _, ts := range []string{`"1"`, "1e400", "-1", "99999999999999999999", "null", "[]", "1.5"} {
		e := module.Event{JSON: `{"event_id":"$e","room_id":"!r:h","type":"m.rtc.notification","origin_server_ts":` + ts +
			`,"content":{"notification_type":"ring","sender_ts":` + ts + `}}`}
		if ev, of, err := ReadEvent(e, defaultLimits(), now); err != nil || !of || ev.RingsFor != time.Minute {
			t.Errorf("%s: got %+v, %v, %v", ts, ev, of, err)
		}
	}
}

// An encrypted event that refers to its sender's membership of a call is a call.
func TestEncryptedCalls(t *testing.T) {
	now := time.UnixMilli(1_700_000_000_000)
	const ring = `{"rel_type":"m.reference","event_id":"$member"}`
	of := func(kind string) module.RelatedEvent { return module.RelatedEvent{Type: kind, Sender: "@s:h"} }
	for name, test := range map[string]struct {
		kind, relation string
		age            time.Duration
		related        module.RelatedEvent
		want           time.Duration
	}{
		"m.rtc.member":           {"m.room.encrypted", ring, 0, of("m.rtc.member"), 30 * time.Second},
		"MSC4143":                {"m.room.encrypted", ring, 0, of("org.matrix.msc4143.rtc.member"), 30 * time.Second},
		"MSC3401":                {"m.room.encrypted", ring, 0, of("org.matrix.msc3401.call.member"), 30 * time.Second},
		"of 20 s ago":            {"m.room.encrypted", ring, 20 * time.Second, of("m.rtc.member"), 10 * time.Second},
		"of yesterday":           {"m.room.encrypted", ring, 24 * time.Hour, of("m.rtc.member"), 0},
		"the member of another":  {"m.room.encrypted", ring, 0, module.RelatedEvent{Type: "m.rtc.member", Sender: "@other:h"}, 0},
		"unknown":                {"m.room.encrypted", ring, 0, module.RelatedEvent{}, 0},
		"a message":              {"m.room.encrypted", ring, 0, of("m.room.message"), 0},
		"another relation":       {"m.room.encrypted", `{"rel_type":"m.thread","event_id":"$member"}`, 0, of("m.rtc.member"), 0},
		"no relation":            {"m.room.encrypted", `[]`, 0, of("m.rtc.member"), 0},
		"not encrypted":          {"m.room.message", ring, 0, of("m.rtc.member"), 0},
		"not encrypted, no ring": {"m.rtc.notification", ring, 0, of("m.rtc.member"), 0},
	} {
		e := module.Event{Related: test.related, JSON: fmt.Sprintf(`{"event_id":"$e","room_id":"!r:h","type":%q,"sender":"@s:h","origin_server_ts":%d,`+
			`"content":{"algorithm":"m.megolm.v1.aes-sha2","ciphertext":"x","m.relates_to":%s}}`, test.kind, now.Add(-test.age).UnixMilli(), test.relation)}
		if ev, ok, err := ReadEvent(e, defaultLimits(), now); err != nil || !ok || ev.RingsFor != test.want {
			t.Errorf("%s: got %+v, %v, %v", name, ev, ok, err)
		}
	}
}

func TestAMetaIsReadAsItWasWritten(t *testing.T) {
	t.Parallel()
	for _, want := range []Meta{
		{Expires: 1},
		{
			Event: `$<&>"\`, Room: "!é\u2028:h", Position: 1 << 60, Thread: "$t", Added: 1, Expires: -2,
			RingsUntil: 2, Trace: "00-1-2-01",
		},
	} {
		if got, err := ReadMeta(want.Text()); err != nil || got != want {
			t.Errorf("got %+v, %v", got, err)
		}
	}
	for _, text := range []string{"", "\xff{", "[]", `{"a":1}`, `{"a":1,"x":"2"}`, `{"x":1,"u":"2"}`} {
		if got, err := ReadMeta(text); err == nil {
			t.Errorf("%s: got %+v", text, got)
		}
	}
}

// The pushers of a user share the stored text. One with large data gets no content.
func TestAStoredTextFitsEachPusher(t *testing.T) {
	t.Parallel()
	e, p := astronaut()
	e.JSON = `{"event_id":"$e","room_id":"!r:h","type":"m.room.message","sender":"@you:h","content":{"body":"` + strings.Repeat("x", 6000) + `"}}`
	limits := defaultLimits()
	ev, _, err := ReadEvent(e, limits, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	n := ev.Notification(To{User: "@me:h", Outcome: Outcome{Tweaks: "{}"}}, limits)
	for _, test := range []struct {
		data     int // bytes
		has, not string
	}{{10, `"content":`, "\x00"}, {3000, `"room_name":`, `"content":`}, {7900, `"event_id":`, `"room_name":`}} {
		p.Data = fmt.Sprintf(`{"url":"https://gw/_matrix/push/v1/notify","x":"%s"}`, strings.Repeat("x", test.data))
		target, _ := ReadTarget("@me:h", p, limits)
		got := string(Body(n, Meta{Event: ev.ID, Room: ev.Room}, target, &module.Counts{}, limits))
		if !json.Valid([]byte(got)) || len(got) > limits.MaxNotificationBytes || !strings.Contains(got, test.has) || strings.Contains(got, test.not) {
			t.Errorf("data of %d bytes: got %d bytes: %.300s", test.data, len(got), got)
		}
	}
}

// Without "prio", gateways wake the phone.
func TestCountsAloneHaveLowPriority(t *testing.T) {
	t.Parallel()
	_, p := astronaut()
	target, _ := ReadTarget("@me:h", p, defaultLimits())
	got := string(Body(Counts("12345678", Meta{Expires: 1}), Meta{Expires: 1}, target, &module.Counts{Unread: 2}, defaultLimits()))
	if !strings.HasPrefix(got, `{"notification":{"prio":"low","counts":{"unread":2},"devices":[`) || !json.Valid([]byte(got)) {
		t.Errorf("got %s", got)
	}
}

func TestWhatFollowsAFailure(t *testing.T) {
	t.Parallel()
	now := time.UnixMilli(5000)
	failed := Failure{Answer: Answer{Outcome: module.Failed, Status: 502, Class: ClassStatus}, Of: 3, IsWell: true, Now: now}
	t.Run("refused", func(t *testing.T) {
		refused := failed
		refused.Outcome = module.Unfit
		trouble, step := Trouble{}.After(refused)
		if step != Again || !trouble.IDOnly {
			t.Errorf("got %v, %+v", step, trouble)
		}
		if _, step = trouble.After(refused); step != Drop {
			t.Errorf("a second time: got %v", step)
		}
	})
	for name, test := range map[string]struct {
		change func(*Failure)
		ids    bool
	}{
		"failed":              {func(*Failure) {}, true},
		"at a closed gate":    {func(f *Failure) { f.IsWell = false }, false},
		"busy":                {func(f *Failure) { f.Outcome = module.Busy }, false},
		"each time another":   {func(f *Failure) { f.Of++ }, false},
		"asked to wait":       {func(f *Failure) { f.Outcome = module.Throttled }, false},
		"an address is wrong": {func(f *Failure) { f.Outcome = module.Blocked }, false},
	} {
		t.Run(name, func(t *testing.T) {
			f, trouble := failed, Trouble{}
			for n := range 20 {
				var step Step
				test.change(&f)
				if trouble, step = ReadTrouble(trouble.Stored()).After(f); step != Wait || trouble.IDOnly != (test.ids && n >= idsAfter-1) || trouble.Attempts != n+1 {
					t.Fatalf("after %d failures: got %v, %+v", n+1, step, trouble)
				}
			}
			if trouble.Since != 5000 || trouble.Last != 5000 || trouble.Status != 502 {
				t.Errorf("got %+v", trouble)
			}
		})
	}
}
