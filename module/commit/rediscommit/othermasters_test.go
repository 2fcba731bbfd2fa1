package rediscommit

import (
	"context"
	"errors"
	"slices"
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

// atAsking is a hook of a client. It runs do once, before a command goes to the target of a move.
type atAsking struct{ do func() error }

func (h *atAsking) DialHook(next redis.DialHook) redis.DialHook { return next }

func (h *atAsking) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }

func (h *atAsking) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, commands []redis.Cmder) error {
		isAsking := slices.ContainsFunc(commands, func(c redis.Cmder) bool { return c.Name() == "asking" })
		if do := h.do; isAsking && do != nil {
			h.do = nil
			if err := do(); err != nil {
				return err
			}
		}
		return next(ctx, commands)
	}
}

// A client is so slow that the slot has moved on, and is on its way back to the master that the client was told to ask.
// That master had replied before that another key of the slot is missing everywhere.
func TestAnOldRedirectionHidesNoKey(t *testing.T) {
	t.Parallel()
	cluster := redistest.Cluster(t, 3, 0)
	masters, slot := cluster.Masters(), redisclient.SlotOf(movedKey)
	client, hook := cluster.Client(t), &atAsking{}
	client.OnNewNode(func(node *redis.Client) { node.AddHook(hook) })
	store, err := New(client, DefaultConfig(), Options{}, texts())
	if err != nil {
		t.Fatal(err)
	}
	do := func(steps ...error) {
		t.Helper()
		if err := errors.Join(steps...); err != nil {
			t.Fatal(err)
		}
	}
	do(cluster.MoveSlot(t.Context(), slot, masters[0]))
	move, err := cluster.BeginMove(t.Context(), slot, masters[1])
	do(err)
	_, err = store.Load(t.Context(), "another{"+movedKey+"}")
	do(err, client.Set(t.Context(), movedKey, "text\n{}", 0).Err())
	hook.do = func() error {
		if err := move.Finish(t.Context()); err != nil {
			return err
		}
		for _, next := range []*redistest.Server{masters[2], masters[0]} {
			if err := cluster.MoveSlot(t.Context(), slot, next); err != nil {
				return err
			}
		}
		_, err := cluster.BeginMove(t.Context(), slot, masters[1])
		return err
	}
	if got, err := store.Load(t.Context(), movedKey); err != nil || !got.Found {
		t.Errorf("got %+v, %v", got, err)
	}
	if hook.do != nil {
		t.Error("the client was not told to ask another master")
	}
}
