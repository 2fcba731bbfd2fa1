package rediscommit

import (
	"sync"

	"github.com/pushfx/pushfx/module/internal/bounded"
)

// cache keeps the values that this host last read or wrote. Others may have
// written since, so whoever uses one asks Redis whether it is still stored.
type cache[V any] struct {
	mu   sync.Mutex
	kept bounded.Map[string, cached[V]] // by Redis key; the weights are bytes
}

// cached is what is kept of a Redis key: the last part of it that was used, if it
// holds several.
type cached[V any] struct {
	key string // of the part
	Stored[V]
}

// entryBytes is about what an entry takes beside the value.
const entryBytes = 512

// cacheParts is how many of the largest values that are kept fill the cache.
const cacheParts = 16

func newCache[V any](bytes int) *cache[V] {
	return &cache[V]{kept: bounded.Map[string, cached[V]]{Limit: bytes}}
}

// get returns what is kept under a key.
func (c *cache[V]) get(redisKey, key string) (Stored[V], bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	kept, found := c.kept.Get(redisKey)
	if !found || kept.key != key {
		return nil, false
	}
	return kept.Stored, true
}

// has reports whether anything is kept of a Redis key.
func (c *cache[V]) has(redisKey string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, found := c.kept.Get(redisKey)
	return found
}

// forget drops a key.
func (c *cache[V]) forget(redisKey string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.kept.Delete(redisKey)
}

// forgetBefore drops a key if what is kept under it is older than a version.
func (c *cache[V]) forgetBefore(redisKey string, version int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if kept, found := c.kept.Get(redisKey); found && kept.Revision().Version < version {
		c.kept.Delete(redisKey)
	}
}

// put keeps what is stored under a key, unless it is too large or nothing is.
func (c *cache[V]) put(redisKey, key string, now Stored[V]) {
	bytes := now.Bytes()
	c.mu.Lock()
	defer c.mu.Unlock()
	if bytes == 0 || bytes+entryBytes > c.kept.Limit/cacheParts {
		c.kept.Delete(redisKey)
		return
	}
	c.kept.Put(redisKey, cached[V]{key, now}, bytes+entryBytes)
}
