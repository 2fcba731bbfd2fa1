package rediscommit

import (
	"sync"

	"github.com/pushfx/pushfx/module/commit"
	"github.com/pushfx/pushfx/module/internal/bounded"
)

// cache keeps the snapshots that this host last read or wrote. They may be stale.
type cache[V, R any] struct {
	mu      sync.Mutex
	entries bounded.Map[string, cached[V, R]] // by Redis key
}

type cached[V, R any] struct {
	bytes    int
	snapshot commit.Snapshot[V, R]
}

// entryBytes is the approximate memory of an entry without its value.
const entryBytes = 512

// minEntries is how many values fit into a cache at least; larger values are not
// cached.
const minEntries = 16

func newCache[V, R any](bytes int) *cache[V, R] {
	return &cache[V, R]{entries: bounded.Map[string, cached[V, R]]{Limit: bytes}}
}

func (c *cache[V, R]) get(key string) (snapshot commit.Snapshot[V, R], found bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	entry, found := c.entries.Get(key)
	return entry.snapshot, found
}

func (c *cache[V, R]) forget(key string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.entries.Delete(key)
}

func (c *cache[V, R]) forgetBefore(key string, version int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if entry, found := c.entries.Get(key); found && entry.snapshot.Revision.Version < version {
		c.entries.Delete(key)
	}
}

// put caches a snapshot, or drops the old entry if the snapshot cannot be cached.
func (c *cache[V, R]) put(key string, entry cached[V, R]) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if weight := entry.bytes + entryBytes; entry.bytes > 0 && weight <= c.entries.Limit/minEntries {
		c.entries.Put(key, entry, weight)
		return
	}
	c.entries.Delete(key)
}
