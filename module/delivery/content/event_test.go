package content

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/match"
	"github.com/pushfx/pushfx/module/pushrule"
)

func defaultLimits() Limits {
	return Limits{Content: FullContent, MaxNotificationBytes: 8 << 10, MaxEventBytes: 64 << 10, MaxAge: 24 * time.Hour, CallAge: time.Minute}
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

// Users choose tweaks. Of large ones only a short sound and highlight are kept.
func TestLargeTweaksAreCut(t *testing.T) {
	t.Parallel()
	for length, want := range map[int]string{
		5: `{"sound":"default","highlight":true,"x":"xxxxx"}`, maxTweaks: `{"sound":"default","highlight":true}`,
	} {
		if got := tweaksOf([]pushrule.Action{
			`"notify"`, `{"set_tweak":"sound","value":"none"}`, `{"set_tweak":"sound","value":"default"}`, `{"set_tweak":"highlight"}`,
			pushrule.Action(`{"set_tweak":"x","value":"` + strings.Repeat("x", length) + `"}`),
		}); got != want {
			t.Errorf("%d bytes: got %s, want %s", length, got, want)
		}
	}
	if got := tweaksOf([]pushrule.Action{pushrule.Action(`{"set_tweak":"sound","value":"` + strings.Repeat("x", maxTweaks) + `"}`)}); got != "{}" {
		t.Errorf("a long sound: got %.50s", got)
	}
}
