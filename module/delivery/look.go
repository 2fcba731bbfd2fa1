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
	lookGap    = 5 * time.Millisecond  // the least wait
	retryQueue = time.Second           // after an error of the queue or the host
)

// look claims due backlogs and sends them, until ctx ends. After a look that left due
// backlogs, the next looks read only the shards of these backlogs, for up to lookEvery.
func (d *Delivery) look(ctx context.Context) {
	var heldAt, allAt time.Time
	var shards []int // nil: all
	for ctx.Err() == nil {
		if time.Since(heldAt) >= lookEvery {
			heldAt = time.Now()
			d.readHeld(ctx)
		}
		began := time.Now()
		if began.Sub(allAt) >= lookEvery {
			shards = nil
		}
		if shards == nil {
			allAt = began
		}
		var wait time.Duration
		wait, shards = d.lookOnce(ctx, shards)
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
		case <-timer.C:
		case <-d.gates.wake:
			shards = nil
		}
		timer.Stop()
		_ = retry.Sleep(ctx, time.Until(began.Add(lookGap)))
	}
}

func (d *Delivery) readHeld(ctx context.Context) {
	names, err := d.queue.HeldGateways(ctx)
	if err != nil {
		if ctx.Err() == nil {
			d.failures.add("read which gateways are held", err)
		}
		return
	}
	d.gates.hold(names)
}

// lookOnce claims and sends due backlogs of shards, and returns when to look again, and at
// which shards.
func (d *Delivery) lookOnce(ctx context.Context, shards []int) (wait time.Duration, more []int) {
	wait = lookEvery/2 + rand.N(lookEvery/2)
	claimedAt := time.Now()
	allowed := map[string]int{}
	found, err := d.queue.Claim(ctx, module.Look{Shards: shards, Limit: d.gates.capacity(), Lease: lease, Gate: func(gate string) (int, bool) {
		most, isClosed := d.gates.claimable(gate)
		allowed[gate] = most
		return most, isClosed
	}})
	if err != nil {
		if ctx.Err() == nil {
			d.failures.add("look for what is due", err)
		}
		return wait, nil
	}
	isCutOff := d.gates.looked(found, allowed)
	if shards == nil {
		d.mu.Lock()
		d.late, d.lookedAt = found.Oldest, claimedAt
		d.mu.Unlock()
	}
	// Backlogs without failures begin first: one of them should try a closed gate.
	slices.SortStableFunc(found.Backlogs, func(a, b module.Backlog) int { return min(1, len(a.Trouble.Text)) - min(1, len(b.Trouble.Text)) })
	began := 0
	for _, b := range found.Backlogs {
		if d.begin(b, claimedAt) {
			began++
		}
	}
	switch {
	case isCutOff: // other hosts send what is due
		return wait, nil
	case len(found.More) > 0 && began > 0:
		return lookGap, found.More
	case len(found.More) > 0:
		return lookAgain, found.More
	case d.gates.hasPutOff():
		return lookSoon, nil
	}
	return wait, nil
}

// begin sends a claimed backlog when its turn comes. It returns false if this host has no
// place for the backlog.
func (d *Delivery) begin(b module.Backlog, claimedAt time.Time) bool {
	if d.claims.claimAgain(b.Claim, claimedAt) {
		return true
	}
	if b.Claim.Target.IsFanOut() {
		return d.startOrRelease(b.Claim, func(life context.Context) { d.expand(life, b, claimedAt) })
	}
	s := d.newSending(b.Claim, claimedAt)
	s.trouble = content.ReadTrouble(b.Trouble)
	m, err := content.ReadMeta(b.First.Meta)
	if err != nil { // run drops the notification, and reads the next one
		return d.startOrRelease(b.Claim, s.run)
	}
	s.user, s.meta, s.metaOf = m.User, m, b.First.ID
	turn, delay := d.gates.admit(m.User, b.Claim.Gate)
	if turn == nil {
		d.start(func(context.Context) { s.postpone(delay, nil) })
		return false
	}
	s.turn = turn
	if !d.startOrRelease(b.Claim, s.run) {
		s.leaveTurn()
		return false
	}
	return true
}
