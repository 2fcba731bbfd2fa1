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
// notification does: it is tried right after the first has failed as often, from
// this pusher or others, and if it is taken, the first once more after that.
type blame struct {
	of       *notification
	failedAt time.Time // last
	beside   int       // failures before which the gateway took another one
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
		if g.suspects.isPoison(b.of.event) {
			b.beside = poisonAttempts
		}
	}
	if b.beside >= poisonAttempts-1 && (isBeside || isOfNotification(status)) {
		return true
	}
	if isOfNotification(status) {
		b.ahead = len(queue) > 1 && !queue[1].event.countsOnly && g.suspects.tryNext(b.of.event)
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
func (b *blame) took(g *gateway) {
	b.beside = poisonAttempts
	g.suspects.markPoison(b.of.event)
}

// maxSuspects is how many events a gateway is suspected not to take. Where it fails
// to take more, all are forgotten: then it is the gateway.
const maxSuspects = 100

// suspects are events that a gateway failed to take, from whichever pushers, and has
// not taken since. One is poison for it that failed again and again while others
// were taken: so an event for many pushers does not keep the gateway closed. Its
// failures are not the gateway's any more, and the first of each pusher has its next
// notification tried.
type suspects map[string]*suspect

type suspect struct {
	failures int       // a second apart at least, since another event was taken
	failedAt time.Time // the last of them
	tryNext  bool      // a pusher's next event is to be tried
	beside   int       // how often another event was taken after it had failed
}

func (all *suspects) of(ev *event) *suspect {
	if (*all)[ev.id] == nil {
		if *all == nil || len(*all) == maxSuspects {
			*all = suspects{}
		}
		(*all)[ev.id] = &suspect{}
	}
	return (*all)[ev.id]
}

func (all *suspects) failed(ev *event, began, now time.Time) {
	if s := all.of(ev); began.Sub(s.failedAt) >= time.Second {
		s.failures++
		s.failedAt = now
		s.tryNext = s.failures%poisonAttempts == 0
	}
}

// markPoison is for one that a pusher has shown to be poison.
func (all *suspects) markPoison(ev *event) { all.of(ev).beside = poisonAttempts }

func (all suspects) taken(ev *event) {
	delete(all, ev.id)
	for _, s := range all {
		if s.failures > 0 {
			s.failures, s.tryNext = 0, false
			s.beside++
		}
	}
}

func (all suspects) isPoison(ev *event) bool {
	s := all[ev.id]
	return s != nil && s.beside >= poisonAttempts-1
}

// tryNext reports whether a pusher to which an event was not sent is to be sent its
// next one: each of poison, of others one after as many failures.
func (all suspects) tryNext(ev *event) bool {
	s := all[ev.id]
	if s == nil || !s.tryNext {
		return all.isPoison(ev)
	}
	s.tryNext = false
	return true
}
