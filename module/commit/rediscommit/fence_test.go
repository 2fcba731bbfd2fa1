package rediscommit

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/pushfx/pushfx/module/commit"
	"github.com/pushfx/pushfx/module/redistest"
)

// handover is a master in the state of a failover by hand: it holds writes back, and
// answers reads.
type handover struct {
	t      *testing.T
	master *redis.Client
}

func beginHandover(t *testing.T, master *redistest.Server) handover {
	t.Helper()
	h := handover{t, master.Client(t)}
	h.do("CLIENT", "PAUSE", never.Milliseconds(), "WRITE")
	t.Cleanup(h.end)
	return h
}

func (h handover) end() { h.master.Do(context.WithoutCancel(h.t.Context()), "CLIENT", "UNPAUSE") }

func (h handover) do(command ...any) {
	h.t.Helper()
	if err := h.master.Do(h.t.Context(), command...).Err(); err != nil {
		h.t.Fatal(err)
	}
}

// held returns how many clients the master keeps waiting.
func (h handover) held() (clients int) {
	h.t.Helper()
	list, err := h.master.ClientList(h.t.Context()).Result()
	if err != nil {
		h.t.Fatal(err)
	}
	for client := range strings.Lines(list) {
		if strings.Contains(client, " flags=b ") {
			clients++
		}
	}
	return clients
}

// wantHeld wants the master to answer a read only when the failover has ended.
func (h handover) wantHeld(read func() error) {
	h.t.Helper()
	answered := make(chan error, 1)
	go func() { answered <- read() }()
	for h.held() == 0 {
		select {
		case err := <-answered:
			h.t.Fatalf("the old master answered a read (%v), though the new one may take changes", err)
		case <-time.After(time.Millisecond):
		}
	}
	h.end()
	if err := <-answered; err != nil {
		h.t.Error(err)
	}
}

func TestAMasterThatHandsOverAnswersNoRead(t *testing.T) {
	t.Parallel()
	cluster, users := redistest.Cluster(t, 1, 0), someUsers(600)
	store, user := textStore(t, cluster.Client(t), asUsual), users[0]
	plant(t, store, users)
	for name, read := range map[string]func(ctx context.Context) error{
		"the whole": func(ctx context.Context) error {
			_, err := textStore(t, store.store.client, asUsual).Load(ctx, user)
			return err
		},
		"what is cached": func(ctx context.Context) error {
			_, err := store.Load(ctx, user)
			return err
		},
		"what nobody has": func(ctx context.Context) error {
			_, err := store.Load(ctx, "@nobody:example.org")
			return err
		},
		"a change that finds nothing to do": func(ctx context.Context) error {
			return store.Update(ctx, user, func(*string) error { return nil })
		},
		"many": func(ctx context.Context) error { return store.LoadMany(ctx, users)[user].Err },
		"parts of many": func(ctx context.Context) error {
			return ReadMany(ctx, store.Users, users, readText)[user].Err
		},
		"what was redirected": func(ctx context.Context) error {
			var answer redis.Cmder
			store.store.reads.sendAlone(ctx, store.key(user), func(ctx context.Context, client redis.Cmdable) {
				answer = readText.Ask(ctx, client, store.key(user))
			})
			return answer.Err()
		},
		"many that were redirected": func(ctx context.Context) error {
			r := reading[commit.Snapshot[string, string], string, string]{
				store.store, readText, []string{store.key(user)}, make([]Answer[commit.Snapshot[string, string]], 1),
			}
			r.ask(ctx, r.client, []int{0})
			return r.answers[0].Err
		},
	} {
		t.Run(name, func(t *testing.T) {
			if err := read(t.Context()); err != nil { // which also makes the connections
				t.Fatal(err)
			}
			beginHandover(t, cluster.Masters()[0]).wantHeld(func() error { return read(t.Context()) })
		})
	}
}
