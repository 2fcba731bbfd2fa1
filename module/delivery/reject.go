package delivery

import (
	"context"
	"errors"
	"time"

	"github.com/pushfx/pushfx/module/delivery/content"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/observe"
)

// The rejection limit. When a gate reaches it, no more of its pushers are removed.
const (
	rejectWindow   = 10 * time.Minute
	rejectPushkeys = 5
	rejectUsers    = 3
	rejectShare    = 5 // more than one of this many pushers
)

// rejections has the answers of at least ten minutes, by gate.
type rejections map[string]*answers

type answers struct {
	rejected  recent[mxid.UserID] // pushers
	sent      recent[mxid.UserID]
	rotatedAt time.Time
	isStopped bool
}

// add counts an answer for a pusher. Stopped is true at the rejection limit, and IsNew
// if the limit was reached now.
func (r rejections) add(now time.Time, gate, pusher string, user mxid.UserID, isRejected bool) (stopped, isNew bool) {
	a := r[gate]
	if a == nil {
		if !isRejected {
			return false, false // counting starts with the first rejection
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

func (r rejections) stopped() (n int) {
	for _, a := range r {
		if a.isStopped {
			n++
		}
	}
	return n
}

func (s *sending) answered(isRejected bool) (stopped bool) {
	s.mu.Lock()
	stopped, isNew := s.rejections.add(time.Now(), s.target.Gate(), s.claim.Target.Name, s.user, isRejected)
	s.mu.Unlock()
	if isNew {
		s.observer.Report(observe.TooManyRejections, nil)
	}
	return stopped
}

// reject removes a pusher with a rejected pushkey, unless it was set again since then
// (Matrix specification, Push Gateway API: "cease sending notification requests for
// these pushkeys and remove the associated pushers"). At the rejection limit, the
// rejection counts as a failure.
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
	s.readAt = time.Time{} // it was removed or set again
	s.target = nil
	return true
}
