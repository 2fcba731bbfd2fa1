package match

import (
	"cmp"
	"hash/maphash"
	"math/bits"
	"slices"
	"strings"
)

// bodyIndex finds matching rules in one pass over a body. Each rule is in the index
// under a word, or a gram (a substring of up to gramBytes bytes), that every matching
// body contains.
type bodyIndex struct {
	least  int32                // the first rule of the index, or the number of all rules
	always []int32              // rules without a word or gram, in order
	worded []int32              // rules under words, in order
	words  table                // rules by the hash of a word
	grams  [gramBytes + 1]table // rules by grams of each size
	places int32                // number of places in all tables
}

// first returns the first matching rule before bound, or bound.
func (x *bodyIndex) first(rules []rule, s *subject, bound int32) int32 {
	if x.least >= bound {
		return bound
	}
	body := s.event.body()
	if body == nil {
		return bound
	}
	bound = firstOf(x.always, rules, s, bound)
	search := indexSearch{index: x, rules: rules, subject: s, bound: bound}
	return search.run(body)
}

const gramBytes = 4

type table struct {
	shift  uint8
	filter []uint64 // a bit for each possible key
	places map[uint64]place
	rules  []int32
}

type place struct {
	start, end int32 // range in table.rules
	number     int32 // the place's bit in indexSearch.tested
}

// firstOf returns the first candidate before bound that matches, or bound.
func firstOf(candidates []int32, rules []rule, s *subject, bound int32) int32 {
	for _, i := range candidates {
		if i >= bound {
			break
		}
		s.meter.spend(rules[i].work())
		if rules[i].holds(s) {
			return i
		}
	}
	return bound
}

type indexSearch struct {
	index   *bodyIndex
	rules   []rule
	subject *subject
	bound   int32 // the first matching rule so far

	// tested has a bit for each place whose rules were tested, so that a repeated word
	// does not test them again.
	tested [160]uint64
	extra  []uint64 // the rest of tested, for more places
}

