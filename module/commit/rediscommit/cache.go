package rediscommit

import "sync"

// writeCache keeps what this host wrote last under keys, so that the next change
// of a key need not read it. Others may have written since: a change that begins
// with it counts only if the swap finds the same. It is bounded. Of two
// generations, the older one is dropped when the recent one has its share.
type writeCache[V any] struct {
	mu            sync.Mutex
	recent, older map[string]Stored[V]
	bytes         int // of recent
}

// How many bytes a store's cache holds at most, and how large one value may be.
const (
	cacheBytes      = 16 << 20
	cacheValueBytes = cacheBytes / 32
)

func newWriteCache[V any]() *writeCache[V] { return &writeCache[V]{recent: map[string]Stored[V]{}} }

// get returns what was written under a key.
func (c *writeCache[V]) get(key string) (s Stored[V], found bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if s, found = c.recent[key]; !found {
		s, found = c.older[key]
	}
	return s, found
}

// forget drops a key.
func (c *writeCache[V]) forget(key string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.recent, key)
	delete(c.older, key)
}

// put keeps what is stored under a key, and takes about so many bytes.
func (c *writeCache[V]) put(key string, s Stored[V], bytes int) {
	if bytes > cacheValueBytes {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.bytes += bytes; c.bytes > cacheBytes/2 {
		c.recent, c.older, c.bytes = map[string]Stored[V]{}, c.recent, bytes
	}
	delete(c.older, key)
	c.recent[key] = s
}
