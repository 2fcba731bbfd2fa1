package main

import (
	"path/filepath"
	"strings"
	"testing"
)

// The commands run on a Redis without keys of the module.
func TestFindingNoKeysIsAnError(t *testing.T) {
	t.Parallel()
	for name, start := range map[string]func(*testing.T) *fixture{"single": onOne, "cluster": onCluster} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := start(t)
			b.wantNothing("check")
			b.register(alice)
			b.want(exitOK, "check", "-rate", "0") // no limit
			file := filepath.Join(t.TempDir(), "export")
			for _, args := range [][]string{{"check"}, {"check", "-json"}, {"repair"}, {"refresh-defaults"}, {"export", file}, {"export", "-"}} {
				b.wantNothing(append(args, "-key-prefix", "hs2:")...)
			}
			if left, err := filepath.Glob(file + "*"); err != nil || len(left) > 0 {
				t.Errorf("an export of nothing left %q, %v", left, err)
			}
		})
	}
}

func (b *fixture) wantNothing(args ...string) {
	b.t.Helper()
	if r := b.ctl(args...); r.status != exitFailure || strings.Contains(r.stdout, "No problems") || !strings.Contains(r.stderr, "there are no push rules or pushers under -key-prefix") {
		b.t.Errorf("%s: status %d\n%s%s", args, r.status, r.stdout, r.stderr)
	}
}
