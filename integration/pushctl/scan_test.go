package main

import (
	"bytes"
	"context"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pushfx/pushfx/module/unread/fold"
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

// Hosts with unread counts alone have stored something, so that the flags name their Redis.
func TestUnreadCountsAloneAreChecked(t *testing.T) {
	t.Parallel()
	b := onOne(t)
	b.do("RPUSH", b.keys.Unread(alice), fold.Op{Kind: fold.Read, Room: "!r", Position: 1}.Text())
	b.says("1 user with unread counts", exitOK, "check")
	b.wantNothing("export", filepath.Join(t.TempDir(), "export"))
}

// A scan that fails has not seen all problems.
func TestAFailedRepairDoesNotSayNoProblems(t *testing.T) {
	t.Parallel()
	b := onOne(t)
	b.register(alice)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var out bytes.Buffer
	if err := (&call{backend: b.backend, out: &out}).repair(ctx); err == nil || out.Len() > 0 {
		t.Errorf("got %v and %q", err, &out)
	}
}

func (b *fixture) wantNothing(args ...string) {
	b.t.Helper()
	if r := b.ctl(args...); r.status != exitFailure || strings.Contains(r.stdout, "No problems") || !strings.Contains(r.stderr, "there is no data of hosts under -key-prefix") {
		b.t.Errorf("%s: status %d\n%s%s", args, r.status, r.stdout, r.stderr)
	}
}
