package delivery

import (
	"context"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/delivery/content"
	"github.com/pushfx/pushfx/module/retry"
)

// How long a host waits between two looks for due backlogs. Backlogs that Notify claims
// need no look.
const (
	lookEvery  = time.Second
	lookSoon   = 50 * time.Millisecond // backlogs were put off, and are soon due again
	lookAgain  = 20 * time.Millisecond // no due backlog got a turn
	lookGap    = 5 * time.Millisecond  // at least
	retryQueue = time.Second           // after an error of the queue or the host
)

// look claims due backlogs and sends them, until ctx ends.
func (d *Delivery) look(ctx context.Context) {
	var heldAt time.Time
	for ctx.Err() == nil {
		if time.Since(heldAt) >= lookEvery {
			heldAt = time.Now()
			d.readHeld(ctx)
		}
		began := time.Now()
		wait := d.lookOnce(ctx)
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
		case <-timer.C:
		case <-d.wake:
		}
		timer.Stop()
		_ = retry.Sleep(ctx, time.Until(began.Add(lookGap)))
	}
}

func (d *Delivery) readHeld(ctx context.Context) {
	names, err := d.queue.HeldGateways(ctx)
	if err != nil {
		if ctx.Err() == nil {
			d.failed("read which gateways are held", err)
		}
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.turns.Hold(names)
}

// lookOnce claims and sends due backlogs.
func (d *Delivery) lookOnce(ctx context.Context) (wait time.Duration) {
	wait = lookEvery/2 + rand.N(lookEvery/2)
	d.mu.Lock()
	capacity := d.turns.Capacity(time.Now())
	d.mu.Unlock()
	claimedAt := time.Now()
	allowed := map[string]int{}
	found, err := d.queue.Claim(ctx, capacity, lease, func(gate string) int {
		allowed[gate] = d.claimable(gate)
		return allowed[gate]
	})
	if err != nil {
		if ctx.Err() == nil {
			d.failed("look for what is due", err)
		}
		return wait
	}
	d.mu.Lock()
	d.hasMore, d.late, d.lookedAt = found.More || d.mayHaveMore(found, allowed), found.Oldest, claimedAt
	isCutOff := d.turns.IsCutOff(claimedAt)
	d.mu.Unlock()
	// A closed gate is tried by a pusher that has not failed, if there is one.
	slices.SortStableFunc(found.Backlogs, func(a, b module.Backlog) int { return min(1, len(a.Trouble.Text)) - min(1, len(b.Trouble.Text)) })
	began := 0
	for _, b := range found.Backlogs {
		if d.begin(b, claimedAt) {
			began++
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case isCutOff: // other hosts send what is due
		return wait
	case found.More && began > 0:
		return lookGap
	case found.More:
		return lookAgain
	case time.Now().Before(d.putOffUntil):
		return lookSoon
	}
	return wait
}

// claimable returns how many backlogs of a gate to claim.
func (d *Delivery) claimable(gate string) int {
	if gate == module.FanOut {
		return expansions
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.turns.Claimable(time.Now(), gate)
}

// mayHaveMore reports whether an open gate may have more due backlogs than were allowed.
func (d *Delivery) mayHaveMore(found module.Claimed, allowed map[string]int) bool {
	for _, b := range found.Backlogs {
		gate := b.Claim.Gate
		if allowed[gate]--; allowed[gate] == 0 && d.turns.IsOpen(gate) {
			return true
		}
	}
	return false
}

// begin sends a claimed backlog, and reports whether it has a turn, or waits for it here.
func (d *Delivery) begin(b module.Backlog, claimedAt time.Time) bool {
	if d.claimAgain(b.Claim, claimedAt) {
		return true
	}
	if b.Claim.Target.IsFanOut() {
		return d.startOrRelease(b.Claim, func(life context.Context) { d.expand(life, b, claimedAt) })
	}
	c := d.newClaimed(b.Claim, claimedAt)
	s := &sending{claimed: c, trouble: content.ReadTrouble(b.Trouble)}
	m, err := content.ReadMeta(b.First.Meta)
	if err != nil { // run drops it, and reads the next one
		return d.startOrRelease(b.Claim, s.run)
	}
	s.user, s.meta, s.metaOf = m.User, m, b.First.ID
	turn, delay := d.admit(m.User, b.Claim.Gate)
	if turn == nil {
		d.start(func(context.Context) {
			c.postpone(delay, nil)
		})
		return false
	}
	s.turn = turn
	if !d.startOrRelease(b.Claim, s.run) {
		s.leaveTurn()
		return false
	}
	return true
}
