package match_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/pushfx/pushfx/module/match"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/pushrule"
)

func decidedBy(t *testing.T, rules *match.Rules, user, somebody string) string {
	t.Helper()
	event := readEvent(t, `{"type":"m.room.member","state_key":"`+somebody+`","content":{"membership":"invite"}}`)
	_, id := rules.Evaluate(event, match.Facts{User: mxid.UserID(user)}).Rule()
	return id
}

func TestUsersShareDefaultRules(t *testing.T) {
	t.Parallel()
	cache := match.NewCache(1 << 20)
	alice := cache.Rules("@alice:b.c", pushrule.ServerDefault("@alice:b.c"))
	bob := cache.Rules("@bob:b.c", pushrule.ServerDefault("@bob:b.c"))
	if alice != bob || alice != cache.Rules("@alice:b.c", pushrule.ServerDefault("@alice:b.c")) {
		t.Error("they were compiled more than once")
	}
	for _, user := range []string{"@alice:b.c", "@bob:b.c"} {
		if id := decidedBy(t, alice, user, user); id != ".m.rule.invite_for_me" {
			t.Errorf("%s is invited: got %s", user, id)
		}
		if id := decidedBy(t, alice, user, "@carol:b.c"); id != ".m.rule.member_event" {
			t.Errorf("%s sees an invitation: got %s", user, id)
		}
	}
}

// Each set has the user's id in a place that the cache must not replace.
func TestDifferentSetsAreNotShared(t *testing.T) {
	t.Parallel()
	const invited = `"conditions":[{"kind":"event_match","key":"state_key","pattern":%s}]`
	for name, set := range map[string]string{
		"a rule's id":                  `{"override":[` + rule("USER", fmt.Sprintf(invited, `"USER"`)) + `]}`,
		"a rule's id, another escaped": `{"override":[` + rule("USER", fmt.Sprintf(invited, `"\u0040alice:b.c"`)) + `]}`,
		"a member of a condition":      `{"override":[` + rule("x", `"conditions":[{"kind":"event_match","key":"state_key","pattern":"\u0040alice:b.c","x":"USER"}]`) + `]}`,
		"a nested member of it":        `{"override":[` + rule("x", `"conditions":[{"kind":"event_match","key":"state_key","pattern":"\u0040alice:b.c","x":{"pattern":"USER"}}]`) + `]}`,
		"a body":                       `{"override":[` + rule("x", `"conditions":[{"kind":"event_match","key":"content.body","pattern":"USER"}]`) + `]}`,
		"a content rule":               `{"content":[` + rule("x", `"pattern":"USER"`) + `]}`,
		"a sender rule":                `{"sender":[` + rule("USER", `"x":1`) + `]}`,
		"an action":                    `{"override":[` + rule("x", `"actions":["USER"],"conditions":[]`) + `]}`,
	} {
		t.Run(name, func(t *testing.T) {
			cache := match.NewCache(1 << 20)
			setOf := func(user string) pushrule.Ruleset { return readSet(t, strings.ReplaceAll(set, "USER", user)) }
			users := []string{"@alice:b.c", "@bob:b.c"}
			for _, user := range users {
				shared, own := cache.Rules(mxid.UserID(user), setOf(user)), match.Compile(setOf(user))
				for _, somebody := range users {
					event := readEvent(t, `{"type":"m.room.member","sender":"@carol:b.c","state_key":"`+somebody+`","content":{"body":"`+somebody+`"}}`)
					facts := match.Facts{User: mxid.UserID(user)}
					got, want := shared.Explain(event, facts).String(), own.Explain(event, facts).String()
					if got != want {
						t.Errorf("%s, about %s: got %s, want %s", user, somebody, got, want)
					}
				}
			}
			if cache.Rules("@alice:b.c", setOf("@alice:b.c")) == cache.Rules("@bob:b.c", setOf("@bob:b.c")) {
				t.Error("they are one")
			}
			bob := cache.Rules("@bob:b.c", setOf("@bob:b.c"))
			if again := cache.Rules("@bob:b.c", setOf("@bob:b.c")); again != bob {
				t.Error("a set was compiled twice")
			}
		})
	}
}

func TestCachedSetsEqualCompiledSets(t *testing.T) {
	t.Parallel()
	cache := match.NewCache(64 << 10) // too small for all
	seeds := uint64(500)
	if testing.Short() {
		seeds /= 10
	}
	for seed := range seeds {
		g := newGenerator(seed)
		set := readSet(t, encode(g.set()))
		for range 3 {
			event, facts := readEvent(t, encode(g.event())), g.facts()
			got, want := cache.Rules(facts.User, set).Explain(event, facts), match.Compile(set).Explain(event, facts)
			if got.String() != want.String() {
				t.Fatalf("seed %d: got %s, want %s", seed, got, want)
			}
		}
	}
}