func (f *indexSearch) run(b *body) int32 {
	if n := int(f.index.places+63) / 64; n > len(f.tested) {
		f.extra = make([]uint64, n-len(f.tested))
	}
	if b.lookalikes != nil { // the words of the body and of a pattern may be split differently
		f.bound = firstOf(f.index.worded, f.rules, f.subject, f.bound)
	} else if t := &f.index.words; len(t.rules) > 0 {
		f.subject.meter.spend(filterWork * len(b.words))
		for _, hash := range b.words {
			if t.mayHave(hash) {
				f.test(t, hash)
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

func (f *indexSearch) scan(t *table, size int, text string) {
	if f.subject.meter.isEmpty() {
		return
	}
	f.subject.meter.spend(filterWork * len(text))
	var gram uint32
	for i := range len(text) {
		gram = gram>>8 | uint32(text[i])<<24
		if i+1 < size {
			continue
		}
		if key := gramKey(gram, size); t.mayHave(key) {
			f.test(t, key)
		}
	}
}

func gramKey(four uint32, size int) uint64 { return uint64(four >> (8 * (gramBytes - size))) }

// filterFactor is odd and random for each process, so that attackers cannot choose keys
// with the same bit in a filter. The high bits of its product with a key are a
// universal hash ("multiply-shift").
var filterFactor = maphash.String(seed, "filter") | 1

// mayHave reports false only if the table has no rules for the key.
func (t *table) mayHave(key uint64) bool {
	at := key * filterFactor >> t.shift
	return t.filter[at>>6]&(1<<(at&63)) != 0
}

func (f *indexSearch) test(t *table, key uint64) {
	if f.subject.meter.isEmpty() {
		return
	}
	f.subject.meter.spend(placeWork)
	p, found := t.places[key]
	if !found || f.wasTested(p.number) {
		return
	}
	f.bound = firstOf(t.rules[p.start:p.end], f.rules, f.subject, f.bound)
}

func (f *indexSearch) wasTested(number int32) bool {
	words := f.tested[:]
	if at := int(number) / 64; at >= len(f.tested) {
		words, number = f.extra, number-int32(64*len(f.tested))
	}
	word, bit := &words[number/64], uint64(1)<<(number%64)
	tested := *word&bit != 0
	*word |= bit
	return tested
}

func (x *bodyIndex) build(rules []rule) {
	x.least = int32(len(rules))
	var choices []choice
	usage := map[fragment]int{}
	for i := range rules {
		condition := rules[i].bodyCondition()
		if condition == nil || !rules[i].enabled || rules[i].neverMatches() {
			continue
		}
		x.least = min(x.least, int32(i))
		fragments := condition.glob.fragments()
		for _, f := range fragments {
			usage[f]++
		}
		choices = append(choices, choice{rule: int32(i), fragments: fragments})
	}
	var filed [gramBytes + 1][]filing // by size of the gram, 0 for words
	for _, c := range choices {
		if len(c.fragments) == 0 {
			x.always = append(x.always, c.rule)
			continue
		}
		best := c.rarest(usage)
		filed[best.size] = append(filed[best.size], filing{best.key, c.rule})
		if best.size == 0 {
			x.worded = append(x.worded, c.rule)
		}
	}
	x.words = x.newTable(filed[0])
	for size := 1; size <= gramBytes; size++ {
		x.grams[size] = x.newTable(filed[size])
	}
}

type choice struct {
	rule      int32
	fragments []fragment
}

type fragment struct {
	size int // bytes of a gram, 0 for a whole word
	key  uint64
}

func (c choice) rarest(usage map[fragment]int) fragment {
	return slices.MinFunc(c.fragments, func(a, b fragment) int { return cmp.Compare(usage[a], usage[b]) })
}

type filing struct {
	key  uint64
	rule int32
}

// newTable builds a table from filings in the order of the rules.
func (x *bodyIndex) newTable(filings []filing) table {
	if len(filings) == 0 {
		return table{}
	}
	filterBits := 8 << bits.Len(uint(2*len(filings)))
	t := table{filter: make([]uint64, (filterBits+63)/64), places: map[uint64]place{}}
	t.shift = uint8(64 - bits.Len(uint(64*len(t.filter)-1)))
	slices.SortStableFunc(filings, func(a, b filing) int { return cmp.Compare(a.key, b.key) })
	for start := 0; start < len(filings); {
		key, end := filings[start].key, start
		for ; end < len(filings) && filings[end].key == key; end++ {
			t.rules = append(t.rules, filings[end].rule)
		}
		t.places[key] = place{int32(start), int32(end), x.places}
		at := key * filterFactor >> t.shift
		t.filter[at>>6] |= 1 << (at & 63)
		x.places++
		start = end
	}
	return t
}

// maxFragments is the maximum number of fragments of a pattern. It limits the time to
// compile a set.
const maxFragments = 32

func (g *glob) fragments() []fragment {
	if words := g.words(); len(words) > 0 {
		return words
	}
	return g.grams()
}

func (g *glob) words() (list []fragment) {
	for start := 0; start < len(g.pattern) && len(list) < maxFragments; {
		end := start
		for end < len(g.pattern) && wordBytes[g.pattern[end]] {
			end++
		}
		if end > start && !isWildcardAt(g.pattern, start-1) && !isWildcardAt(g.pattern, end) {
			list = append(list, fragment{0, wordHash(g.pattern[start:end])})
		}
		start = end + 1
	}
	return list
}

func isWildcardAt(pattern string, at int) bool {
	return at >= 0 && at < len(pattern) && (pattern[at] == '*' || pattern[at] == '?')
}

// grams returns some grams without wildcards, all of one size.
func (g *glob) grams() (list []fragment) {
	parts := strings.FieldsFuncSeq(g.pattern, func(r rune) bool { return r == '*' || r == '?' })
	size, total := 0, 0
	for part := range parts {
		if larger := min(len(part), gramBytes); larger > size {
			size, total = larger, 0
		}
		total += max(0, len(part)-size+1)
	}
	if total == 0 {
		return nil
	}
	list = make([]fragment, 0, min(total, maxFragments))
	step, i := (total+maxFragments-1)/maxFragments, 0
	for part := range parts {
		for start := 0; start+size <= len(part); start++ {
			if i%step == 0 {
				list = append(list, newGram(part[start:start+size]))
			}
			i++
		}
	}
	return list
}

func newGram(text string) fragment {
	key := uint64(0)
	for i := range len(text) {
		key |= uint64(text[i]) << (8 * i)
	}
	return fragment{len(text), key}
}
