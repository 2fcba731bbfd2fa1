package delivery

import "time"

const (
	// poisonAttempts is how often the first notification of a pusher may fail while
	// the gateway takes others.
	poisonAttempts = 8

	// poisonedFor is for how long after it had poison a gateway is suspected to have
	// more of it, of the same event for example.
	poisonedFor = 10 * time.Minute
)

// blame is what speaks against the first notification of a pusher, which may be
// poison: one that fails while the gateway takes others.
//
// Where nobody is sent anything else that shows it, the pusher's second
// notification does: it is tried right after the first has failed as often, and if
// it is taken, the first once more right after that. Only failures that were
// answered lead to it: where nobody answers, it is not the notification.
type blame struct {
	of       *notification
	failedAt time.Time // last
	beside   int       // failures before which the gateway took another one
	answered int       // failures since, of those that were answered
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
	if b.beside >= poisonAttempts-1 && (isBeside || status != 0) {
		return true
	}
	if status != 0 {
		b.answered++
		isSuspect := b.answered%poisonAttempts == 0 || !g.poisonedAt.IsZero() && now.Sub(g.poisonedAt) < poisonedFor
		b.ahead = isSuspect && len(queue) > 1 && !queue[1].event.countsOnly
	}
	return false
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
