package pushrule

import (
	"hash/maphash"
	"sync/atomic"
)

// knownSets is how many sets a [Known] remembers; each takes eight bytes.
const knownSets = 1 << 17

// Known reads sets and remembers which texts it found in order, by a hash of 64
// bits with a secret seed, so that the same text need not be looked through
// again. What it remembers is bounded: 1 MiB. It is safe for concurrent use.
type Known struct {
	seed   maphash.Seed
	hashes []atomic.Uint64 // each in the place that its low bits name
}

// NewKnown returns one that knows nothing yet.
func NewKnown() *Known {
	return &Known{maphash.MakeSeed(), make([]atomic.Uint64, knownSets)}
}

// Read is the function [Read]. Only sets as the service writes them, without
// legacy rules, are remembered.
func (k *Known) Read(text string) (Ruleset, error) {
	text = trim(text)
	hash := maphash.String(k.seed, text)
	if k.place(hash).Load() == hash {
		return Ruleset{text: text}, nil
	}
	s, err := Read(text)
	if err == nil && !s.loose && !s.legacy {
		k.place(hash).Store(hash)
	}
	return s, err
}

// Add remembers a set that was not read but made, so that the first to read it
// finds it known.
func (k *Known) Add(s Ruleset) {
	if !s.loose && !s.legacy && s.text != "" {
		hash := maphash.String(k.seed, s.text)
		k.place(hash).Store(hash)
	}
}

func (k *Known) place(hash uint64) *atomic.Uint64 { return &k.hashes[hash%knownSets] }
