package rediscommit

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/pushfx/pushfx/module/fault"
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
		if !errors.Is(err, fault.ErrNotConfirmed) {
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
