package match

import (
	"container/list"
	"math/bits"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/pushrule"
)

// Cache compiles rule sets and keeps them by the bytes of a set. Sets that differ only
// in the user's id, such as default rules, share an entry. It is safe for concurrent
// use.
//
// A full cache evicts the largest sets first, and among sets of similar size the least
// recently used: a few large sets cannot evict many small ones. A smaller set goes
// first only if it was unused while the cache took in ten times as many sets as it
// holds.
type Cache struct {
	limit int

	mu      sync.RWMutex
	entries map[string]*Entry
	sizes   [bits.UintSize + 1]list.List // the entries by the number of bits of their size, the last used in front
	size    int                          // bytes of all keys
	taken   int                          // sets so far
}

// Entry is a set that is in a [Cache] until the cache evicts it.
type Entry struct {
	key     string
	compile sync.Once
	rules   atomic.Pointer[Rules] // nil before it is compiled, and when it is evicted
	used    atomic.Bool           // since it came to its place
	since   int                   // how many sets the cache had taken in when it came to its place
	place   *list.Element
}

// maxIdle bounds how long an unused set stays in a full cache with larger sets: until
// the cache has taken in maxIdle times as many sets as it holds.
const maxIdle = 10

// notShared stands for a set that is not the same for all users.
var notShared = &Rules{}

// NewCache returns a cache for sets with together limit bytes of JSON. A compiled set
// takes at most eight times as many bytes as its JSON.
func NewCache(limit int) *Cache {
	return &Cache{limit: limit, entries: map[string]*Entry{}}
}

// Rules returns the set, or nil if the cache has evicted it. Evaluate it for the
// user of [Cache.Entry] only.
func (e *Entry) Rules() *Rules {
	rules := e.rules.Load()
	if rules != nil {
		e.use()
	}
	return rules
}

func (e *Entry) use() {
	if !e.used.Load() { // all cores share what is not written
		e.used.Store(true)
	}
}

// Rules returns a user's rule set, compiled. Evaluate it for this user only.
func (c *Cache) Rules(user mxid.UserID, set pushrule.Ruleset) *Rules {
	_, rules := c.Entry(user, set)
	return rules
}

// Entry returns a user's compiled rule set with its entry. Keep the entry and not the
// set, so that the cache can evict the set.
func (c *Cache) Entry(user mxid.UserID, set pushrule.Ruleset) (*Entry, *Rules) {
	var space [4 << 10]byte
	masked, count := mask(space[:0], set.JSON(), user)
	var own *Rules
	entry, rules := c.get(masked, func() *Rules {
		compiled := compile(set, user)
		if compiled.personal == count {
			compiled.shared = true
			return compiled
		}
		// The user's id also occurs elsewhere, such as in a rule's id.
		own = compiled
		return notShared
	})
	if rules != notShared {
		return entry, rules
	}
	return c.get([]byte(string(user)+maskByte+set.JSON()), func() *Rules {
		if own == nil {
			own = compile(set, user)
		}
		return own
	})
}

// get returns the entry of a key and its set. It compiles a new set.
func (c *Cache) get(key []byte, compile func() *Rules) (e *Entry, rules *Rules) {
	for rules == nil { // again if it is evicted while another goroutine compiles it
		e = c.entry(key)
		e.compile.Do(func() {
			rules = compile()
			c.fill(e, rules)
		})
		if rules == nil {
			rules = e.rules.Load()
		}
	}
	return e, rules
}

// fill completes an entry, unless it was evicted.
func (c *Cache) fill(e *Entry, rules *Rules) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	if c.entries[e.key] == e {
		e.rules.Store(rules)
	}
}

// entry returns the entry of a key, or makes one.
func (c *Cache) entry(key []byte) *Entry {
	c.mu.RLock()
	e, found := c.entries[string(key)]
	c.mu.RUnlock()
	if found {
		e.use()
		return e
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if e, found = c.entries[string(key)]; found {
		return e
	}
	c.taken++
	e = &Entry{key: string(key), since: c.taken}
	e.place = c.sized(e).PushFront(e)
	c.entries[e.key] = e
	c.size += len(key)
	for c.size > c.limit {
		c.evict(c.victim())
	}
	return e
}

// sized returns the list for entries of similar size.
func (c *Cache) sized(e *Entry) *list.List { return &c.sizes[bits.Len(uint(len(e.key)))] }

func (c *Cache) evict(e *Entry) {
	delete(c.entries, e.key)
	c.sized(e).Remove(e.place)
	c.size -= len(e.key)
	e.key = "" // so that a kept entry takes no memory
	e.rules.Store(nil)
}

// maxLook bounds the search for an idle entry of a size.
const maxLook = 100

// victim returns the entry to evict next. The cache is not empty.
func (c *Cache) victim() *Entry {
	var victim *Entry
	for i := len(c.sizes) - 1; i >= 0; i-- {
		entries := &c.sizes[i]
		switch {
		case entries.Len() == 0:
		case victim == nil:
			victim, _ = c.leastRecentlyUsed(entries, entries.Len())
		default:
			if e, unused := c.leastRecentlyUsed(entries, maxLook); unused && c.taken-e.since > maxIdle*len(c.entries) {
				return e
			}
		}
	}
	return victim
}

// leastRecentlyUsed returns the last entry, and whether it is unused since it got its
// place. It moves up to limit used entries to the front.
func (c *Cache) leastRecentlyUsed(entries *list.List, limit int) (last *Entry, unused bool) {
	for range limit {
		last = entries.Back().Value.(*Entry)
		if !last.used.Swap(false) {
			return last, true
		}
		last.since = c.taken
		entries.MoveToFront(last.place)
	}
	return entries.Back().Value.(*Entry), false
}

// maskByte occurs in no JSON text.
const maskByte = "\x00"

// mask appends a set's text with maskByte for each string that equals the user's id,
// and returns their number.
func mask(dst []byte, text string, user mxid.UserID) (masked []byte, count int) {
	id := quote(string(user))
	for {
		i := strings.Index(text, id)
		if i < 0 || user == "" {
			return append(dst, text...), count
		}
		dst = append(append(dst, text[:i]...), maskByte...)
		text = text[i+len(id):]
		count++
	}
}
