package match_test

import (
	"fmt"
	"strings"
	"testing"

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

// benchSet is the default rules and n content rules.
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

// benchSets are the rule sets that evaluators are compared with.
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

// benchFacts are those of a member of a room.
var benchFacts = match.Facts{User: benchUser, DisplayName: "Alice", Room: match.Room{MemberCount: 20, Power: &match.Power{}}}

func BenchmarkEvaluate(b *testing.B) {
	e := readEvent(b, benchEvent)
	for _, test := range benchSets(b) {
		b.Run(test.name, func(b *testing.B) {
			rules := match.Compile(test.set)
			b.ReportAllocs()
			for b.Loop() {
				if _, id := rules.Evaluate(e, benchFacts).Rule(); id != ".m.rule.message" {
					b.Fatal(id)
				}
			}
		})
	}
}

// TestEvaluatingTakesNoMemory is about sets of all sizes, and about a body in
// which keywords are found.
func TestEvaluatingTakesNoMemory(t *testing.T) {
	found := readEvent(t, `{"type":"m.room.message","sender":"@bob:example.org","content":{"body":"keyword7 Keynote word99! Alice"}}`)
	for _, test := range benchSets(t) {
		rules := match.Compile(test.set)
		for _, e := range []*match.Event{readEvent(t, benchEvent), readEvent(t, oneKilobyte()), found} {
			if n := testing.AllocsPerRun(20, func() { rules.Evaluate(e, benchFacts) }); n != 0 {
				t.Errorf("%s: %v allocations", test.name, n)
			}
		}
	}
}

// oneKilobyte is an event of about 1,000 bytes.
func oneKilobyte() string {
	return `{"type":"m.room.message","room_id":"!636q39766251:example.com","sender":"@example:example.org",` +
		`"event_id":"$143273582443PhrSn:example.org","origin_server_ts":1432735824653,"unsigned":{"age":1234,"membership":"join"},` +
		`"content":{"msgtype":"m.text","body":"` + strings.Repeat("Lunch is at noon, see you there. ", 9) + `",` +
		`"format":"org.matrix.custom.html","formatted_body":"` + strings.Repeat("<b>Lunch</b> is at noon, ", 9) + `",` +
		`"m.mentions":{"user_ids":["@alice:example.org","@bob:example.org"]},` +
		`"m.relates_to":{"m.in_reply_to":{"event_id":"$reply:example.org"}}}}`
}

func BenchmarkReadEvent(b *testing.B) {
	for _, text := range []string{benchEvent, oneKilobyte()} {
		b.Run(fmt.Sprint("bytes=", len(text)), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := match.ReadEvent(text); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkCompile(b *testing.B) {
	for _, test := range benchSets(b) {
		b.Run(test.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				match.Compile(test.set)
			}
		})
	}
}
