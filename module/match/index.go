package match

import (
	"cmp"
	"math/bits"
	"slices"
)

// bodyIndex finds the rules that ask for something in the body, in one pass
// over it: each is filed under a word, or under a few bytes, that a body must
// have for the rule's pattern to match.
type bodyIndex struct {
	all    []int32              // the rules of the index, in order
	always []int32              // those that are filed under nothing, in order
	words  table                // by a whole word
	grams  [gramBytes + 1]table // by this many bytes anywhere
	filed  int                  // places under which rules are filed
}

const gramBytes = 4

// table finds rules by a hash.
type table struct {
	shift   uint8
	filter  []uint64 // a bit for each hash that may be there
	entries []tableEntry
	rules   []int32
}

// tableEntry is a place under which rules are filed. It is free where it has
// none.
type tableEntry struct {
	hash       uint64
	start, end int32 // its rules
	place      int32 // its number among all places of the index
}

// first returns the first rule before bound that matches, bound where none
// does.
func (x *bodyIndex) first(rules []rule, s *subject, bound int32) int32 {
	if len(x.all) == 0 || x.all[0] >= bound {
		return bound
	}
	if p := s.event.slot(slotBody); p == nil || p.value.kind != textual {
		return bound
	}
	if len(s.event.body.lookalikes) > 0 { // its words are not where a pattern has them
		return firstOf(x.all, rules, s, bound)
	}
	bound = firstOf(x.always, rules, s, bound)
	search := indexSearch{index: x, rules: rules, subject: s, bound: bound}
	return search.run()
}

// firstOf looks at rules one by one.
func firstOf(candidates []int32, rules []rule, s *subject, bound int32) int32 {
	for _, i := range candidates {
		if i >= bound {
			break
		}
		if rules[i].holds(s) {
			return i
		}
	}
	return bound
}

// indexSearch is one pass over a body.
type indexSearch struct {
	index   *bodyIndex
	rules   []rule
	subject *subject
	bound   int32 // the first rule that matches so far

	// seen are the places whose rules were looked at. They are looked at once,
	// however often the body has the word, so that the search is linear.
	seen  [160]uint64
	extra []uint64 // for places beyond those
}

func (f *indexSearch) run() int32 {
	b := &f.subject.event.body
	if n := (f.index.filed + 63) / 64; n > len(f.seen) {
		f.extra = make([]uint64, n-len(f.seen))
	}
	if len(f.index.words.rules) > 0 {
		for _, hash := range b.words {
			if f.index.words.mayHave(hash) {
				f.lookAt(&f.index.words, hash)
			}
		}
	}
	for size := 1; size <= gramBytes; size++ {
		if t := &f.index.grams[size]; len(t.rules) > 0 {
			f.scan(t, size, b.folded)
		}
	}
	return f.bound
}

// scan looks for all grams of a size.
func (f *indexSearch) scan(t *table, size int, text string) {
	var gram uint32
	for i := range len(text) {
		gram = gram>>8 | uint32(text[i])<<24
		if i+1 < size {
			continue
		}
		if hash := gramHash(gram >> (8 * (gramBytes - size))); t.mayHave(hash) {
			f.lookAt(t, hash)
		}
	}
}

func gramHash(gram uint32) uint64 { return (uint64(gram) + 1) * 0x9e3779b97f4a7c15 }

// mayHave reports whether the table may have rules for a hash.
func (t *table) mayHave(hash uint64) bool {
	at := hash >> t.shift
	return t.filter[at>>6]&(1<<(at&63)) != 0
}

// lookAt looks at the rules that are filed under a hash.
func (f *indexSearch) lookAt(t *table, hash uint64) {
	e := t.find(hash)
	if e.start == e.end || f.wasSeen(e.place) {
		return
	}
	f.bound = firstOf(t.rules[e.start:e.end], f.rules, f.subject, f.bound)
}

func (f *indexSearch) wasSeen(place int32) bool {
	words := f.seen[:]
	if at := int(place) / 64; at >= len(f.seen) {
		words, place = f.extra, place-int32(64*len(f.seen))
	}
	word, bit := &words[place/64], uint64(1)<<(place%64)
	seen := *word&bit != 0
	*word |= bit
	return seen
}

// find returns the entry of a hash or a free one.
func (t *table) find(hash uint64) *tableEntry {
	mask := len(t.entries) - 1
	at := int(hash>>32) & mask
	for t.entries[at].start != t.entries[at].end && t.entries[at].hash != hash {
		at = (at + 1) & mask
	}
	return &t.entries[at]
}

