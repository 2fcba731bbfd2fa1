package delivery

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/delivery/channel"
	"github.com/pushfx/pushfx/module/delivery/turns"
)

// posted is the result of a request.
type posted struct {
	channel.Answer
	isLost bool // another host has the claim
	took   time.Duration
}

// request makes a request, and renews the claim while it is in flight. It cancels the
// request when the claim lapses, because then another host may send it.
func (s *sending) request(life context.Context, trace string, do func(context.Context) channel.Answer) (p posted) {
	traced, end := s.d.observer.BeginPost(life, s.target.Gateway, trace)
	ctx, cancel := context.WithTimeout(traced, s.d.cfg.RequestTimeout)
	defer cancel()
	began := time.Now()
	r := &renewal{s: s, turn: s.turn, life: life, cutOff: cancel, began: began}
	r.begin()
	p.Answer = do(ctx)
	p.took, p.isLost = time.Since(began), r.end()
	end(string(outcomeOf(p.Answer)), p.Status)
	return p
}

// hangAfter is the time without an answer after which a request hangs.
const hangAfter = 2 * time.Second

type renewal struct {
	s      *sending
	turn   *turns.Turn // of the request
	life   context.Context
	cutOff context.CancelFunc // ends the request
	began  time.Time          // of the request

	mu      sync.Mutex // held during each renewal
	timer   *time.Timer
	isEnded bool
	isLost  bool // another host has the claim
}

func (r *renewal) begin() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.timer = time.AfterFunc(renewAfter, r.renew)
}

func (r *renewal) renew() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.isEnded {
		return
	}
	// Once, the renewal after hangAfter says that the user hangs at the gate.
	untilHang := hangAfter - time.Since(r.began)
	hangs := untilHang <= 0 && !r.s.claim.Fails && r.s.d.gates.hangs(r.turn)
	err := r.s.renew(r.life, hangs)
	r.s.claim.Fails = r.s.claim.Fails || hangs && err == nil
	if errors.Is(err, module.ErrFenced) || err != nil && r.s.hasLapsed() {
		r.isLost = errors.Is(err, module.ErrFenced)
		r.cutOff()
	}
	if untilHang > 0 {
		r.timer.Reset(min(renewAfter, untilHang))
	} else {
		r.timer.Reset(renewAfter)
	}
}

// end waits for a renewal in progress.
func (r *renewal) end() (isLost bool) {
	r.timer.Stop()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.isEnded = true
	return r.isLost
}
