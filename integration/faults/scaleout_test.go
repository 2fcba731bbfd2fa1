package faults

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/pushfx/pushfx/integration/hosttest"
	"github.com/pushfx/pushfx/module/redisclient"
	"github.com/pushfx/pushfx/module/redistest"
)

// steadyLoad changes and reads rules of some users until it is stopped. Each user has one worker, so that a read must
// have the last change.
type steadyLoad struct {
	host     *hosttest.Host
	requests atomic.Int64
	failed   atomic.Int64
	stale    atomic.Int64
	running  sync.WaitGroup
}

func (l *steadyLoad) start(ctx context.Context, t *testing.T, users []string) {
	for _, user := range users {
		l.running.Go(func() {
			l.try(t, user, http.MethodGet, "/pushrules/", "", "global")
			for n := 0; ctx.Err() == nil; n++ {
				sound := fmt.Sprintf(`{"set_tweak":"sound","value":"sound%d"}`, n)
				l.try(t, user, http.MethodPut, ownRule, `{"actions":[`+sound+`]}`, "")
				l.try(t, user, http.MethodGet, ownRule+"/actions", "", sound)
				l.try(t, user, http.MethodGet, "/pushers", "", "[]")
			}
		})
	}
}

func (l *steadyLoad) try(t *testing.T, user, method, path, body, want string) {
	a := l.host.Do(user, method, hosttest.V3+path, body)
	l.requests.Add(1)
	switch {
	case a.Status != http.StatusOK:
		if l.failed.Add(1) < 5 {
			t.Errorf("%s %s: %s", method, path, a)
		}
	case !strings.Contains(a.Body, want):
		if l.stale.Add(1) < 5 {
			t.Errorf("%s %s: got %s, want %s", method, path, a, want)
		}
	}
}

// wait waits until further requests were made.
func (l *steadyLoad) wait(t *testing.T, requests int64) {
	t.Helper()
	until := l.requests.Load() + requests
	hosttest.Eventually(t, "requests are made", func() bool { return l.requests.Load() >= until })
}

// A fourth master joins, gets slots with users, and gives them back. No list of slots has it while its first slot moves.
func TestScaleOutFailsNoRequest(t *testing.T) {
	t.Parallel()
	cluster := redistest.Cluster(t, 3, 0)
	l := &steadyLoad{host: hosttest.StartHost(t, cluster.Client(t))}
	var users []string
	for range 12 {
		users = append(users, hosttest.NewUser())
	}
	ctx, stop := context.WithCancel(t.Context())
	defer l.running.Wait()
	defer stop()
	l.start(ctx, t, users)
	l.wait(t, 100)
	newcomer := cluster.Newcomer(t)
	const moved = 3
	var sources []*redistest.Server
	for n, user := range users[:moved] {
		slot := redisclient.SlotOf(hosttest.EventKey(user))
		source, err := cluster.MasterOf(ctx, slot)
		if err != nil {
			t.Fatal(err)
		}
		sources = append(sources, source)
		move, err := cluster.BeginMove(ctx, slot, newcomer)
		if err == nil {
			err = move.MoveKeys(ctx, hosttest.EventKey(user))
		}
		if err != nil {
			t.Fatal(err)
		}
		if n == 0 { // the client would learn of its other slots
			l.wait(t, 1500)
		}
		if err := move.Finish(ctx); err != nil {
			t.Fatal(err)
		}
		l.wait(t, 100)
	}
	for n, user := range users[:moved] {
		if err := cluster.MoveSlot(ctx, redisclient.SlotOf(hosttest.EventKey(user)), sources[n]); err != nil {
			t.Fatal(err)
		}
		l.wait(t, 100)
	}
	l.wait(t, 500)
	stop()
	l.running.Wait()
	t.Logf("%d requests, %d failed, %d stale", l.requests.Load(), l.failed.Load(), l.stale.Load())
}
