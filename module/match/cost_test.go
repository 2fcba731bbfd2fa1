package match_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pushfx/pushfx/module/match"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/pushrule"
)

// hostileSet has as many content rules as the byte limit of a set allows.
func hostileSet(tb testing.TB, n int, pattern func(i int) string) pushrule.Ruleset {
	tb.Helper()
	rules := make([]string, n)
	for i := range rules {
		rules[i] = fmt.Sprintf(`{"rule_id":"r%d","default":false,"enabled":true,"actions":["notify"],"pattern":%s}`, i, encode(pattern(i)))
	}
	return readSet(tb, `{"content":[`+strings.Join(rules, ",")+`]}`)
}

func bodyEvent(body string) string {
	return fmt.Sprintf(`{"type":"m.room.message","sender":"@bob:example.org","content":{"body":%s}}`, encode(body))
}

// hostileCases combine the slowest allowed rule sets with the largest bodies.
func hostileCases(tb testing.TB) map[string]struct {
	set  pushrule.Ruleset
	body string
} {
	tb.Helper()
	const size = 64 << 10
	same := func(pattern string) func(int) string { return func(int) string { return pattern } }
	keyword := func(i int) string {
		return strings.Map(func(r rune) rune { return 'a' + r - '0' }, fmt.Sprintf("%014b", i))
	}
	nearly := strings.Repeat(strings.Repeat("a", 80)+"b", size/81)
	return map[string]struct {
		set  pushrule.Ruleset
		body string
	}{
		"short segments beside a long s": {hostileSet(tb, 950, same(strings.Repeat("*a?b", 255)+"*x")), "ſ x" + nearly},
		"short segments":                 {hostileSet(tb, 950, same(strings.Repeat("*a?b", 255)+"*x")), "x" + nearly},
		"a long segment with gaps":       {hostileSet(tb, 950, same("*"+strings.Repeat("a?", 500)+"b*")), "b" + strings.Repeat("a", size)},
		"a long keyword":                 {hostileSet(tb, 950, same("aa"+strings.Repeat("-aa", 339)+"-a")), "a " + strings.Repeat("-aa", size/3)},
		"keywords of few grams":          {hostileSet(tb, 9900, keyword), "ſ " + strings.Repeat("aaaabbbbababaabbabba", size/20)},
		"many long s":                    {hostileSet(tb, 950, same("*s?s*"+strings.Repeat("s?", 400)+"x")), "x" + strings.Repeat("ſ", size/2)},
		"question marks between words":   {hostileSet(tb, 950, same(strings.Repeat("?", 1000)+"a")), strings.Repeat("ab ", size/3)},
		"stars and line separators":      {hostileSet(tb, 950, same(strings.Repeat("*a ?", 250)+"b")), "b" + strings.Repeat("a \u2028", size/5)},
	}
}

// busyFactor allows for a busy machine and the race detector. Without the work limit,
// these sets take seconds.
const busyFactor = 100

func TestCostOfOneUsersRulesIsBounded(t *testing.T) {
	for name, test := range hostileCases(t) {
		t.Run(name, func(t *testing.T) {
			rules, e := match.Compile(test.set), readEvent(t, bodyEvent(test.body))
			var result match.Result
			took := leastOf(3, func() time.Duration {
				start := time.Now()
				result = rules.Evaluate(e, match.Facts{User: "@alice:example.org"})
				return time.Since(start)
			})
			if took > busyFactor*10*time.Millisecond || !result.Incomplete() {
				t.Errorf("one evaluation takes %v, incomplete %t", took, result.Incomplete())
			}
		})
	}
}

func leastOf(n int, measure func() time.Duration) time.Duration {
	least := measure()
	for range n - 1 {
		least = min(least, measure())
	}
	return least
}

func hostileMembers(tb testing.TB, n int) (*match.Event, []match.Member) {
	tb.Helper()
	test := hostileCases(tb)["short segments beside a long s"]
	rules := match.Compile(test.set)
	members := make([]match.Member, n)
	for i := range members {
		members[i] = match.Member{User: mxid.UserID(fmt.Sprintf("@user%d:example.org", i)), Rules: rules}
	}
	return readEvent(tb, bodyEvent(test.body)), members
}

