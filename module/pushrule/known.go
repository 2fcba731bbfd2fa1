package pushrule

import (
	"hash/maphash"
	"strings"
	"sync/atomic"

	"github.com/pushfx/pushfx/module/strictjson"
)

// knownSets is how many sets and rules a [Known] remembers; each takes eight
// bytes.
const knownSets = 1 << 17

// Known reads sets and remembers which texts it found in order, by a hash of 61
// bits with a secret seed, so that the same text need not be looked through
// again. What it remembers is bounded: 1 MiB. It is safe for concurrent use.
type Known struct {
	seed  maphash.Seed
	marks []atomic.Uint64 // each in the place that it names
}

// The bits of a mark that tell of the set or rule; the others are those of the
// hash.
const (
	looseMark = 1 << iota
	plainMark

	bitsOfMark = iota
	maskOfMark = 1<<bitsOfMark - 1
)

// NewKnown returns one that knows nothing yet.
func NewKnown() *Known {
	return &Known{maphash.MakeSeed(), make([]atomic.Uint64, knownSets)}
}

// Read is the function [Read]. Sets with legacy rules are not remembered.
func (k *Known) Read(text string) (Ruleset, error) {
	trimmed := trim(text)
	mark := k.mark(trimmed)
	if found := k.place(mark).Load(); found&^maskOfMark == mark {
		return Ruleset{text: trimmed, loose: found&looseMark != 0, plain: found&plainMark != 0}, nil
	}
	if plain, ok := k.isMadeOfKnown(trimmed); ok {
		s := Ruleset{text: trimmed, plain: plain}
		k.remember(s, mark)
		return s, nil
	}
	s, err := Read(text)
	if err == nil {
		k.remember(s, mark)
	}
	return s, err
}

// isMadeOfKnown reports whether a set is as the service writes it and has only
// rules that were found in order before, in this or in another set, or are so
// now. Most rules of most users are the same. Plain says whether the set is.
func (k *Known) isMadeOfKnown(text string) (plain, ok bool) {
	before := "{"
	plain = true
	for i, kind := range Kinds() {
		rest, found := strings.CutPrefix(text, before+`"`+string(kind)+`":[`)
		if !found {
			return false, false
		}
		rest, plainList, ok := k.cutRules(rest, i, kind)
		if !ok {
			return false, false
		}
		text, plain, before = rest, plain && plainList, "],"
	}
	return plain, text == "]}"
}

// cutRules returns what follows the rules of a kind, and whether all are plain.
func (k *Known) cutRules(text string, index int, kind Kind) (rest string, plain, ok bool) {
	if strings.HasPrefix(text, "]") {
		return text, true, true
	}
	for plain = true; ; {
		w := strictjson.Walk(text)
		rule := w.Skip()
		if !strings.HasPrefix(text, "{") {
			return "", false, false
		}
		plainRule, ok := k.isKnownRule(rule, index, kind)
		if !ok {
			return "", false, false
		}
		plain = plain && plainRule
		if rest, ok = strings.CutPrefix(text[len(rule):], ","); !ok {
			return rest, plain, true
		}
		text = rest
	}
}

// isKnownRule reports whether a rule of a kind is in order, and plain. What is
// the text of one that was, ends where that one did.
func (k *Known) isKnownRule(text string, index int, kind Kind) (plain, ok bool) {
	mark := k.mark(text) ^ uint64(index+1)<<bitsOfMark
	if found := k.place(mark).Load(); found&^maskOfMark == mark {
		return found&plainMark != 0, true
	}
	var s Ruleset
	w := strictjson.Walk(text)
	if !strictjson.Valid(text) || !s.lookAtRule(&w, kind) || s.loose || s.legacy {
		return false, false
	}
	known := mark
	if plain = isPlainRule(text); plain {
		known |= plainMark
	}
	k.place(mark).Store(known)
	return plain, true
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
	if s.plain {
		mark |= plainMark
	}
	k.place(mark).Store(mark)
}

// mark is that of a text that is not loose. It is never that of an empty place.
func (k *Known) mark(text string) uint64 {
	return maphash.String(k.seed, text)&^maskOfMark | 1<<63
}

func (k *Known) place(mark uint64) *atomic.Uint64 { return &k.marks[mark>>bitsOfMark%knownSets] }
