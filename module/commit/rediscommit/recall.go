package rediscommit

import "sync"

// recall remembers what was written under keys of late, for the next change of
// each. It is bounded: of two generations, the older one is forgotten when the
// recent one has its share.
type recall[V any] struct {
	mu            sync.Mutex
	recent, older map[string]Stored[V]
	bytes         int // of recent
}

// recallBytes is how much a store remembers, and the most of one key.
const (
	recallBytes = 16 << 20
	recallLimit = recallBytes / 32
)

func newRecall[V any]() *recall[V] { return &recall[V]{recent: map[string]Stored[V]{}} }

// get returns what is remembered under a key.
func (r *recall[V]) get(key string) (s Stored[V], found bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if s, found = r.recent[key]; !found {
		s, found = r.older[key]
	}
	return s, found
}

// forget forgets a key.
func (r *recall[V]) forget(key string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.recent, key)
	delete(r.older, key)
}

// put remembers what is stored under a key.
func (r *recall[V]) put(key string, s Stored[V], bytes int) {
	if bytes > recallLimit {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.bytes += bytes; r.bytes > recallBytes/2 {
		r.recent, r.older, r.bytes = map[string]Stored[V]{}, r.recent, bytes
	}
	delete(r.older, key)
	r.recent[key] = s
}
