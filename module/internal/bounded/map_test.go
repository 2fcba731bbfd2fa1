package bounded_test

import (
	"math/rand/v2"
	"testing"

	"github.com/pushfx/pushfx/module/internal/bounded"
)

func TestMapKeepsUsedEntriesWithinItsLimit(t *testing.T) {
	t.Parallel()
	const limit, each = 100, 5
	random := rand.New(rand.NewPCG(1, 2))
	m, all := bounded.Map[int, int]{Limit: limit}, map[int]int{}
	m.Put(-1, -1, each)
	fullest := 0
	for n := range 10_000 {
		key := random.IntN(60)
		switch random.IntN(5) {
		case 0:
			m.Delete(key)
			delete(all, key)
		case 1, 2:
			m.Put(key, n, each)
			all[key] = n
		default:
			if value, found := m.Get(key); found && value != all[key] {
				t.Fatalf("key %d has %d, want %d", key, value, all[key])
			} else if _, set := all[key]; found && !set {
				t.Fatalf("the deleted key %d is found", key)
			}
		}
		if value, found := m.Get(-1); !found || value != -1 {
			t.Fatalf("an entry in constant use is gone after %d steps", n)
		}
		if fullest = max(fullest, m.Len()); m.Len()*each > limit {
			t.Fatalf("%d entries of weight %d are kept, the limit is %d", m.Len(), each, limit)
		}
	}
	if fullest*each < limit*3/4 {
		t.Errorf("at most %d entries of weight %d are kept, the limit is %d", fullest, each, limit)
	}
}

func TestDeletedEntryHasNoWeight(t *testing.T) {
	t.Parallel()
	m := bounded.Map[string, int]{Limit: 10}
	m.Put("kept", 1, 1)
	for range 100 {
		m.Put("deleted", 2, 3)
		m.Delete("deleted")
		m.Put("replaced", 3, 1)
	}
	if m.Len() != 2 {
		t.Errorf("%d entries are kept", m.Len())
	}
}

func TestTooHeavyEntryIsNotKept(t *testing.T) {
	t.Parallel()
	var none bounded.Map[string, int]
	none.Put("a", 1, 1)
	m := bounded.Map[string, int]{Limit: 10}
	m.Put("a", 1, 5)
	m.Put("a", 2, 6)
	if _, found := m.Get("a"); found || none.Len() != 0 {
		t.Errorf("the entry is kept: %t, and %d in a map without a limit", found, none.Len())
	}
}
