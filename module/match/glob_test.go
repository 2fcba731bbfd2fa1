package match

import (
	"math/rand/v2"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"
)

// oracle matches by trying all possibilities, with memoization.
type oracle struct {
	pattern, value []rune
	failed         map[[2]int]bool
}

func (o *oracle) match(p, v int) bool {
	if o.failed[[2]int{p, v}] {
		return false
	}
	matched := false
	switch {
	case p == len(o.pattern):
		matched = v == len(o.value)
	case o.pattern[p] == '*':
		matched = o.match(p+1, v) || v < len(o.value) && o.match(p, v+1)
	case v < len(o.value) && (o.pattern[p] == '?' || sameFolded(o.pattern[p], o.value[v])):
		matched = o.match(p+1, v+1)
	}
	o.failed[[2]int{p, v}] = !matched
	return matched
}

func sameFolded(a, b rune) bool { return strings.EqualFold(string(a), string(b)) }

func oracleMatch(pattern string, value []rune) bool {
	o := oracle{[]rune(pattern), value, map[[2]int]bool{}}
	return o.match(0, 0)
}

func oracleWords(pattern, body string) bool {
	value := []rune(body)
	word := func(at int) bool {
		return at >= 0 && at < len(value) && value[at] < utf8.RuneSelf && wordBytes[value[at]]
	}
	for start := range len(value) + 1 {
		for end := start; end <= len(value); end++ {
			inside := word(start-1) && word(start) || word(end-1) && word(end)
			if !inside && oracleMatch(pattern, value[start:end]) {
				return true
			}
		}
	}
	return false
}

func FuzzGlob(f *testing.F) {
	for _, seed := range [][2]string{
		{"lunc?*", "Lunch plans"}, {"ex*ple", "An exciting triple-whammy"}, {"*a*a*b", "aaaaaaab"}, {"?", "é"}, {"", ""}, {"", "a b"},
		{"*?*", "a"}, {"a?b", "a\nb a?b"}, {"k", "\u212a"}, {"asb", "a\u017fb"}, {"caf\u00e9", "CAF\u00c9s"}, {"@room", "foo@room"}, {"c++", "c+++"},
		{"??*ab?cd*?", "xxabacabxcdy"}, {"\u0130", "i\u0307"}, {"\u1e9e*", "\u00df"}, {"a?a?b*", "aaaaaaaaab"}, {"ab*ab", "xab ab"},
	} {
		f.Add(seed[0], seed[1])
	}
	f.Fuzz(func(t *testing.T, pattern, text string) {
		if len(pattern) > 30 || len(text) > 60 || !utf8.ValidString(pattern) || !utf8.ValidString(text) {
			return
		}
		g := newGlob(pattern)
		if got, want := matchesAll(&g, text), oracleMatch(pattern, []rune(text)); got != want {
			t.Errorf("%q on the whole of %q: got %t", pattern, text, got)
		}
		b := readBody(text)
		want := oracleWords(pattern, text)
		if got := g.matchWords(&b, unlimited()); got != want {
			t.Errorf("%q between boundaries of %q: got %t", pattern, text, got)
		}
		if pattern != "" && !strings.Contains(pattern, "*") {
			s := newSegment(g.pattern)
			where := search{b.folded, &b, unlimited()}
			if got := where.scanShort(&s, 0, startBounded|endBounded) >= 0; got != want {
				t.Errorf("%q in one scan of %q: got %t", pattern, text, got)
			}
			if got := where.scanLong(&s, 0, startBounded|endBounded) >= 0; got != want {
				t.Errorf("%q in one scan of %q, with words of states: got %t", pattern, text, got)
			}
		}
		if got := findIndexed(pattern, text); got != want {
			t.Errorf("%q by the index of %q: got %t", pattern, text, got)
		}
	})
}

// The patterns need more than one word of bits, and the texts have many near matches.
func TestLongSegmentsAreFound(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(1, 2))
	found := 0
	for range 400 {
		text := make([]rune, 700)
		for i := range text {
			text[i] = []rune("aaaaaaaaaab\u00e9 ")[random.IntN(13)]
		}
		length := 1 + random.IntN(200)
		start := random.IntN(len(text) - length)
		pattern := []rune(string(text[start : start+length]))
		for i := range pattern {
			if random.IntN(3) > 0 {
				pattern[i] = '?'
			}
		}
		if random.IntN(2) == 0 {
			pattern[random.IntN(length)] = 'b'
		}
		if findsLong(t, pattern, text) {
			found++
		}
	}
	if found < 30 || found > 370 {
		t.Errorf("%d of 400 patterns are found", found)
	}
}

// findsLong tries a pattern without stars at every position.
func findsLong(t *testing.T, pattern, text []rune) (found bool) {
	t.Helper()
	boundary := func(at int) bool {
		word := func(at int) bool { return at >= 0 && at < len(text) && text[at] < utf8.RuneSelf && wordBytes[text[at]] }
		return !word(at-1) || !word(at)
	}
	var want [4]bool // without a star, and with stars before, after or on both sides
	for start := range len(text) - len(pattern) + 1 {
		same := true
		for i, r := range pattern {
			same = same && (r == '?' || r == text[start+i])
		}
		end := start + len(pattern)
		want[0] = want[0] || same && boundary(start) && boundary(end)
		want[1] = want[1] || same && boundary(end)
		want[2] = want[2] || same && boundary(start)
		want[3] = want[3] || same
	}
	b := readBody(string(text))
	for i, p := range []string{string(pattern), "*" + string(pattern), string(pattern) + "*", "*" + string(pattern) + "*"} {
		g := newGlob(p)
		if got := g.matchWords(&b, unlimited()); got != want[i] {
			t.Fatalf("%q in %q: got %t", p, string(text), got)
		}
	}
	return want[0]
}

func findIndexed(pattern, text string) bool {
	rules := []rule{{enabled: true, conditions: []condition{{op: matchesWords, key: wellKnown[slotBody], glob: newGlob(pattern)}}}}
	var x bodyIndex
	x.build(rules)
	e := Event{properties: []property{{name: "body", value: value{kind: textual, text: text}}}}
	e.slots[slotBody] = 0
	s := newSubject(&e, Facts{})
	return x.first(rules, &s, 1) == 0
}

func unlimited() *meter { return &meter{left: 1 << 40} }

func matchesAll(g *glob, text string) bool {
	s := newSubject(nil, Facts{})
	return s.matchesWhole(g, &property{value: value{kind: textual, text: text}})
}

func TestFoldingIsSimpleFolding(t *testing.T) {
	t.Parallel()
	for r := range unicode.MaxRune + 1 {
		for other := unicode.SimpleFold(r); other != r; other = unicode.SimpleFold(other) {
			if foldRune(r) != foldRune(other) {
				t.Fatalf("%q and %q are the same, but become %q and %q", r, other, foldRune(r), foldRune(other))
			}
		}
		if folded := foldRune(r); utf8.ValidRune(r) && !sameFolded(r, folded) {
			t.Fatalf("%q becomes %q, which is another character", r, folded)
		}
		if r < utf8.RuneSelf && foldRune(r) != unicode.ToLower(r) {
			t.Fatalf("%q becomes %q, want lower case", r, foldRune(r))
		}
	}
}
