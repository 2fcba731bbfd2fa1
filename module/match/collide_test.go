package match_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/pushfx/pushfx/module/match"
)

func asOthers(t *testing.T, chosen, others func()) {
	t.Helper()
	took := func(f func()) time.Duration {
		start := time.Now()
		f()
		return time.Since(start)
	}
	slow, usual := took(chosen), took(others)
	for range 100 { // on a busy machine, most times are too long
		if slow <= 8*usual {
			return
		}
		slow, usual = min(slow, took(chosen)), min(usual, took(others))
	}
	t.Errorf("chosen ones take %v, others %v", slow, usual)
}

// The names collide under a hash that does not mix high bits into low bits.
func TestCollidingPropertyNamesAreNotSlow(t *testing.T) {
	const n, conditions = 4000, 500
	evaluate := func(name func(part string) string) func() {
		names := make([]string, n+conditions)
		for i := range names {
			names[i] = name(string([]byte{'a' + byte(i/676), 'a' + byte(i/26%26), 'a' + byte(i%26)}))
		}
		rules := make([]string, conditions)
		for i := range rules {
			rules[i] = rule(fmt.Sprint(i), `"conditions":[{"kind":"event_match","key":"content.`+names[n+i]+`","pattern":"x"}]`)
		}
		set := match.Compile(readSet(t, `{"override":[`+strings.Join(rules, ",")+`]}`))
		e := readEvent(t, `{"content":{"`+strings.Join(names[:n], `":0,"`)+`":0}}`)
		return func() { set.Evaluate(e, match.Facts{}) }
	}
	asOthers(t, evaluate(func(s string) string { return s + "abcde" }), evaluate(func(s string) string { return "abcde" + s }))
}

// The keywords collide under a hash without a seed.
func TestCollidingKeywordsAreNotSlow(t *testing.T) {
	const n, room = 9900, 1 << 15
	bucket := func(gram string) uint64 {
		key := uint64(gram[0]) | uint64(gram[1])<<8 | uint64(gram[2])<<16 | uint64(gram[3])<<24
		return (key + 1) * 0x9e3779b97f4a7c15 >> 32 % room
	}
	const letters = "abcdefghijklmnopqrstuvwxyz0123456789"
	var chosen, others []string
	for i := range len(letters) * len(letters) * len(letters) * len(letters) {
		gram := string([]byte{letters[i%36], letters[i/36%36], letters[i/36/36%36], letters[i/36/36/36]})
		if bucket(gram) < 600 {
			chosen = append(chosen, gram)
		} else if i%64 == 0 {
			others = append(others, gram)
		}
	}
	evaluate := func(grams []string) func() {
		rules := match.Compile(hostileSet(t, n, func(i int) string { return "*" + grams[i] + "*" }))
		e := readEvent(t, bodyEvent(strings.Join(grams[n:n+6000], " ")))
		return func() { rules.Evaluate(e, match.Facts{}) }
	}
	asOthers(t, evaluate(chosen), evaluate(others))
}
