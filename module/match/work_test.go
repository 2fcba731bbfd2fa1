package match

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/pushfx/pushfx/module/pushrule"
)

func workOf(pattern string, b *body) int {
	g, m := newGlob(pattern), unlimited()
	before := m.left
	g.matchWords(b, m)
	return before - m.left
}

// The bodies have many near matches. The work must be linear in the body and the
// pattern; a segment of more than 64 bytes may cost more for each byte of the body.
func TestPatternsTakeLinearWork(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(3, 4))
	repeat := func(parts []string, n int) string {
		var b strings.Builder
		for b.Len() < n {
			b.WriteString(parts[random.IntN(len(parts))])
		}
		return b.String()
	}
	bodies := [][]string{
		{"a"}, {"ſ"}, {"\u212a", "a"}, {"a", "a", "a", "a", "b"}, {"a b"}, {"a", "-"}, {"ß", "a", " "}, {"-aa"},
		{strings.Repeat("a", 80) + "b"}, {strings.Repeat("a", 80) + "b "}, {strings.Repeat("ſ", 80) + "b"},
	}
	patterns := [][]string{{"*a?b"}, {"*s?b"}, {"*a?b "}, {"a?"}, {"a"}, {"*", "a", "?"}, {"*a", "?"}, {"s?"}, {"?"}, {"-aa"}, {"a "}, {"k", "?", "*"}, {"*a*b"}}
	for _, patternParts := range patterns {
		for _, bodyParts := range bodies {
			b := readBody(repeat(bodyParts, 32<<10))
			for _, pattern := range []string{repeat(patternParts, 1000) + "*x", "*" + repeat(patternParts, 1000) + "x", repeat(patternParts, 1000)} {
				longest := 0
				for part := range strings.SplitSeq(pattern, "*") {
					longest = max(longest, len(part)/64)
				}
				limit := (2+longest)*len(b.folded) + 300*len(pattern)
				if work := workOf(pattern, &b); work > limit {
					t.Errorf("%.40q... on %.20q...: %d units of work, want at most %d", pattern, b.folded, work, limit)
				}
			}
		}
	}
}

type slowCase struct {
	name  string
	rules []string
	event string
	facts Facts
}

func slowRules(n int, members string) (rules []string) {
	for i := range n {
		rules = append(rules, fmt.Sprintf(`{"rule_id":"r%d","default":false,"enabled":true,"actions":[],%s}`, i, members))
	}
	return rules
}

// The cases spend their work in different ways. The test compares them with the first
// case.
func slowCases() []slowCase {
	const size = 59 << 10
	body := func(text string) string { return `{"content":{"body":` + quote(text) + `}}` }
	keyword := func(n int, pattern string) []string { return slowRules(n, `"pattern":`+quote(pattern)) }
	about := func(n int, key, pattern string) []string {
		return slowRules(n, fmt.Sprintf(`"conditions":[{"kind":"event_match","key":%s,"pattern":%s}]`, quote(key), quote(pattern)))
	}
	valued := func(text string) string { return `{"content":{"x":` + quote(text) + `}}` }
	as, kanji := strings.Repeat("a", size), strings.Repeat("日", 300)
	var words, members strings.Builder
	var globs []string
	for i := range 5000 {
		word := fmt.Sprintf("%05d", i*7919%100_000)
		words.WriteString(word)
		fmt.Fprintf(&members, `,%q:0`, word)
		globs = append(globs, keyword(1, "*"+word+"?x*")...)
	}
	return []slowCase{
		{"a plain scan", keyword(100, "*a?b*"), body(as), Facts{}},
		{"a short segment with a gap", keyword(100, strings.Repeat("a", 60)+"?b*zz"), body(as), Facts{}},
		{"a long segment with a gap", keyword(100, strings.Repeat("a", 900)+"?b*zz"), body(as), Facts{}},
		{"many segments", keyword(100, strings.Repeat("*a", 490)+"zz"), body("zz " + as), Facts{}},
		{"many segments, and a long s", keyword(100, strings.Repeat("*a", 490)+"zz"), body("ſ" + as), Facts{}},
		{"a long keyword", keyword(500, "*"+strings.Repeat("a", 326)+"b"), body(as), Facts{}},
		{"a long keyword, where bytes alternate", keyword(500, "*"+strings.Repeat("ba", 100)+"c"), body(strings.Repeat("ba", size/2)), Facts{}},
		{"grams that are all there", globs, body(words.String()), Facts{}},
		{"question marks, on a value", about(200, "content.x", strings.Repeat("?", 900)+"b"), valued(as[:1000]), Facts{}},
		{"stars, on a value", about(200, "content.x", strings.Repeat("*", 900)+"b"), valued(as[:100]), Facts{}},
		{"the start of a value", about(200, "content.x", kanji+"*b"), valued(kanji), Facts{}},
		{"the end of a value", about(200, "content.x", "*c"+kanji), valued(kanji), Facts{}},
		{"a short value", about(500, "content.x", "b*"), valued(as[:255]), Facts{}},
		{"an exact value", about(200, "content.x", kanji+"b"), valued(kanji), Facts{}},
		{"deep keys", about(50, "content"+strings.Repeat(".a", 400), "x"), `{"content":` + strings.Repeat(`{"a":`, 401) + `0` + strings.Repeat(`}`, 401) + `}`, Facts{}},
		{"keys in an event of many", about(500, "content.y.x", "x"), `{"content":{"x":0` + members.String() + `}}`, Facts{}},
		{"a long display name", slowRules(1, `"conditions":[{"kind":"contains_display_name"}]`), body(as), Facts{DisplayName: as[:size/2] + "b"}},
	}
}

