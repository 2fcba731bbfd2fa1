package rediscommit

import (
	"context"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/pushfx/pushfx/module/fault"
	"github.com/pushfx/pushfx/module/redisclient"
	"github.com/pushfx/pushfx/module/redistest"
	"github.com/pushfx/pushfx/module/stored"
)

// forgottenMove is a cluster in which a key has moved to another master. The owner of
// its slot does not know of the move, like a replica that took over.
type forgottenMove struct {
	cluster       *redistest.ClusterServers
	client        *redis.ClusterClient
	owner, target *redistest.Server
	slot          int
}

const movedKey = "moved"

func newForgottenMove(t *testing.T, cluster *redistest.ClusterServers, owner, target *redistest.Server) forgottenMove {
	t.Helper()
	m := forgottenMove{cluster, cluster.Client(t), owner, target, redisclient.SlotOf(movedKey)}
	if err := m.client.Set(t.Context(), movedKey, "text\n{}", 0).Err(); err != nil {
		t.Fatal(err)
	}
	move, err := cluster.BeginMove(t.Context(), m.slot, target)
	if err == nil {
		err = move.MoveKeys(t.Context(), movedKey)
	}
	if err == nil {
		err = owner.Client(t).Do(t.Context(), "CLUSTER", "SETSLOT", m.slot, "STABLE").Err()
	}
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func (m forgottenMove) wantRefused(t *testing.T, why string) {
	t.Helper()
	store, err := New(m.client, DefaultConfig(), Options{}, texts())
	if err != nil {
		t.Fatal(err)
	}
	for name, do := range map[string]func() error{
		"load": func() error { _, err := store.Load(t.Context(), movedKey); return err },
		"create": func() error {
			_, err := store.Update(t.Context(), movedKey, func(s *string) error { *s = "new"; return nil })
			return err
		},
		"no change": func() error {
			_, err := store.Update(t.Context(), movedKey, func(*string) error { return nil })
			return err
		},
		"remove": func() error { return store.remove(t.Context(), movedKey) },
		"swap": func() error {
			_, err := store.Swap(t.Context(), movedKey, stored.Revision{}, func(stored.Revision) []any { return []any{"new\n{}"} })
			return err
		},
	} {
		if err := do(); err == nil || fault.KindOf(err) != fault.Unavailable || !strings.Contains(fault.Details(err), why) {
			t.Errorf("%s: got %+v, want %q", name, err, why)
		}
	}
	if n, err := m.owner.Client(t).Exists(t.Context(), movedKey).Result(); n != 0 || err != nil {
		t.Errorf("the owner has %d keys, %v", n, err)
	}
	if _, err := store.Update(t.Context(), "another{"+movedKey+"}", func(s *string) error { *s = "new"; return nil }); err != nil {
		t.Errorf("another key of the slot: %+v", err)
	}
}

// The target of a move has no slots until the first slot has moved.
func TestMastersWithoutSlotsAreAsked(t *testing.T) {
	t.Parallel()
	cluster := redistest.Cluster(t, 2, 0, "--cluster-require-full-coverage", "no")
	masters := cluster.Masters()
	owner, empty := masters[0], masters[1]
	for _, master := range []*redistest.Server{empty, owner} {
		if err := master.Client(t).Do(t.Context(), "CLUSTER", "DELSLOTSRANGE", 8192, 16383).Err(); err != nil {
			t.Skipf("before Redis 7: %v", err)
		}
	}
	for _, command := range [][]any{{"CLUSTER", "ADDSLOTSRANGE", 8192, 16383}, {"CLUSTER", "BUMPEPOCH"}} {
		if err := owner.Client(t).Do(t.Context(), command...).Err(); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), never)
	defer cancel()
	if err := cluster.WaitWhole(ctx); err != nil {
		t.Fatal(err)
	}
	newForgottenMove(t, cluster, owner, empty).wantRefused(t, "another master has the key, since a move of its slot was interrupted: the Redis at "+empty.Addr())
}
