package redisqueue_test

import (
	"testing"
	"time"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/redistest"
	"github.com/pushfx/pushfx/module/stored"
)

// Users set and delete pushers as they like: what is kept of one that is gone goes soon.
func TestWhatWasSentIsKeptForADay(t *testing.T) {
	t.Parallel()
	client := redistest.Single(t).Client(t)
	h := newHost(t, client)
	claim := h.mustAdd(alice, 1, "p")[0]
	if _, err := h.Complete(t.Context(), claim, module.Done{To: claim.Number + 1, Sent: "1 2"}); err != nil {
		t.Fatal(err)
	}
	if ttl := client.PTTL(t.Context(), stored.Keys{}.Sent(alice, "p")).Val(); ttl <= 23*time.Hour || ttl > 24*time.Hour {
		t.Errorf("what was sent is kept for %v", ttl)
	}
}
