package pushrule

import (
	"hash/maphash"
	"sync/atomic"
)

// knownSets is how many sets a [Known] remembers; each takes eight bytes.
const knownSets = 1 << 17

// Known reads sets and remembers which texts it found in order, by a hash of 62
// bits with a secret seed, so that the same text need not be looked through
// again. What it remembers is bounded: 1 MiB. It is safe for concurrent use.
type Known struct {
	seed  maphash.Seed
	marks []atomic.Uint64 // each in the place that it names
}

// looseMark is the bit of a mark that tells whether the set is loose; the others
// are those of the hash.
const looseMark = 1

// NewKnown returns one that knows nothing yet.
func NewKnown() *Known {
	return &Known{maphash.MakeSeed(), make([]atomic.Uint64, knownSets)}
}

// Read is the function [Read]. Sets with legacy rules are not remembered.
func (k *Known) Read(text string) (Ruleset, error) {
	trimmed := trim(text)
	mark := k.mark(trimmed)
	if found := k.place(mark).Load(); found&^looseMark == mark {
		return Ruleset{text: trimmed, loose: found&looseMark != 0}, nil
	}
	s, err := Read(text)
	if err == nil {
		k.remember(s, mark)
	}
	return s, err
}

// Add remembers a set that was not read but made, so that the first to read it
// finds it known.
func (k *Known) Add(s Ruleset) {
	if s.text != "" {
		k.remember(s, k.mark(s.text))
	}
}

func (k *Known) remember(s Ruleset, mark uint64) {
	if s.legacy {
		return
	}
	if s.loose {
		mark |= looseMark
	}
	k.place(mark).Store(mark)
}

// mark is that of a text that is not loose. It is never that of an empty place.
func (k *Known) mark(text string) uint64 {
	return maphash.String(k.seed, text)&^looseMark | 1<<63
}

func (k *Known) place(mark uint64) *atomic.Uint64 { return &k.marks[mark>>1%knownSets] }
