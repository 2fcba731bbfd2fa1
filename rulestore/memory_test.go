package rulestore

import (
	"runtime"
	"testing"

	"github.com/pushfx/pushfx/module/commit/rediscommit"
	"github.com/pushfx/pushfx/module/pushrule"
)

// A store must not keep the memory of replaced events.
func TestReplacedEventsAreFreed(t *testing.T) {
	store, _, _ := newStore(t, rediscommit.DefaultConfig())
	change := func(n int) {
		_, err := store.Update(t.Context(), alice, func(rules *pushrule.Ruleset, found bool) error {
			if !found {
				*rules = pushrule.ServerDefault(alice)
			}
			return rules.SetEnabled(pushrule.Override, ".m.rule.master", n%2 == 0)
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	inUse := func() uint64 {
		runtime.GC()
		var stats runtime.MemStats
		runtime.ReadMemStats(&stats)
		return stats.HeapAlloc
	}
	change(0)
	before := inUse()
	const changes = 2000 // of more than 3 KB each
	for n := range changes {
		change(n + 1)
	}
	if after := inUse(); after > before+changes*1000 {
		t.Errorf("%d bytes were in use before %d changes, %d after", before, changes, after)
	}
	runtime.KeepAlive(store)
}
