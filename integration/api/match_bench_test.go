package api

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"maunium.net/go/mautrix/event"
	"maunium.net/go/mautrix/pushrules"

	"github.com/pushfx/pushfx/module/match"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/pushrule"
)

const (
	benchUser  = mxid.UserID("@alice:example.org")
	benchEvent = `{"type":"m.room.message","room_id":"!636q39766251:example.com","sender":"@bob:example.org",` +
		`"event_id":"$143273582443PhrSn:example.org","origin_server_ts":1432735824653,` +
		`"content":{"msgtype":"m.text","body":"Lunch is at noon, see you there!","m.mentions":{}}}`
)

func mustReadEvent(tb testing.TB, text string) *match.Event {
	tb.Helper()
	e, err := match.ReadEvent(text)
	if err != nil {
		tb.Fatal(err)
	}
	return e
}

var benchFacts = match.Facts{User: benchUser, DisplayName: "Alice", Room: match.Room{MemberCount: 20, Power: &match.Power{}}}

func benchSet(tb testing.TB, n int, pattern string) pushrule.Ruleset {
	tb.Helper()
	set := pushrule.ServerDefault(benchUser)
	for i := range n {
		draft := pushrule.Draft{Actions: []pushrule.Action{`"notify"`}, Pattern: fmt.Sprintf(pattern, i)}
		if err := set.Put(pushrule.Content, fmt.Sprint("keyword", i), draft, pushrule.Position{}); err != nil {
			tb.Fatal(err)
		}
	}
	return set
}

func benchSets(tb testing.TB) []struct {
	name string
	set  pushrule.Ruleset
} {
	type named = struct {
		name string
		set  pushrule.Ruleset
	}
	list := []named{{"defaults", benchSet(tb, 0, "")}}
	for _, n := range []int{10, 100, 1000} {
		list = append(list, named{fmt.Sprint("keywords=", n), benchSet(tb, n, "keyword%d")})
	}
	for _, n := range []int{10, 100, 1000} {
		list = append(list, named{fmt.Sprint("globs=", n), benchSet(tb, n, "key*word%d*")})
	}
	return list
}

func oneKilobyte() string {
	return `{"type":"m.room.message","room_id":"!636q39766251:example.com","sender":"@example:example.org",` +
		`"event_id":"$143273582443PhrSn:example.org","origin_server_ts":1432735824653,"unsigned":{"age":1234,"membership":"join"},` +
		`"content":{"msgtype":"m.text","body":"` + strings.Repeat("Lunch is at noon, see you there. ", 9) + `",` +
		`"format":"org.matrix.custom.html","formatted_body":"` + strings.Repeat("<b>Lunch</b> is at noon, ", 9) + `",` +
		`"m.mentions":{"user_ids":["@alice:example.org","@bob:example.org"]},` +
		`"m.relates_to":{"m.in_reply_to":{"event_id":"$reply:example.org"}}}}`
}

func TestEvaluationAllocatesNothing(t *testing.T) {
	found := mustReadEvent(t, `{"type":"m.room.message","sender":"@bob:example.org","content":{"body":"keyword7 Keynote word99! Alice"}}`)
	for _, test := range benchSets(t) {
		rules := match.Compile(test.set)
		for _, e := range []*match.Event{mustReadEvent(t, benchEvent), mustReadEvent(t, oneKilobyte()), found} {
			if n := testing.AllocsPerRun(20, func() { rules.Evaluate(e, benchFacts) }); n != 0 {
				t.Errorf("%s: %v allocations", test.name, n)
			}
		}
	}
}

type mautrixRoom struct{}

func (mautrixRoom) GetOwnDisplayname() string { return "Alice" }
func (mautrixRoom) GetMemberCount() int       { return 20 }
func (mautrixRoom) GetPowerLevels() *event.PowerLevelsEventContent {
	return &event.PowerLevelsEventContent{}
}

// BenchmarkBesideMautrix evaluates with pushfx and mautrix in turn, so that other load slows both, and reports the
// ratio of their times.
func BenchmarkBesideMautrix(b *testing.B) {
	const each = 16 // evaluations by pushfx for one by mautrix
	ours := mustReadEvent(b, benchEvent)
	var theirs event.Event
	if err := json.Unmarshal([]byte(benchEvent), &theirs); err != nil {
		b.Fatal(err)
	}
	for _, test := range benchSets(b) {
		b.Run(test.name, func(b *testing.B) {
			rules := match.Compile(test.set)
			var mautrix pushrules.PushRuleset
			if err := json.Unmarshal([]byte(test.set.JSON()), &mautrix); err != nil {
				b.Fatal(err)
			}
			var times besides
			for b.Loop() {
				start := time.Now()
				for range each {
					if _, id := rules.Evaluate(ours, benchFacts).Rule(); id != ".m.rule.message" {
						b.Fatal(id)
					}
				}
				middle := time.Now()
				if rule := mautrix.GetMatchingRule(mautrixRoom{}, &theirs); rule == nil || rule.RuleID != ".m.rule.message" {
					b.Fatal(rule)
				}
				times.add(middle.Sub(start)/each, time.Since(middle))
			}
			times.report(b)
		})
	}
	b.Run("reading", func(b *testing.B) {
		text := oneKilobyte()
		var times besides
		for b.Loop() {
			start := time.Now()
			for range each {
				if _, err := match.ReadEvent(text); err != nil {
					b.Fatal(err)
				}
			}
			middle := time.Now()
			var e event.Event
			if err := json.Unmarshal([]byte(text), &e); err != nil {
				b.Fatal(err)
			}
			times.add(middle.Sub(start)/each, time.Since(middle))
		}
		times.report(b)
	})
}

type besides struct{ ours, theirs []time.Duration }

func (t *besides) add(ours, theirs time.Duration) {
	t.ours, t.theirs = append(t.ours, ours), append(t.theirs, theirs)
}

func (t *besides) report(b *testing.B) {
	slices.Sort(t.ours)
	slices.Sort(t.theirs)
	ours, theirs := float64(t.ours[len(t.ours)/2]), float64(t.theirs[len(t.theirs)/2])
	b.ReportMetric(0, "ns/op") // the time of both together has no meaning
	b.ReportMetric(ours, "ours-ns")
	b.ReportMetric(theirs, "mautrix-ns")
	b.ReportMetric(theirs/ours, "ratio")
}