// ownedMembers have different sets, with patterns of many segments. The body has a word
// boundary that folds to a letter.
func ownedMembers(tb testing.TB, n int) (*match.Event, []match.Member) {
	tb.Helper()
	members := make([]match.Member, n)
	for i := range members {
		user := mxid.UserID(fmt.Sprintf("@user%d:example.org", i))
		set := hostileSet(tb, 100, func(k int) string { return strings.Repeat("*a", 490) + fmt.Sprintf("zz%d-%d", i, k) })
		members[i] = match.Member{User: user, Rules: match.Compile(set)}
	}
	return readEvent(tb, bodyEvent("ſ"+strings.Repeat("a", 59<<10))), members
}

func TestEvaluateAllEndsSoonAfterTheContext(t *testing.T) {
	if testing.Short() {
		t.Skip("measures times")
	}
	for name, test := range map[string]struct {
		of func(testing.TB, int) (*match.Event, []match.Member)
		n  int
	}{
		"one set for all": {hostileMembers, 10_000},
		"a set for each":  {ownedMembers, 200},
	} {
		t.Run(name, func(t *testing.T) {
			one := leastOf(3, func() time.Duration {
				event, members := test.of(t, 1)
				start := time.Now()
				members[0].Rules.Evaluate(event, match.Facts{})
				return time.Since(start)
			})
			late := leastOf(2, func() time.Duration {
				event, members := test.of(t, test.n)
				ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
				defer cancel()
				if _, err := match.EvaluateAll(ctx, event, match.Room{}, members); err != nil && !errors.Is(err, context.DeadlineExceeded) {
					t.Fatal(err)
				}
				deadline, _ := ctx.Deadline()
				return time.Since(deadline)
			})
			if most := max(busyFactor*one, busyFactor*time.Millisecond); late > most {
				t.Errorf("it returned %v after the deadline, want at most %v", late, most)
			}
			t.Logf("one evaluation takes %v, all return %v after the deadline", one, late)
		})
	}
}

type countedContext struct {
	context.Context
	asked atomic.Int64
}

func (c *countedContext) Err() error {
	c.asked.Add(1)
	return c.Context.Err()
}

func TestContextIsCheckedAfterEachSlowEvaluation(t *testing.T) {
	t.Parallel()
	const n = 20
	event, members := hostileMembers(t, n)
	ctx := &countedContext{Context: t.Context()}
	if _, err := match.EvaluateAll(ctx, event, match.Room{}, members); err != nil {
		t.Fatal(err)
	}
	if asked := ctx.asked.Load(); asked < n {
		t.Errorf("it was asked %d times about %d members", asked, n)
	}
}

func BenchmarkHostile(b *testing.B) {
	for name, test := range hostileCases(b) {
		rules, e := match.Compile(test.set), readEvent(b, bodyEvent(test.body))
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				rules.Evaluate(e, match.Facts{User: "@alice:example.org"})
			}
		})
	}
}

func largeSets(tb testing.TB) map[string]pushrule.Ruleset {
	tb.Helper()
	about := func(n int, condition string) pushrule.Ruleset {
		return readSet(tb, `{"override":[`+rule("r", `"conditions":[`+strings.Repeat(condition+",", n)+condition+`]`)+`]}`)
	}
	return map[string]pushrule.Ruleset{
		"keywords":      hostileSet(tb, 9900, func(i int) string { return fmt.Sprint("keyword", i) }),
		"many words":    hostileSet(tb, 950, func(i int) string { return fmt.Sprint(i) + strings.Repeat("x y", 330) }),
		"a long part":   hostileSet(tb, 950, func(i int) string { return "*" + strings.Repeat("abcdefgh", 120) + fmt.Sprint(i) }),
		"many segments": hostileSet(tb, 950, func(i int) string { return strings.Repeat("*a", 490) + fmt.Sprint("zz", i) }),
		"conditions":    about(30_000, `{"kind":"contains_display_name"}`),
		"values":        about(20_000, `{"kind":"event_match","key":"a","pattern":"x"}`),
		"deep keys":     about(950, `{"kind":"event_match","key":"`+strings.Repeat("a.", 490)+`","pattern":"x"}`),
	}
}

func TestCompilingTakesMemoryLinearInTheSet(t *testing.T) {
	for name, set := range largeSets(t) {
		t.Run(name, func(t *testing.T) {
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			match.Compile(set)
			runtime.ReadMemStats(&after)
			times := float64(after.TotalAlloc-before.TotalAlloc) / float64(len(set.JSON()))
			if t.Logf("%.1f bytes for each byte of the set", times); times > 20 {
				t.Errorf("it takes %.1f bytes for each byte of the set", times)
			}
		})
	}
}