// build files all rules.
func (x *bodyIndex) build(rules []rule) {
	var choices []choice
	usage := map[fragment]int{}
	for i := range rules {
		condition := rules[i].bodyCondition()
		if condition == nil || !rules[i].enabled || rules[i].neverMatches() {
			continue
		}
		x.all = append(x.all, int32(i))
		fragments := condition.glob.fragments()
		for _, f := range fragments {
			usage[f]++
		}
		choices = append(choices, choice{rule: int32(i), fragments: fragments})
	}
	var filed [gramBytes + 1][]filing // under whole words at 0
	for _, c := range choices {
		if len(c.fragments) == 0 {
			x.always = append(x.always, c.rule)
			continue
		}
		best := c.rarest(usage)
		filed[best.size] = append(filed[best.size], filing{best.hash, c.rule})
	}
	x.words = x.newTable(filed[0])
	for size := 1; size <= gramBytes; size++ {
		x.grams[size] = x.newTable(filed[size])
	}
}

// choice is a rule and all that it may be filed under.
type choice struct {
	rule      int32
	fragments []fragment
}

// fragment is something that a body must have.
type fragment struct {
	size int // bytes of a gram, 0 for a whole word
	hash uint64
}

// rarest returns the fragment that the fewest patterns have: a whole word if
// there is one, else the largest.
func (c choice) rarest(usage map[fragment]int) fragment {
	return slices.MinFunc(c.fragments, func(a, b fragment) int {
		if isWord, other := a.size == 0, b.size == 0; isWord != other {
			if isWord {
				return -1
			}
			return 1
		}
		return cmp.Or(cmp.Compare(b.size, a.size), cmp.Compare(usage[a], usage[b]))
	})
}

// filing files a rule under a hash.
type filing struct {
	hash uint64
	rule int32
}

// newTable makes a table. The filings are in the order of the rules.
func (x *bodyIndex) newTable(filings []filing) table {
	if len(filings) == 0 {
		return table{}
	}
	size := 1 << bits.Len(uint(2*len(filings)))
	t := table{entries: make([]tableEntry, size), filter: make([]uint64, max(1, size*8/64))}
	t.shift = uint8(64 - bits.Len(uint(64*len(t.filter)-1)))
	slices.SortStableFunc(filings, func(a, b filing) int { return cmp.Compare(a.hash, b.hash) })
	for start := 0; start < len(filings); {
		hash, end := filings[start].hash, start
		for ; end < len(filings) && filings[end].hash == hash; end++ {
			t.rules = append(t.rules, filings[end].rule)
		}
		*t.find(hash) = tableEntry{hash, int32(start), int32(end), int32(x.filed)}
		at := hash >> t.shift
		t.filter[at>>6] |= 1 << (at & 63)
		x.filed++
		start = end
	}
	return t
}

// fragments returns what a body must have for the pattern to match: the words
// that the pattern has whole, which are whole in the body too, and of what
// else it has the grams.
func (g *glob) fragments() (list []fragment) {
	for i := range g.segments {
		s := &g.segments[i]
		for j, p := range s.pieces {
			startsWhole := i == 0 && j == 0 && p.skip == 0 && !g.leadStar
			endsWhole := i == len(g.segments)-1 && j == len(s.pieces)-1 && s.tail == 0 && !g.tailStar
			list = appendWords(list, p.text, startsWhole, endsWhole)
			list = appendGrams(list, p.text)
		}
	}
	return list
}

// appendWords appends the words that are whole in a piece of a pattern: with a
// word boundary at either side, or at an end of the pattern, which must match
// at a word boundary.
func appendWords(list []fragment, text string, startsWhole, endsWhole bool) []fragment {
	for start := 0; start < len(text); {
		end := start
		for end < len(text) && wordBytes[text[end]] {
			end++
		}
		whole := (start > 0 || startsWhole) && (end < len(text) || endsWhole)
		if end > start && whole {
			list = append(list, fragment{0, wordHash(text, start, end)})
		}
		start = end + 1
	}
	return list
}

// appendGrams appends the grams of a piece of a pattern, the largest it has.
func appendGrams(list []fragment, text string) []fragment {
	size := min(gramBytes, len(text))
	var gram uint32
	for i := range len(text) {
		gram = gram>>8 | uint32(text[i])<<24
		if i+1 >= size {
			list = append(list, fragment{size, gramHash(gram >> (8 * (gramBytes - size)))})
		}
	}
	return list
}
