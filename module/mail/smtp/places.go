package smtp

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"
)

// How long a mail keeps its place while others wait for one: slowFactor times as long as the
// server takes for a mail, but at least leastPatience. It is newPatience before the first one, and at
// most: the server may be slow about some recipients alone.
const (
	slowFactor    = 4
	leastPatience = 2 * time.Second
	newPatience   = 10 * time.Second
)

// errSlow is a timeout for delivery.
var errSlow = fmt.Errorf("the server is silent while other mails wait for a connection: %w", context.DeadlineExceeded)

// places bounds the mails under way. A mail that waits takes the place of the one that the server
// has been silent about for too long: a server that is silent about some recipients delays others
// by seconds.
type places struct {
	most int

	mu       sync.Mutex
	taken    int
	waiting  []*place      // for a place, oldest first
	underWay []*place      // oldest first, without the ones that lose their place
	mean     time.Duration // of accepted mails, with more weight on the last ones
	accepted time.Time     // the last one
}

// acceptedFor is how long an accepted mail tells that the server has nothing against this host.
const acceptedFor = 10 * time.Minute

func (p *places) acceptsOthers() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return time.Since(p.accepted) < acceptedFor
}

type place struct {
	ready chan struct{} // closed when the mail has it
	began time.Time
	cut   context.CancelCauseFunc
}

// begin waits for a place. The returned context ends when the mail loses it.
func (p *places) begin(ctx context.Context) (context.Context, *place, error) {
	ctx, cut := context.WithCancelCause(ctx)
	one := &place{ready: make(chan struct{}), cut: cut}
	p.mu.Lock()
	p.waiting = append(p.waiting, one)
	p.next()
	p.mu.Unlock()
	for {
		wait := time.NewTimer(p.cutSlowest())
		select {
		case <-one.ready:
			wait.Stop()
			return ctx, one, nil
		case <-wait.C:
		case <-ctx.Done():
			wait.Stop()
			p.end(one, false)
			return nil, nil, fmt.Errorf("smtp: all connections are busy: %w", ctx.Err())
		}
	}
}

// next gives free places to the mails that have waited for longest.
func (p *places) next() {
	for len(p.waiting) > 0 && p.taken < p.most {
		one := p.waiting[0]
		p.waiting, p.underWay, p.taken = p.waiting[1:], append(p.underWay, one), p.taken+1
		one.began = time.Now()
		close(one.ready)
	}
}

// cutSlowest takes the place of the mail that has had one for longest, if none is free and this
// mail is slow. It returns when to try again.
func (p *places) cutSlowest() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	patience := newPatience
	if !p.accepted.IsZero() {
		patience = min(max(leastPatience, slowFactor*p.mean), newPatience)
	}
	if len(p.underWay) == 0 || p.taken-len(p.underWay) >= len(p.waiting) { // so many become free
		return patience
	}
	slowest := p.underWay[0]
	if left := patience - time.Since(slowest.began); left > 0 {
		return left
	}
	slowest.cut(errSlow)
	p.underWay = p.underWay[1:]
	return patience
}

func (p *places) end(one *place, accepted bool) {
	defer one.cut(nil)
	p.mu.Lock()
	defer p.mu.Unlock()
	if at := slices.Index(p.waiting, one); at >= 0 {
		p.waiting = slices.Delete(p.waiting, at, at+1)
		return
	}
	if at := slices.Index(p.underWay, one); at >= 0 {
		p.underWay = slices.Delete(p.underWay, at, at+1)
	}
	if took := time.Since(one.began); accepted {
		if p.accepted.IsZero() {
			p.mean = took
		}
		p.mean, p.accepted = p.mean+(took-p.mean)/8, time.Now()
	}
	p.taken--
	p.next()
}
