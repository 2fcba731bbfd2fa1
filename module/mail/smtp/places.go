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
// most: the server may be slow about some domains alone.
const (
	slowFactor    = 4
	leastPatience = 2 * time.Second
	newPatience   = 10 * time.Second
)

// errSlow is a timeout for delivery.
var errSlow = fmt.Errorf("the server is silent while other mails wait for a connection: %w", context.DeadlineExceeded)

// places bounds the mails under way, so that slow domains delay no others. Mails to quick domains go
// first, then those to new ones, then those to slow ones, and the last two do not get all places. A mail
// that waits takes the place of one that the server has been silent about for too long, unless its
// domain is slow, too: otherwise no slow domain would ever get a mail.
type places struct {
	most int

	mu       sync.Mutex
	taken    [classes]int
	waiting  [classes][]*place // for a place, oldest first
	underWay []*place          // oldest first, without the ones that lose their place
	mean     time.Duration     // of accepted mails to domains that are not slow, with more weight on the last ones
	accepted time.Time         // the last one
	domains  map[string]class  // by the last mail, at most maxDomains
}

func newPlaces(most int) *places { return &places{most: most, domains: map[string]class{}} }

// class is what the last mail to a domain says about the next one.
type class int

const (
	unknown class = iota
	quick
	slow // it took longer than the patience with it
	classes
)

// maxDomains bounds the known domains. A further one takes the place of any.
const maxDomains = 10_000

// acceptedFor is how long an accepted mail tells that the server has nothing against this host.
const acceptedFor = 10 * time.Minute

func (p *places) acceptsOthers() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return time.Since(p.accepted) < acceptedFor
}

type place struct {
	domain string
	class  class         // when the mail came
	ready  chan struct{} // closed when the mail has it
	began  time.Time
	cut    context.CancelCauseFunc
}

// begin waits for a place for a mail to a domain. The returned context ends when the mail loses it.
func (p *places) begin(ctx context.Context, domain string) (context.Context, *place, error) {
	ctx, cut := context.WithCancelCause(ctx)
	one := &place{domain: domain, ready: make(chan struct{}), cut: cut}
	p.mu.Lock()
	one.class = p.domains[domain]
	p.waiting[one.class] = append(p.waiting[one.class], one)
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

// next gives free places to waiting mails.
func (p *places) next() {
	for _, c := range []class{quick, unknown, slow} {
		for len(p.waiting[c]) > 0 && p.hasPlace(c) {
			one := p.waiting[c][0]
			p.waiting[c], p.underWay = p.waiting[c][1:], append(p.underWay, one)
			p.taken[c]++
			one.began = time.Now()
			close(one.ready)
		}
	}
}

// hasPlace keeps a quarter of the places for mails to quick domains.
func (p *places) hasPlace(c class) bool {
	return p.allTaken() < p.most && (c == quick || p.allTaken()-p.taken[quick] < max(1, p.most*3/4))
}

func (p *places) allTaken() int { return p.taken[unknown] + p.taken[quick] + p.taken[slow] }

func (p *places) patience() time.Duration {
	if p.accepted.IsZero() {
		return newPatience
	}
	return min(max(leastPatience, slowFactor*p.mean), newPatience)
}

// cutSlowest takes the place of the mail that has had one for longest, if it is slow, and a mail to a
// quick or new domain waits. It returns when to try again.
func (p *places) cutSlowest() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	patience := p.patience()
	if len(p.underWay) == 0 || len(p.waiting[quick])+len(p.waiting[unknown]) == 0 {
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
	if at := slices.Index(p.waiting[one.class], one); at >= 0 {
		p.waiting[one.class] = slices.Delete(p.waiting[one.class], at, at+1)
		return
	}
	if at := slices.Index(p.underWay, one); at >= 0 {
		p.underWay = slices.Delete(p.underWay, at, at+1)
	}
	took := time.Since(one.began)
	p.learn(one.domain, took, accepted)
	if accepted && one.class != slow { // otherwise slow domains would make the patience longer for all
		if p.accepted.IsZero() {
			p.mean = took
		}
		p.mean += (took - p.mean) / 8
	}
	if accepted {
		p.accepted = time.Now()
	}
	p.taken[one.class]--
	p.next()
}

// learn notes how a domain's mail went.
func (p *places) learn(domain string, took time.Duration, accepted bool) {
	switch {
	case took >= p.patience():
		p.domains[domain] = slow
	case accepted:
		p.domains[domain] = quick
	}
	for one := range p.domains { // at random
		if len(p.domains) <= maxDomains {
			return
		}
		delete(p.domains, one)
	}
}
