package feed

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pushfx/pushfx/module/mxid"
)

// cache holds what this host has read of users, while it watches their changes. An entry is
// current if it was read, or compared with the store, during the present watch, and no
// change of the user was reported since the read began: a report drops the entry, and a read
// fills only the entry that was there when it began. It is safe for concurrent use.
type cache[V any] struct {
	limit   int           // bytes of all entries
	bytesOf func(V) int   // of a value
	maxAge  time.Duration // since the read of a value began; 0 if values have no age

	mu      sync.RWMutex
	users   map[mxid.UserID]*entry[V]
	bytes   int
	watch   int // the number of the present watch, 0 for none
	watches int // how many watches have begun
}

func newCache[V any](limit int, bytesOf func(V) int) cache[V] {
	return cache[V]{limit: limit, bytesOf: bytesOf, users: map[mxid.UserID]*entry[V]{}}
}

// entry is a value, or marks a read in progress if it was never filled. Only use and
// confirm change an entry; a read that ends puts a new one.
type entry[V any] struct {
	value  V
	read   time.Time // when the read began, zero for a mark
	watch  int       // during which the value was read or compared
	bytes  int
	lastly atomic.Int64 // time of the last use, in Unix seconds
}

func (e *entry[V]) isMark() bool { return e.read.IsZero() }

func (e *entry[V]) use(now time.Time) {
	if at := now.Unix(); e.lastly.Load() != at { // avoid a write, which other cores would wait for
		e.lastly.Store(at)
	}
}

// mark remembers the entry of a user when a read of the store began.
type mark[V any] struct {
	at    int // index in the look-up
	user  mxid.UserID
	entry *entry[V]
	watch int
	began time.Time
}

// step bounds the users that are looked up under one lock.
const step = 1024

// lookup is a search for the values of users, which have the indexes 0 to n-1.
type lookup[V any] struct {
	n     int
	user  func(at int) (user mxid.UserID, wanted bool)
	found func(at int, v V) (usable bool) // called for each current value
}

// get returns marks of the wanted users without a usable value, for a read and [cache.keep]. For
// many users it uses all cores, since a look-up in a large map mostly waits for memory.
func (c *cache[V]) get(l lookup[V]) []mark[V] {
	now := time.Now()
	if l.n <= step {
		return c.mark(l, c.look(l, 0, now), now)
	}
	missing := make([][]int, (l.n+step-1)/step)
	var looking sync.WaitGroup
	for i := range missing {
		looking.Go(func() { missing[i] = c.look(l, i*step, now) })
	}
	looking.Wait()
	return c.mark(l, slices.Concat(missing...), now)
}

// look looks at the users of a step. It returns the indexes of those without a usable value.
func (c *cache[V]) look(l lookup[V], first int, now time.Time) (missing []int) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	for at := first; at < min(first+step, l.n); at++ {
		user, wanted := l.user(at)
		if !wanted {
			continue
		}
		e := c.users[user]
		if e == nil || !c.isCurrent(e, now) || !l.found(at, e.value) {
			missing = append(missing, at)
			continue
		}
		e.use(now)
	}
	return missing
}

func (c *cache[V]) isCurrent(e *entry[V], now time.Time) bool {
	return !e.isMark() && c.watch != 0 && e.watch == c.watch && (c.maxAge == 0 || now.Sub(e.read) < c.maxAge)
}

func (c *cache[V]) mark(l lookup[V], missing []int, now time.Time) []mark[V] {
	marks := make([]mark[V], 0, len(missing))
	for some := range slices.Chunk(missing, step) {
		c.mu.Lock()
		for _, at := range some {
			user, _ := l.user(at)
			e := c.users[user]
			if e == nil && c.watch != 0 {
				e = &entry[V]{}
				c.put(user, e, now)
			}
			marks = append(marks, mark[V]{at, user, e, c.watch, now})
		}
		c.mu.Unlock()
	}
	return marks
}

// keep fills the entry of a mark with what was read, unless it was dropped or filled since. It
// reports whether it did.
func (c *cache[V]) keep(m mark[V], v V) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if m.entry == nil || c.users[m.user] != m.entry {
		return false
	}
	c.put(m.user, &entry[V]{value: v, read: m.began, watch: m.watch}, m.began)
	return true
}

// ofEntry is about as much memory as an entry without a value takes.
const ofEntry = 160

// put replaces a user's entry. A full cache evicts the least recently used of a random
// sample. The caller holds the lock.
func (c *cache[V]) put(user mxid.UserID, e *entry[V], now time.Time) {
	const sample = 8
	c.remove(user)
	e.use(now)
	e.bytes = ofEntry + len(user) + c.bytesOf(e.value)
	for e.bytes <= c.limit && c.bytes+e.bytes > c.limit {
		var oldest mxid.UserID
		looked, since := 0, int64(0)
		for other, o := range c.users {
			if at := o.lastly.Load(); looked == 0 || at < since {
				oldest, since = other, at
			}
			if looked++; looked == sample {
				break
			}
		}
		c.remove(oldest)
	}
	if e.bytes <= c.limit {
		c.users[user] = e
		c.bytes += e.bytes
	}
}

func (c *cache[V]) remove(user mxid.UserID) {
	if e, found := c.users[user]; found {
		c.bytes -= e.bytes
		delete(c.users, user)
	}
}

// drop removes the entry of a user whose change was reported, and returns true. If the entry
// has a current value of which isNews returns false (the change is known), drop leaves it and
// returns false. isNews is asked under the lock.
func (c *cache[V]) drop(user mxid.UserID, isNews func(V) bool) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if e, found := c.users[user]; found && !e.isMark() && e.watch == c.watch && !isNews(e.value) {
		return false
	}
	c.remove(user)
	return true
}

// begin begins a watch: what was read before it is no longer current.
func (c *cache[V]) begin() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.watches++
	c.watch = c.watches
}

// end ends the watch, and reports whether there was one.
func (c *cache[V]) end() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	watched := c.watch != 0
	c.watch = 0
	return watched
}

func (c *cache[V]) isWatching() bool {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.watch != 0
}

// addUsed adds the users with an entry, and drops those that were not used since a time.
func (c *cache[V]) addUsed(users map[mxid.UserID]struct{}, since time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for user, e := range c.users {
		if e.lastly.Load() < since.Unix() {
			c.remove(user)
		} else {
			users[user] = struct{}{}
		}
	}
}

// entries returns the users' entries, nil for none, and the number of the present watch.
func (c *cache[V]) entries(users []mxid.UserID) (entries []*entry[V], watch int) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	entries = make([]*entry[V], len(users))
	for i, user := range users {
		entries[i] = c.users[user]
	}
	return entries, c.watch
}

// confirm makes an entry current, unless it was dropped or replaced: a comparison during a
// watch has shown that the store has its value.
func (c *cache[V]) confirm(e *entry[V], watch int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e.watch = watch
}

// discard drops an entry unless it was replaced.
func (c *cache[V]) discard(user mxid.UserID, e *entry[V]) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.users[user] == e {
		c.remove(user)
	}
}
