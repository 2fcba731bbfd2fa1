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

// Cache compiles rule sets and keeps them. Sets that differ only in the user's id, such
// as default rules, share one compiled set. It is safe for concurrent use.
//
// A full cache evicts the largest sets first, and among sets of similar size the least
// recently used: a few large sets cannot evict many small ones. A smaller set is
// evicted first only if it was idle for long.
type Cache struct {
	limit int

	mu      sync.RWMutex
	entries map[string]*Entry
	sizes   [bits.UintSize + 1]list.List // entries by the bit length of their size; the last ones are evicted first
	size    int                          // bytes of all keys
	taken   int                          // sets that were ever added
}

// Entry holds a set until the [Cache] evicts it.
type Entry struct {
	key     string
	size    int // of the key
	compile sync.Once
	rules   atomic.Pointer[Rules] // nil before the compilation and after the eviction
	used    atomic.Bool           // whether it was used since the last move to the front
	since   int                   // Cache.taken at the last move to the front
	place   *list.Element
}

// A set is idle if the cache has added maxIdle times as many sets as it holds since the
// last use of the set.
const maxIdle = 10

// notShared marks a masked text (see mask) that needs another compiled set for each
// user.
var notShared = &Rules{}

// NewCache returns a cache for sets with a total of limit bytes of JSON. A compiled set
// takes at most eight times the bytes of its JSON.
func NewCache(limit int) *Cache {
	return &Cache{limit: limit, entries: map[string]*Entry{}}
}

// Rules returns the set, or nil after its eviction. Evaluate it only for the user that
// was given to [Cache.Entry].
func (e *Entry) Rules() *Rules {
	rules := e.rules.Load()
	if rules != nil {
		e.use()
	}
	return rules
}

// Size returns about the bytes of the set's JSON, also after the eviction.
func (e *Entry) Size() int { return e.size }

func (e *Entry) use() {
	if !e.used.Load() { // avoids a write, so that the cores keep the value in their caches
		e.used.Store(true)
	}
}

// Rules returns a user's compiled set. Evaluate it only for this user.
func (c *Cache) Rules(user mxid.UserID, set pushrule.Ruleset) *Rules {
	_, rules := c.Entry(user, set)
	return rules
}

// Entry returns a user's compiled set and its entry. Keep the entry instead of the set,
// so that an eviction frees memory.
func (c *Cache) Entry(user mxid.UserID, set pushrule.Ruleset) (*Entry, *Rules) {
	var space [4 << 10]byte
	masked, count := mask(space[:0], set.JSON(), user)
	var own *Rules
	entry, rules := c.get(masked, func() *Rules {
		compiled := compile(set, user)
		// A compiled condition works for every user. If the user's id occurs elsewhere,
		// for example as the id of a rule, users cannot share the set.
		if isOnlyInConditions := compiled.personal == count; isOnlyInConditions {
			compiled.shared = len(masked) <= maxSharedBytes
			return compiled
		}
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

func (c *Cache) get(key []byte, compile func() *Rules) (e *Entry, rules *Rules) {
	for rules == nil { // repeat after an eviction during the compilation
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

func (c *Cache) fill(e *Entry, rules *Rules) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	if c.entries[e.key] == e {
		e.rules.Store(rules)
	}
}

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
	e = &Entry{key: string(key), size: len(key), since: c.taken}
	e.place = c.sized(e).PushFront(e)
	c.entries[e.key] = e
	c.size += e.size
	for c.size > c.limit {
		c.evict(c.victim())
	}
	return e
}

func (c *Cache) sized(e *Entry) *list.List { return &c.sizes[bits.Len(uint(e.size))] }

func (c *Cache) evict(e *Entry) {
	delete(c.entries, e.key)
	c.sized(e).Remove(e.place)
	c.size -= e.size
	e.key = "" // frees the memory while a caller keeps the entry
	e.rules.Store(nil)
}

const maxLook = 100

// victim returns the entry to evict. The cache must not be empty.
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

// leastRecentlyUsed moves up to limit used entries to the front, and returns the last
// entry.
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

const maskByte = "\x00"

// mask appends text with maskByte instead of each string that equals the user's id, and
// counts these strings.
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
