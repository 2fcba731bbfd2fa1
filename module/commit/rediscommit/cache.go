package rediscommit

import "sync"

// cache keeps the values that this host last read or wrote. Others may have
// written since, so whoever uses one asks Redis whether it is still stored.
//
// It is bounded and has two generations: when the recent one has its share, the
// older one is dropped. A value that is used moves into the recent one.
type cache[V any] struct {
	share int // bytes of a generation

	mu            sync.Mutex
	recent, older map[string]cached[V] // by Redis key
	bytes         int                  // of recent
}

// cached is what is kept of a Redis key: the last part of it that was used, if it
// holds several.
type cached[V any] struct {
	key   string // of the part
	bytes int
	Stored[V]
}

// entryBytes is about what an entry takes beside the value.
const entryBytes = 512

// cacheParts is how many of the largest values that are kept fill the cache.
const cacheParts = 16

func newCache[V any](bytes int) *cache[V] {
	return &cache[V]{share: bytes / 2, recent: map[string]cached[V]{}}
}

// get returns what is kept under a key.
func (c *cache[V]) get(redisKey, key string) (Stored[V], bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	kept, found := c.recent[redisKey]
	if !found {
		if kept, found = c.older[redisKey]; found {
			c.add(redisKey, kept)
		}
	}
	if !found || kept.key != key {
		return nil, false
	}
	return kept.Stored, true
}

// has reports whether anything is kept of a Redis key.
func (c *cache[V]) has(redisKey string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, isRecent := c.recent[redisKey]
	_, isOlder := c.older[redisKey]
	return isRecent || isOlder
}

// forget drops a key.
func (c *cache[V]) forget(redisKey string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.drop(redisKey)
}

// forgetBefore drops a key if what is kept under it is older than a version.
func (c *cache[V]) forgetBefore(redisKey string, version int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	kept, found := c.recent[redisKey]
	if !found {
		kept, found = c.older[redisKey]
	}
	if found && kept.Revision().Version < version {
		c.drop(redisKey)
	}
}

// put keeps what is stored under a key, unless it is too large or nothing is.
func (c *cache[V]) put(redisKey, key string, now Stored[V]) {
	bytes := now.Bytes()
	c.mu.Lock()
	defer c.mu.Unlock()
	if bytes == 0 || bytes+entryBytes > 2*c.share/cacheParts {
		c.drop(redisKey)
		return
	}
	c.add(redisKey, cached[V]{key, bytes + entryBytes, now})
}

func (c *cache[V]) add(redisKey string, kept cached[V]) {
	c.drop(redisKey)
	if c.bytes+kept.bytes > c.share {
		c.recent, c.older, c.bytes = map[string]cached[V]{}, c.recent, 0
	}
	c.recent[redisKey] = kept
	c.bytes += kept.bytes
}

func (c *cache[V]) drop(redisKey string) {
	c.bytes -= c.recent[redisKey].bytes
	delete(c.recent, redisKey)
	delete(c.older, redisKey)
}
