package redistest

import (
	"context"
	"testing"
	"time"
)

// A master is a newcomer until its first slot.
func TestNewcomersTakeSlots(t *testing.T) {
	t.Parallel()
	c := Cluster(t, 3, 1)
	for slot := range 2 {
		newcomer := c.Newcomer(t)
		move, err := c.BeginMove(testContext(t), slot, newcomer)
		must(t, err)
		must(t, move.Finish(testContext(t)))
		ctx, cancel := context.WithTimeout(testContext(t), 20*time.Second)
		must(t, c.WaitWhole(ctx))
		cancel()
		master, err := c.MasterOf(testContext(t), slot)
		must(t, err)
		if master != newcomer {
			t.Errorf("slot %d is on %s, not on the newcomer", slot, master.Addr())
		}
	}
}
