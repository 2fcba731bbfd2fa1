package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
)

// TestAnInterruptionCountsEachKeyOnce interrupts a scan at each of its reads,
// also between the parts of a SCAN reply that is longer than a page.
func TestAnInterruptionCountsEachKeyOnce(t *testing.T) {
	t.Parallel()
	b := onOne(t)
	const users = 2500
	b.many(users)
	for read := 1; ; read++ {
		state := filepath.Join(t.TempDir(), fmt.Sprint(read))
		_, err := b.countKeys(state, read)
		if err == nil {
			return // it ended before that read
		}
		if interrupted := new(interruptedError); !errors.As(err, &interrupted) {
			t.Fatal(err)
		}
		if n, err := b.countKeys(state, 0); n != users || err != nil {
			t.Errorf("interrupted at read %d: counted %d keys, want %d, %v", read, n, users, err)
		}
	}
}

// countKeys counts all keys, from where the state says, and is interrupted at a
// read unless that is 0.
func (b *bed) countKeys(state string, interruptAt int) (int64, error) {
	b.t.Helper()
	ctx, interrupt := context.WithCancel(b.t.Context())
	defer interrupt()
	var counted tally
	place, err := newPosition(state, "check", &counted)
	if err != nil {
		b.t.Fatal(err)
	}
	read := 0
	s := &scanner{backend: b.backend, pace: &pace{}, progress: &progress{quiet: true}, position: place}
	err = s.Scan(ctx, func(_ context.Context, _ *redis.Client, keys []string) (func(context.Context) error, error) {
		if read++; read == interruptAt {
			interrupt()
		}
		return func(context.Context) error {
			counted.add(tally{Keys: int64(len(keys))})
			return nil
		}, nil
	})
	return counted.Keys, err
}

// TestFindingNothingIsAnError has commands search where nothing of the module is.
func TestFindingNothingIsAnError(t *testing.T) {
	t.Parallel()
	for name, start := range map[string]func(*testing.T) *bed{"single": onOne, "cluster": onCluster} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := start(t)
			b.wantNothing("on "+b.servers.String()+", which has no keys", "check")
			b.do("SET", "account_data:other", "x")
			b.wantNothing("nor did any other prefix turn up among its 1 keys", "check", "-key-prefix", "hs2:")
			b.register(alice)
			other := newBed(t, append(b.where, "-key-prefix", "hs1:")...)
			other.register(alice)
			b.want(exitOK, "check", "-key-prefix", "hs1:")

			file := filepath.Join(t.TempDir(), "export")
			for _, args := range [][]string{{"check"}, {"check", "-json"}, {"repair"}, {"refresh-defaults"}, {"export", file}, {"export", "-"}} {
				b.wantNothing(`under -key-prefix "hs2:" on `+b.servers.String()+`, but there are under "", "hs1:"`, append(args, "-key-prefix", "hs2:")...)
			}
			if left, err := filepath.Glob(file + "*"); err != nil || len(left) > 0 {
				t.Errorf("an export of nothing left %q, %v", left, err)
			}
		})
	}
}

func (b *bed) wantNothing(want string, args ...string) {
	b.t.Helper()
	if r := b.ctl(args...); r.status != exitFailure || strings.Contains(r.stdout, "No problems") || !strings.Contains(r.stderr, want) {
		b.t.Errorf("%s: status %d\n%s%s", args, r.status, r.stdout, r.stderr)
	}
}
