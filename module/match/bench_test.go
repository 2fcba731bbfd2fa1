package match_test

import (
	"fmt"
	"strings"
	"testing"

	"encoding/json"

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

func BenchmarkEvaluate(b *testing.B) {
	e := readEvent(b, benchEvent)
	facts := match.Facts{User: benchUser, DisplayName: "Alice", Room: match.Room{MemberCount: 20, Power: &match.Power{}}}
	for _, test := range benchSets(b) {
		b.Run(test.name, func(b *testing.B) {
			rules := match.Compile(test.set)
			b.ReportAllocs()
			for b.Loop() {
				if _, id := rules.Evaluate(e, facts).Rule(); id != ".m.rule.message" {
					b.Fatal(id)
				}
			}
		})
	}
}

// mautrixRoom is what mautrix asks of a room.
type mautrixRoom struct{}

func (mautrixRoom) GetOwnDisplayname() string { return "Alice" }
func (mautrixRoom) GetMemberCount() int       { return 20 }
func (mautrixRoom) GetPowerLevels() *event.PowerLevelsEventContent {
	return &event.PowerLevelsEventContent{}
}

func BenchmarkMautrix(b *testing.B) {
	var e event.Event
	if err := json.Unmarshal([]byte(benchEvent), &e); err != nil {
		b.Fatal(err)
	}
	for _, test := range benchSets(b) {
		b.Run(test.name, func(b *testing.B) {
			var rules pushrules.PushRuleset
			if err := json.Unmarshal([]byte(test.set.JSON()), &rules); err != nil {
				b.Fatal(err)
			}
			b.ReportAllocs()
			for b.Loop() {
				if rule := rules.GetMatchingRule(mautrixRoom{}, &e); rule == nil || rule.RuleID != ".m.rule.message" {
					b.Fatal(rule)
				}
			}
		})
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
