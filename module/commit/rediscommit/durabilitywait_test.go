package rediscommit

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/alicebob/miniredis/v2/server"
	"github.com/redis/go-redis/v9"

	"github.com/pushfx/pushfx/module/commit"
	"github.com/pushfx/pushfx/module/redistest"
)

func TestUnconfirmedChangeIsNotRetried(t *testing.T) {
	t.Parallel()
	cfg := DefaultConfig()
	cfg.Durability = Durability{Replicas: 1, Timeout: 300 * time.Millisecond}
	client := redistest.Single(t).Client(t)
	store, err := New(client, cfg, Options{}, texts())
	if err != nil {
		t.Fatal(err)
	}
	for n := range 3 {
		before := waitsOf(t, client)
		began := time.Now()
		_, err := store.Update(t.Context(), "key", func(s *string) error { *s = fmt.Sprint("value", n); return nil })
		if !errors.Is(err, commit.ErrNotConfirmed) {
			t.Errorf("got error %v", err)
		}
		if took := time.Since(began); took > store.cfg.Durability.MaxWait()+late {
			t.Errorf("it took %v", took)
		}
		if waits := waitsOf(t, client) - before; n > 0 && waits > 1 { // the first change sends the script's source, too
			t.Errorf("%d waits, want one", waits)
		}
	}
}

// waitsOf returns how many waits a server has had.
func waitsOf(t *testing.T, client *redis.Client) (n int) {
	t.Helper()
	_, calls, _ := strings.Cut(client.Info(t.Context(), "commandstats").Val(), "cmdstat_wait:calls=")
	fmt.Sscanf(calls, "%d", &n)
	return n
}

// sentWaits makes a server reply to each wait after a delay, like one with a replica and an append-only file. It
// records the scripts and waits.
type sentWaits struct {
	slow        time.Duration
	connections []*server.Peer
	commands    []string
}

func (w *sentWaits) answer(from *server.Peer, command string, args ...string) bool {
	switch command {
	case "EVALSHA":
		w.connections = append(w.connections, from)
		return false
	case "WAIT":
		time.Sleep(w.slow)
		from.WriteInt(1)
	case "WAITAOF":
		from.WriteLen(2)
		from.WriteInt(1)
		from.WriteInt(0)
	default:
		return false
	}
	w.connections = append(w.connections, from)
	w.commands = append(w.commands, strings.Join(append([]string{command}, args...), " "))
	return true
}

// All are on one connection, since a wait is for the writes of its connection.
func TestWaitForTheDiskGetsTheRestOfTheTimeout(t *testing.T) {
	t.Parallel()
	embedded, sent := miniredis.RunT(t), &sentWaits{slow: 300 * time.Millisecond}
	client := redis.NewClient(&redis.Options{Addr: embedded.Addr(), ContextTimeoutEnabled: true})
	defer client.Close()
	set := newTestScript(client, nil, setting, Durability{Replicas: 1, AOF: true, Timeout: time.Second})
	if err := set.script.Load(t.Context(), client).Err(); err != nil { // also adds a connection to the pool
		t.Fatal(err)
	}
	embedded.Server().SetPreHook(sent.answer)
	if done, err := set.run(t.Context(), "key", []any{"x"}); !done || err != nil {
		t.Fatalf("got %t, %v", done, err)
	}
	var first, second int
	if _, err := fmt.Sscanf(strings.Join(sent.commands, ", "), "WAIT 1 %d, WAITAOF 1 0 %d", &first, &second); err != nil {
		t.Fatalf("%q: %v", sent.commands, err)
	}
	if len(slices.Compact(sent.connections)) != 1 || first > 1000 || second > max(1, first-300) || second < 1 {
		t.Errorf("%d connections sent %q", len(slices.Compact(sent.connections)), sent.commands)
	}
}
