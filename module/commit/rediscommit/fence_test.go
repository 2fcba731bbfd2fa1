package rediscommit

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/pushfx/pushfx/module/redistest"
)

// handover is a master during a manual failover: it delays writes and replies to reads.
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

func (h handover) delayed() (clients int) {
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

func (h handover) wantDelayed(read func() error) {
	h.t.Helper()
	answered := make(chan error, 1)
	go func() { answered <- read() }()
	for h.delayed() == 0 {
		select {
		case err := <-answered:
			h.t.Fatalf("the old master replied to a read (%v), though the new one may accept changes", err)
		case <-time.After(time.Millisecond):
		}
	}
	h.end()
	if err := <-answered; err != nil {
		h.t.Error(err)
	}
}

func TestMasterAnswersNoReadDuringAHandover(t *testing.T) {
	t.Parallel()
	cluster, users := redistest.Cluster(t, 1, 0), someUsers(600)
	store, user := textStore(t, cluster.Client(t), defaults), users[0]
	plant(t, store, users)
	for name, read := range map[string]func(ctx context.Context) error{
		"an uncached value": func(ctx context.Context) error {
			_, err := textStore(t, store.store.client, defaults).Load(ctx, user)
			return err
		},
		"a cached value": func(ctx context.Context) error {
			_, err := store.Load(ctx, user)
			return err
		},
		"a missing value": func(ctx context.Context) error {
			_, err := store.Load(ctx, "@nobody:example.org")
			return err
		},
		"an update without a change": func(ctx context.Context) error {
			return store.Update(ctx, user, func(*string) error { return nil })
		},
		"many values": func(ctx context.Context) error { return store.LoadMany(ctx, users)[user].Err },
		"a query for many": func(ctx context.Context) error {
			return ReadMany(ctx, store.Users, users, readText)[user].Err
		},
	} {
		t.Run(name, func(t *testing.T) {
			if err := read(t.Context()); err != nil { // also connects
				t.Fatal(err)
			}
			beginHandover(t, cluster.Masters()[0]).wantDelayed(func() error { return read(t.Context()) })
		})
	}
}
