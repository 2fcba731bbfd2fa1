package pushrule

import (
	"hash/maphash"
	"strings"
	"sync/atomic"

	"github.com/pushfx/pushfx/module/strictjson"
)

// cachedTexts is how many sets and rules a [ReadCache] remembers; each takes
// eight bytes.
const cachedTexts = 1 << 17

// ReadCache reads sets and remembers which texts it has read without an error, by
// a hash of 62 bits with a secret seed, so that the same text need not be read
// again. What it remembers is bounded: 1 MiB. It is safe for concurrent use.
type ReadCache struct {
	seed  maphash.Seed
	marks []atomic.Uint64 // each in the place that it names
}

// A mark is the hash of a text. One bit says whether a set is canonical, another
// tells a mark from an empty place.
const (
	canonicalMark = 1
	usedMark      = 1 << 63

	bitsOfMark = 1 // those that tell of the text, not of its hash
)

// NewReadCache returns an empty cache.
func NewReadCache() *ReadCache {
	return &ReadCache{maphash.MakeSeed(), make([]atomic.Uint64, cachedTexts)}
}

// Read is the function [Read]. Sets with legacy rules are not remembered.
func (c *ReadCache) Read(text string) (Ruleset, error) {
	set := strings.Trim(text, " \t\r\n") // an error tells where it is in the whole
	mark := c.mark(set)
	if found, cached := c.lookUp(mark); cached {
		return Ruleset{document{text: set, canonical: found&canonicalMark != 0}}, nil
	}
	if c.hasOnlyCachedRules(set) {
		s := Ruleset{document{text: set, canonical: true}}
		c.store(mark | canonicalMark)
		return s, nil
	}
	s, err := Read(text)
	if err == nil {
		c.Add(s)
	}
	return s, err
}

// Add remembers a set that was made, so that the first to read it finds it.
func (c *ReadCache) Add(s Ruleset) {
	switch mark := c.mark(s.doc.text); {
	case s.doc.text == "" || s.doc.legacy:
	case s.doc.canonical:
		c.store(mark | canonicalMark)
	default:
		c.store(mark)
	}
}

// hasOnlyCachedRules reports whether a text is a canonical set of rules that were
// read before, in this or in another set, or can be read now. Most rules of most
// users are the same.
func (c *ReadCache) hasOnlyCachedRules(text string) bool {
	before := "{"
	for _, kind := range Kinds() {
		list, found := strings.CutPrefix(text, before+listStart(kind))
		if !found {
			return false
		}
		if text, found = c.cutRules(list, kind); !found {
			return false
		}
		before = "],"
	}
	return text == "]}"
}

// cutRules returns what follows the rules of a kind.
func (c *ReadCache) cutRules(list string, kind Kind) (rest string, ok bool) {
	if strings.HasPrefix(list, "]") {
		return list, true
	}
	for {
		w := strictjson.Walk(list)
		rule := w.Skip()
		if !strings.HasPrefix(rule, ruleStart) || !c.isCanonicalRule(rule, kind) {
			return "", false
		}
		var more bool
		if rest, more = strings.CutPrefix(list[len(rule):], ","); !more {
			return rest, true
		}
		list = rest
	}
}

// isCanonicalRule reports whether a text is a rule that may be part of a canonical
// set without legacy rules.
func (c *ReadCache) isCanonicalRule(text string, kind Kind) bool {
	mark := c.mark(text) ^ uint64(kind.index()+1)<<bitsOfMark // not that of a set, nor of another kind
	if _, cached := c.lookUp(mark); cached {
		return true
	}
	if rule, ok := canonicalRule(text, kind); !ok || IsLegacy(rule.ID) {
		return false
	}
	c.store(mark)
	return true
}

func (c *ReadCache) mark(text string) uint64 {
	return maphash.String(c.seed, text)&^canonicalMark | usedMark
}

func (c *ReadCache) place(mark uint64) *atomic.Uint64 {
	return &c.marks[mark>>bitsOfMark%cachedTexts]
}

func (c *ReadCache) lookUp(mark uint64) (found uint64, cached bool) {
	found = c.place(mark).Load()
	return found, found&^canonicalMark == mark
}

func (c *ReadCache) store(mark uint64) { c.place(mark).Store(mark) }
