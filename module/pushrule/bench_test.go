package pushrule_test

import (
	"fmt"
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

func BenchmarkPut(b *testing.B) {
	for _, size := range []int{10, 100, 1000, 10_000} {
		var full pushrule.Ruleset
		for i := range size {
			if err := full.Put(pushrule.Room, fmt.Sprintf("!%d:example.org", i), plain(), pushrule.Position{}); err != nil {
				b.Fatal(err)
			}
		}
		for name, id := range map[string]string{"new": "!new:example.org", "replaced": "!0:example.org"} {
			b.Run(fmt.Sprintf("%s/rules=%d", name, size), func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					s := full
					if err := s.Put(pushrule.Room, id, plain(), pushrule.Position{After: "!1:example.org"}); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}
