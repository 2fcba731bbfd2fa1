package rediscommit

import (
	"sync"

	"github.com/pushfx/pushfx/module/commit"
	"github.com/pushfx/pushfx/module/internal/bounded"
)

// cache keeps the snapshots that this host last read or wrote. Other hosts may have
// written since, so a user of the cache asks Redis whether a snapshot is still stored.
type cache[V, R any] struct {
	mu   sync.Mutex
	kept bounded.Map[string, cached[V, R]] // by Redis key
}

// cached is what is kept of a Redis key: the last part of it that was used, if it
// holds several.
type cached[V, R any] struct {
	key      string // of the part
	bytes    int
	snapshot commit.Snapshot[V, R]
}

// entryBytes is about what an entry takes beside the value.
const entryBytes = 512

// cacheParts is how many of the largest values that are kept fill the cache.
const cacheParts = 16

func newCache[V, R any](bytes int) *cache[V, R] {
	return &cache[V, R]{kept: bounded.Map[string, cached[V, R]]{Limit: bytes}}
}

// get returns what is kept under a key.
func (c *cache[V, R]) get(redisKey, key string) (known commit.Snapshot[V, R], found bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	kept, found := c.kept.Get(redisKey)
	if !found || kept.key != key {
		return known, false
	}
	return kept.snapshot, true
}

// has reports whether anything is kept of a Redis key.
func (c *cache[V, R]) has(redisKey string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, found := c.kept.Get(redisKey)
	return found
}

// forget drops a key.
func (c *cache[V, R]) forget(redisKey string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.kept.Delete(redisKey)
}

// forgetBefore drops a key if what is kept under it is older than a version.
func (c *cache[V, R]) forgetBefore(redisKey string, version int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if kept, found := c.kept.Get(redisKey); found && kept.snapshot.Revision.Version < version {
		c.kept.Delete(redisKey)
	}
}

// put keeps what is stored under a key, unless it is too large or nothing is.
func (c *cache[V, R]) put(redisKey string, now cached[V, R]) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if weight := now.bytes + entryBytes; now.bytes > 0 && weight <= c.kept.Limit/cacheParts {
		c.kept.Put(redisKey, now, weight)
		return
	}
	c.kept.Delete(redisKey)
}