// timePerUnit returns the least time of a unit of work, measured on a first evaluation.
func (d *slowCase) timePerUnit(t *testing.T) float64 {
	t.Helper()
	kind := pushrule.Content
	if strings.Contains(d.rules[0], `"conditions"`) {
		kind = pushrule.Override
	}
	set, err := pushrule.Read(`{"` + string(kind) + `":[` + strings.Join(d.rules, ",") + `]}`)
	if err != nil {
		t.Fatal(err)
	}
	event, err := ReadEvent(d.event)
	if err != nil {
		t.Fatal(err)
	}
	Compile(set).Evaluate(event, d.facts) // the event keeps its folded body
	const some = maxWork / 16
	least := math.Inf(1)
	for range 20 {
		r, s := Compile(set), newSubject(event, d.facts)
		s.meter.left = some
		start := time.Now()
		r.evaluate(&s)
		least = min(least, float64(time.Since(start))/float64(some-s.meter.left))
	}
	return least
}

// The test compares with the first case. A faster unit is no error.
func TestWorkUnitsTakeSimilarTime(t *testing.T) {
	if testing.Short() {
		t.Skip("measures times")
	}
	const limit = 3
	cases := slowCases()
	for i := range cases {
		usual := cases[0].timePerUnit(t)
		got := cases[i].timePerUnit(t)
		t.Logf("%s: a unit takes %.1f ns, %.1f times what it takes for %s", cases[i].name, got, got/usual, cases[0].name)
		if got > limit*usual {
			t.Errorf("%s: a unit takes %.1f ns, %.1f times what it takes for %s", cases[i].name, got, got/usual, cases[0].name)
		}
	}
}

// The keyword index: the work of an event does not grow with the user's keywords that its body lacks.
func TestKeywordsTakeWorkByTheBody(t *testing.T) {
	t.Parallel()
	const body = "Lunch is at noon, see you there! We meet at the old bridge beside the mill."
	event, err := ReadEvent(fmt.Sprintf(`{"type":"m.room.message","sender":"@bob:example.org","content":{"body":%q}}`, body))
	if err != nil {
		t.Fatal(err)
	}
	workWith := func(keywords int, pattern string) int {
		t.Helper()
		set := pushrule.ServerDefault("@alice:example.org")
		for i := range keywords {
			draft := pushrule.Draft{Actions: []pushrule.Action{`"notify"`}, Pattern: fmt.Sprintf(pattern, i)}
			if err := set.Put(pushrule.Content, fmt.Sprint(i), draft, pushrule.Position{}); err != nil {
				t.Fatal(err)
			}
		}
		s := newSubject(event, Facts{User: "@alice:example.org"})
		before := s.meter.left
		if result := Compile(set).evaluate(&s); result.Incomplete() {
			t.Errorf("%d keywords: incomplete", keywords)
		}
		return before - s.meter.left
	}
	for name, pattern := range map[string]string{"words": "keyword%d", "phrases": "project %d", "parts of words": "*keyword%d*"} {
		few, many := workWith(10, pattern), workWith(2000, pattern)
		if most := few + placeWork*len(body); many > most { // a place is looked up for each byte at most
			t.Errorf("%s: 10 take %d units of work, 2000 take %d, want %d at most", name, few, many, most)
		}
	}
}
