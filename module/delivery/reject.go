package delivery

import (
	"context"
	"errors"
	"time"

	"github.com/pushfx/pushfx/module/delivery/content"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/observe"
)

// When a gateway rejects so many pushkeys of an app that it is more likely to be
// misconfigured than right.
const (
	rejectWindow   = 10 * time.Minute
	rejectPushkeys = 5
	rejectUsers    = 3
	rejectShare    = 5 // more than one of so many pushers that were sent to
)

// rejections are what gateways have answered in the last ten to twenty minutes, by
// gate.
type rejections map[string]*answers

type answers struct {
	rejected  recent[mxid.UserID] // pushers
	sent      recent[mxid.UserID]
	rotatedAt time.Time
	isStopped bool
}

// add counts an answer about a pusher, and reports whether no more pushers of the gate
// are to be removed, and whether that is news.
func (r rejections) add(now time.Time, gate, pusher string, user mxid.UserID, isRejected bool) (stopped, isNew bool) {
	a := r[gate]
	if a == nil {
		if !isRejected {
			return false, false // counted once something was rejected
		}
		a = &answers{rotatedAt: now}
		r[gate] = a
	}
	isRotated := false
	for n := 0; n < 2 && now.Sub(a.rotatedAt) >= rejectWindow; n++ {
		a.rejected.rotate()
		a.sent.rotate()
		a.rotatedAt, isRotated = a.rotatedAt.Add(rejectWindow), true
	}
	if isRotated {
		a.rotatedAt = now
	}
	a.sent.put(pusher, user)
	if isRejected {
		a.rejected.put(pusher, user)
	}
	was := a.isStopped
	if isRejected || isRotated {
		a.isStopped = a.areTooMany()
	}
	if len(a.rejected.young)+len(a.rejected.old) == 0 {
		delete(r, gate)
	}
	return a.isStopped, a.isStopped && !was
}

func (a *answers) areTooMany() bool {
	users, rejected, sent := map[mxid.UserID]bool{}, 0, 0
	a.rejected.all(func(_ string, user mxid.UserID) {
		users[user] = true
		rejected++
	})
	a.sent.all(func(string, mxid.UserID) { sent++ })
	return rejected >= rejectPushkeys && len(users) >= rejectUsers && rejected*rejectShare > sent
}

// stopped is for how many gates no more pushers are removed.
func (r rejections) stopped() (n int) {
	for _, a := range r {
		if a.isStopped {
			n++
		}
	}
	return n
}

// answered counts an answer that came from a gateway.
func (s *sending) answered(isRejected bool) (stopped bool) {
	s.mu.Lock()
	stopped, isNew := s.rejections.add(time.Now(), s.target.Gate(), s.claim.Target.Name, s.user, isRejected)
	s.mu.Unlock()
	if isNew {
		s.observer.Report(observe.TooManyRejections, nil)
	}
	return stopped
}

// reject removes a pusher whose pushkey was rejected, unless it was set anew since
// (Matrix specification, Push Gateway API: "cease sending notification requests for
// these pushkeys and remove the associated pushers"). Where too many are rejected it
// is a failure like others.
func (s *sending) reject(life context.Context, p posted, first, of string) bool {
	took := s.tookLast()
	s.endTurnAfter(p.verdict, p.class, 0)
	if s.answered(true) {
		p.verdict = content.Busy
		return s.notDelivered(life, p, first, of, took)
	}
	if err := s.host.RemovePusher(life, s.user, s.target.Key, s.target.SetAt); err != nil {
		s.failed("remove a rejected pusher", err)
		s.postpone(retryQueue, nil)
		return false
	}
	s.observer.Report(observe.PusherRemoved, errors.New(s.claim.Target.Name))
	s.readAt = time.Time{} // it is gone, or was set anew
	s.target = nil
	return true
}
