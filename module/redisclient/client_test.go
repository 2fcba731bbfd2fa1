package redisclient

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/pushfx/pushfx/module/redistest"
)

func TestPingNamesAClusterWithoutSlots(t *testing.T) {
	t.Parallel()
	server := redistest.Single(t, "--cluster-enabled", "yes")
	client := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{server.Addr()}})
	defer client.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	err := ping(ctx, client)
	if err == nil || !strings.Contains(err.Error(), "is not created yet") || strings.Contains(err.Error(), "does not answer") {
		t.Errorf("got %v", err)
	}
}

func TestPingSaysWhyAServerIsNoUse(t *testing.T) {
	t.Parallel()
	locked, encrypted := redistest.Single(t, "--requirepass", "secret"), redistest.SingleTLS(t)
	for address, want := range map[string]string{
		locked.Addr():     "refuses: NOAUTH",
		encrypted.TLSAddr: "a client without TLSConfig",
		"127.0.0.1:1":     "does not answer",
	} {
		client := redis.NewClient(&redis.Options{Addr: address, MaxRetries: -1, ContextTimeoutEnabled: true})
		if err := ping(t.Context(), client); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
		client.Close()
	}
}

func TestSlotOfAgreesWithRedis(t *testing.T) {
	t.Parallel()
	client := redistest.Cluster(t, 1, 0).Client(t)
	for _, key := range []string{
		"", "a", "key", "pushers:{@alice:example.org}", "hs1:account_data:{@alice:example.org}:m.push_rules", "{}", "{}a", "{a", "a}", "}{", "{a}{b}", "x{{a}}", "ü🦊\x00\xff",
	} {
		want, err := client.ClusterKeySlot(t.Context(), key).Result()
		if err != nil {
			t.Fatal(err)
		}
		if got := SlotOf(key); got != int(want) {
			t.Errorf("%q: got slot %d, want %d", key, got, want)
		}
	}
}
