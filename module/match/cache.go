package match

import (
	"strings"
	"sync"

	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/pushrule"
)

// Cache compiles the rule sets of many users. It keeps compiled sets and finds
// them again by the bytes of a set. Sets that differ only in the id of the user,
// as default rules do, are one.
//
// It is safe for concurrent use.
type Cache struct {
	limit int

	mu     sync.RWMutex
	recent map[string]*cached // used since the last change of generations
	older  map[string]*cached // used in the generation before
	size   int                // bytes of the keys of recent
}

// cached is a set that is compiled when somebody first needs it.
type cached struct {
	once  sync.Once
	rules *Rules // nil: it is not the same for all users
}

// NewCache returns a cache for sets whose JSON has about limit bytes together,
// those that were used last. Compiled, a set takes three to seven times as many
// bytes as its JSON.
func NewCache(limit int) *Cache {
	return &Cache{limit: limit, recent: map[string]*cached{}}
}

// Rules returns a user's rule set, compiled. Evaluate it for this user only.
func (c *Cache) Rules(user mxid.UserID, set pushrule.Ruleset) *Rules {
	var space [4 << 10]byte
	masked, count := mask(space[:0], set.JSON(), user)
	shared := c.entry(masked)
	shared.once.Do(func() {
		rules := compile(set, user)
		if rules.personal == count {
			rules.shared = true
			shared.rules = rules
			return
		}
		// The user's id is at other places, such as a rule's id: the set is
		// nobody else's.
		own := c.ownEntry(user, set)
		own.once.Do(func() { own.rules = rules })
	})
	if shared.rules != nil {
		return shared.rules
	}
	own := c.ownEntry(user, set)
	own.once.Do(func() { own.rules = compile(set, user) })
	return own.rules
}

// ownEntry returns what is kept for a set that is only one user's.
func (c *Cache) ownEntry(user mxid.UserID, set pushrule.Ruleset) *cached {
	return c.entry([]byte(string(user) + maskByte + set.JSON()))
}

// maskByte is in no JSON text.
const maskByte = "\x00"

// mask appends a set's text with a byte in the place of each string that is the
// user's id, and returns how many these are.
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

// entry returns what is kept under a key.
func (c *Cache) entry(key []byte) *cached {
	c.mu.RLock()
	e, found := c.recent[string(key)]
	c.mu.RUnlock()
	if found {
		return e
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if e, found = c.recent[string(key)]; found {
		return e
	}
	if c.size+len(key) > c.limit/2 {
		c.older, c.recent, c.size = c.recent, map[string]*cached{}, 0
	}
	if e, found = c.older[string(key)]; !found {
		e = &cached{}
	}
	c.recent[string(key)] = e
	c.size += len(key)
	return e
}
