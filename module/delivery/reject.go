package delivery

import (
	"context"
	"fmt"
	"time"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/observe"
)

// RejectedError describes a pusher that was removed because its gateway rejected the pushkey.
// Its text has no pushkey.
type RejectedError struct {
	User    mxid.UserID
	Pusher  string // see [PusherID]
	App     string // the app_id
	Device  string // the id of the user's device, empty if unknown
	Gateway string // see [GatewayName]
}

// Error returns the description.
func (e *RejectedError) Error() string {
	return fmt.Sprintf("%s of %s: %s rejected its pushkey", e.Pusher, e.User, e.Gateway)
}

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
func (s *sending) reject(life context.Context, p posted, number int64) bool {
	isStopped := s.isLimited()
	s.endTurnAfter(p.Answer)
	return s.removeRejected(life, p, number, isStopped)
}

// removeRejected is reject after the turn.
func (s *sending) removeRejected(life context.Context, p posted, number int64, isStopped bool) bool {
	if isStopped {
		p.Outcome = module.Busy
		return s.notDelivered(life, p, number)
	}
	if err := s.d.host.RemovePusher(life, s.claim.User, s.target.Key, s.target.SetAt); err != nil {
		s.releaseAfter("remove a rejected pusher", err)
		return false
	}
	s.d.observer.Report(observe.PusherRemoved, &RejectedError{s.claim.User, s.claim.Pusher, s.target.Key.AppID, s.target.Device, s.target.Gateway})
	s.readAt = time.Time{} // the pusher was removed or set again
	s.target = nil
	return true
}