func TestConcurrentCallsForOneSet(t *testing.T) {
	t.Parallel()
	cache := match.NewCache(1 << 20)
	found := make([]*match.Rules, 50)
	var wait sync.WaitGroup
	for i := range found {
		wait.Go(func() {
			user := mxid.UserID(fmt.Sprintf("@user%d:b.c", i))
			found[i] = cache.Rules(user, pushrule.ServerDefault(user))
		})
	}
	wait.Wait()
	for i := range found {
		if found[i] != found[0] {
			t.Fatal("it was compiled more than once")
		}
	}
}

func TestCacheEvictsUnusedSets(t *testing.T) {
	t.Parallel()
	cache := match.NewCache(1 << 10)
	setOf := func(n int) pushrule.Ruleset {
		return readSet(t, fmt.Sprintf(`{"content":[%s]}`, rule(fmt.Sprint(n), `"pattern":"tea"`)))
	}
	often, once := cache.Rules("@a:b.c", setOf(-1)), cache.Rules("@a:b.c", setOf(-2))
	for n := range 100 {
		cache.Rules("@a:b.c", setOf(n))
		if cache.Rules("@a:b.c", setOf(-1)) != often {
			t.Fatalf("after %d others, a set that is used again and again was forgotten", n)
		}
	}
	if cache.Rules("@a:b.c", setOf(-2)) == once {
		t.Error("nothing was forgotten")
	}
}

// contentSet returns the set number n, whose JSON has about the given number of bytes.
func contentSet(t *testing.T, n, bytes int) pushrule.Ruleset {
	t.Helper()
	var rules []string
	for size := 0; size < bytes; {
		r := rule(fmt.Sprintf("%d-%d", n, len(rules)), `"pattern":"tea"`)
		rules, size = append(rules, r), size+len(r)+1
	}
	return readSet(t, `{"content":[`+strings.Join(rules, ",")+`]}`)
}

func countKept(entries []*match.Entry) (kept, evicted int) {
	for _, e := range entries {
		if e.Rules() != nil {
			kept++
		}
	}
	return kept, len(entries) - kept
}

func TestLargeSetsDoNotEvictSmallSets(t *testing.T) {
	t.Parallel()
	limit, size, users := 256<<10, 20<<10, 500
	if testing.Short() {
		limit, size, users = limit/4, size/4, users/4
	}
	cache := match.NewCache(limit)
	var small, large []*match.Entry
	bytes := 0
	add := func(to *[]*match.Entry, n, size int) {
		set := contentSet(t, n, size)
		e, rules := cache.Entry("@a:b.c", set)
		if rules == nil {
			t.Fatalf("set %d is not compiled", n)
		}
		*to = append(*to, e)
		if size < 1000 {
			bytes += len(set.JSON())
		}
	}
	for n := range users {
		if n%(users/5) == 0 { // large ones come before, between and after the small ones
			for i := range 40 {
				add(&large, users+n*40+i, size)
			}
		}
		add(&small, n, 300)
	}
	for i := range 40 {
		add(&large, -1-i, size)
	}
	if _, evicted := countKept(small); evicted != 0 {
		t.Errorf("%d of %d small sets are evicted", evicted, users)
	}
	want := (limit - bytes) / (size + 100)
	if kept, _ := countKept(large); kept > want+1 || kept < want-1 {
		t.Errorf("%d large sets are kept, want about %d", kept, want)
	}
	if _, evicted := countKept(large[len(large)-want+1:]); evicted != 0 {
		t.Errorf("%d of the last large sets are evicted", evicted)
	}
}

func TestIdleSmallSetsAreEvicted(t *testing.T) {
	t.Parallel()
	cache := match.NewCache(16 << 10)
	var small []*match.Entry
	for n := range 200 {
		e, _ := cache.Entry("@a:b.c", contentSet(t, n, 100))
		small = append(small, e)
	}
	used, _ := cache.Entry("@a:b.c", contentSet(t, -1, 100))
	var sets []pushrule.Ruleset
	for n := range 8 {
		sets = append(sets, contentSet(t, 2000+n, 1800))
	}
	addLarge := func(times int) (kept int) {
		var large []*match.Entry
		for range times {
			large = nil
			for _, set := range sets {
				e, _ := cache.Entry("@a:b.c", set)
				large = append(large, e)
			}
			used.Rules()
		}
		kept, _ = countKept(large)
		return kept
	}
	if kept := addLarge(30); kept != 0 {
		t.Errorf("%d large sets are kept beside small ones that were used a while ago", kept)
	}
	addLarge(300)
	if kept := addLarge(1); kept != 8 {
		t.Errorf("%d of 8 large sets are kept", kept)
	}
	if used.Rules() == nil {
		t.Error("a small set that is used is evicted")
	}
	if _, evicted := countKept(small); evicted == 0 {
		t.Error("no small set is evicted")
	}
}

func TestSetLargerThanTheCacheIsNotKept(t *testing.T) {
	t.Parallel()
	cache := match.NewCache(10)
	var asking sync.WaitGroup
	for range 20 {
		asking.Go(func() {
			if e, rules := cache.Entry("@a:b.c", pushrule.ServerDefault("@a:b.c")); rules == nil || e.Rules() != nil {
				t.Errorf("got %v, kept %v", rules != nil, e.Rules() != nil)
			}
		})
	}
	asking.Wait()
}
