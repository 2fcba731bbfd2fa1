package main

import (
	"slices"
	"strings"
	"testing"
)

func TestLinesAreBrokenToFit(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name, value string
		want        []string
	}{
		{"nothing", "", []string{"label"}},
		{"short", "value", []string{"label  value"}},
		{"just as wide", strings.Repeat("x", 33), []string{"label  " + strings.Repeat("x", 33)}},
		{"a column too wide", strings.Repeat("x", 34), []string{"label  " + strings.Repeat("x", 33), "       x"}},
		{"behind a comma", `{"kind":"event_match","key":"type","pattern":"m.room.member"}`, []string{
			`label  {"kind":"event_match",`, `       "key":"type",`, `       "pattern":"m.room.member"}`,
		}},
		{"wide characters", strings.Repeat("\u5b57", 17), []string{"label  " + strings.Repeat("\u5b57", 16), "       \u5b57"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			p := &page{width: leastWidth}
			p.line("label  ", test.value)
			if got := strings.Split(strings.TrimSuffix(p.text.String(), "\n"), "\n"); !slices.Equal(got, test.want) {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
}
