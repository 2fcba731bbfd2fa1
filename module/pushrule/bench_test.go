package pushrule_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/pushfx/pushfx/module/pushrule"
)

func BenchmarkReadDefaults(b *testing.B) {
	defaults := pushrule.ServerDefault(modelUser)
	text := encode(&defaults)
	b.SetBytes(int64(len(text)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := pushrule.Read(text); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkAppendJSONOfAChangedSet(b *testing.B) {
	s := pushrule.ServerDefault(modelUser)
	var text []byte
	b.ReportAllocs()
	for b.Loop() {
		text = s.AppendJSON(text[:0])
	}
	b.SetBytes(int64(len(text)))
}

func roomSet(b *testing.B, size int) string {
	b.Helper()
	rules := make([]string, size)
	for i := range rules {
		rule := pushrule.Rule{ID: fmt.Sprintf("!%d:example.org", i), Enabled: true, Actions: []pushrule.Action{`"notify"`}}
		rules[i] = string(rule.AppendJSON(nil, pushrule.Room))
	}
	return `{"override":[],"content":[],"room":[` + strings.Join(rules, ",") + `],"sender":[],"underride":[]}`
}

func BenchmarkEdits(b *testing.B) {
	const room = pushrule.Room
	for _, size := range []int{10, 100, 1000, 10_000} {
		full, err := pushrule.Read(roomSet(b, size))
		if err != nil {
			b.Fatal(err)
		}
		last := fmt.Sprintf("!%d:example.org", size-1)
		for name, edit := range map[string]func(*pushrule.Ruleset) error{
			"put new": func(s *pushrule.Ruleset) error {
				return s.Put(room, "!new:example.org", plain(), pushrule.Position{})
			},
			"put new behind": func(s *pushrule.Ruleset) error {
				return s.Put(room, "!new:example.org", plain(), pushrule.Position{After: last})
			},
			"replace":     func(s *pushrule.Ruleset) error { return s.Put(room, last, plain(), pushrule.Position{}) },
			"set enabled": func(s *pushrule.Ruleset) error { return s.SetEnabled(room, last, false) },
			"delete":      func(s *pushrule.Ruleset) error { return s.Delete(room, last) },
		} {
			b.Run(fmt.Sprintf("%s/rules=%d", name, size), func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					s := full
					if err := edit(&s); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}
