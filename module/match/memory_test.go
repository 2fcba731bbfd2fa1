package match_test

import (
	"fmt"
	"runtime"
	"strings"
	"testing"

	"github.com/pushfx/pushfx/module/match"
	"github.com/pushfx/pushfx/module/mxid"
)

// heapBytes returns the bytes of the heap that are in use.
func heapBytes() int {
	runtime.GC()
	runtime.GC() // ends the sweep of the first one
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return int(stats.HeapAlloc)
}

// The sets take about 50 MB. Texts of a result must not be parts of a set's JSON, either.
func TestResultsDoNotKeepSetsInMemory(t *testing.T) {
	const users, most = 40, 2 << 20
	cache, event, before := match.NewCache(1<<10), readEvent(t, bodyEvent("keyword7")), heapBytes()
	var all []match.Result
	for n := range users {
		user := mxid.UserID(fmt.Sprintf("@user%d:example.org", n))
		set := hostileSet(t, 1000, func(i int) string { return fmt.Sprintf("keyword%d%s", i, strings.Repeat(string(user), i/999)) })
		results, err := match.EvaluateAll(t.Context(), event, match.Room{}, []match.Member{{User: user, Rules: cache.Rules(user, set)}})
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, results[0], match.Compile(set).Evaluate(event, match.Facts{User: user}))
	}
	if took := heapBytes() - before; took > most {
		t.Errorf("%d results take %d bytes, want at most %d", len(all), took, most)
	}
	for n, r := range all {
		if _, id := r.Rule(); id != "r7" || !r.Notify() || len(r.Actions()) != 1 {
			t.Errorf("result %d is of rule %q", n, id)
		}
	}
}

func TestEvaluateCachedReturnsEvictedMembers(t *testing.T) {
	t.Parallel()
	const n = 1000
	cache, small := match.NewCache(64<<20), match.NewCache(10)
	members, entries, given := make([]match.Member, n), make([]*match.Entry, n), bulkMembers(t, n)
	for i := range members {
		members[i] = match.Member{User: given[i].User, DisplayName: given[i].DisplayName}
		switch i % 4 {
		case 0:
			members[i].Rules = given[i].Rules // unlike the entry's
			entries[i], _ = cache.Entry(members[i].User, readSet(t, `{}`))
		case 1:
			entries[i], _ = cache.Entry(members[i].User, readSet(t, `{"underride":[`+rule("u", `"conditions":[],"actions":["notify"]`)+`]}`))
		case 2:
			entries[i], _ = small.Entry(members[i].User, readSet(t, `{"underride":[`+rule("u", `"conditions":[]`)+`]}`))
			if entries[i].Size() < 50 {
				t.Fatalf("an evicted set has %d bytes", entries[i].Size())
			}
		}
	}
	event := readEvent(t, `{"type":"m.room.message","sender":"@bob:example.org","content":{"body":"hi"}}`)
	results, evicted, err := match.EvaluateCached(t.Context(), event, match.Room{MemberCount: n}, members, entries)
	if err != nil {
		t.Fatal(err)
	}
	if len(evicted) != n/4 || evicted[0] != 2 || evicted[n/4-1] != n-2 {
		t.Errorf("%d are evicted: %v", len(evicted), evicted)
	}
	for i, r := range results {
		if _, id := r.Rule(); id != []string{".m.rule.message", "u", "", ""}[i%4] {
			t.Fatalf("member %d: got rule %q", i, id)
		}
	}
}
