package delivery

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/delivery/content"
)

// How long a host waits between two looks for due backlogs. Backlogs that Notify claims
// need no look.
const (
	lookEvery  = time.Second
	lookSoon   = 50 * time.Millisecond // backlogs were put off, and are soon due again
	lookAgain  = 20 * time.Millisecond // no due backlog got a turn
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
		wait := d.lookOnce(ctx)
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
		case <-timer.C:
		case <-d.wake:
		}
		timer.Stop()
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
	found, err := d.queue.Claim(ctx, capacity, lease)
	if err != nil {
		if ctx.Err() == nil {
			d.failed("look for what is due", err)
		}
		return wait
	}
	d.mu.Lock()
	d.hasMore, d.late, d.lookedAt = found.More, found.Oldest, claimedAt
	isCutOff := d.turns.IsCutOff(claimedAt)
	d.mu.Unlock()
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
		return 0
	case found.More:
		return lookAgain
	case time.Now().Before(d.putOffUntil):
		return lookSoon
	}
	return wait
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
	s.user = m.User
	turn, delay := d.admit(m.User, m.Gate)
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
