package delivery

import (
	"net/http"
	"time"
)

// poisonAttempts is how often the first notification of a pusher may fail while
// the gateway takes others.
const poisonAttempts = 8

// blame is what speaks against the first notification of a pusher, which may be
// poison: one that fails while the gateway takes others.
//
// Where nobody is sent anything else that shows it, the pusher's second
// notification does: it is tried right after the first has failed as often, and if
// it is taken, the first once more right after that. Of an event that was poison
// for another pusher the first failure is enough.
type blame struct {
	of       *notification
	failedAt time.Time // last
	beside   int       // failures before which the gateway took another one
	answered int       // failures since of which it may be the cause
	ahead    bool      // the second notification is to be tried
}

// add counts a failure of the first notification, and reports whether it is
// poison.
func (b *blame) add(queue []*notification, g *gateway, status int, now time.Time) (isPoison bool) {
	if b.of != queue[0] {
		*b = blame{of: queue[0]}
	}
	isBeside := !b.failedAt.IsZero() && g.aliveAt.After(b.failedAt)
	b.failedAt = now
	if isBeside {
		b.beside++
		b.answered = 0
	}
	if b.beside >= poisonAttempts-1 && (isBeside || isOfNotification(status)) {
		return true
	}
	if isOfNotification(status) {
		b.answered++
		isSuspect := b.answered%poisonAttempts == 0 || b.of.event.id == g.poison
		b.ahead = isSuspect && len(queue) > 1 && !queue[1].event.countsOnly
	}
	return false
}

// isOfNotification reports whether it may be the notification for which a gateway
// answers so, as sygnal does with 502: not where there is no answer, or one that is
// about the gateway.
func isOfNotification(status int) bool {
	return status >= http.StatusInternalServerError && status != http.StatusServiceUnavailable
}

// choose returns which notification is to be sent now.
func (b *blame) choose(queue []*notification) *notification {
	isAhead := b.ahead && b.of == queue[0] && len(queue) > 1
	if b.ahead = false; isAhead {
		return queue[1]
	}
	return queue[0]
}

// took is for a second notification that was delivered before the first.
func (b *blame) took() { b.beside = poisonAttempts }
