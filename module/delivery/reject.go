package delivery

import (
	"context"
	"errors"
	"time"

	"github.com/pushfx/pushfx/module/delivery/content"
	"github.com/pushfx/pushfx/module/observe"
)

// isLimited counts a rejection, before the turn ends. It reports whether the gate has
// reached the rejection limit: then no more of its pushers are removed.
func (s *sending) isLimited() (stopped bool) {
	stopped, isNew := s.d.gates.reject(s.turn)
	if isNew {
		s.d.observer.Report(observe.TooManyRejections, nil)
	}
	return stopped
}

// reject removes a pusher with a rejected pushkey, unless it was set again meanwhile
// (Matrix specification, Push Gateway API: "cease sending notification requests for
// these pushkeys and remove the associated pushers"). At the rejection limit, the
// rejection counts as a failure.
func (s *sending) reject(life context.Context, p posted, first, of string) bool {
	isStopped := s.isLimited()
	s.endTurnAfter(p.verdict, p.class, 0)
	if isStopped {
		p.verdict = content.Busy
		return s.notDelivered(life, p, first, of)
	}
	if err := s.d.host.RemovePusher(life, s.user, s.target.Key, s.target.SetAt); err != nil {
		s.d.failures.add("remove a rejected pusher", err)
		s.postpone(retryQueue, nil)
		return false
	}
	s.d.observer.Report(observe.PusherRemoved, errors.New(s.claim.Target.Name))
	s.readAt = time.Time{} // the pusher was removed or set again
	s.target = nil
	return true
}
