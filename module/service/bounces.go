package service

import (
	"sync"
	"time"

	"github.com/pushfx/pushfx/module/fault"
	"github.com/pushfx/pushfx/module/mxid"
)

// In bounceWindow, bounces remove the pushers of bouncedUsers users, as many as delivery
// removes without doubt because of refused addresses: a host that reads reports wrongly, or that a
// block list has, must not remove the pushers of all users at once. A user may have any number of
// addresses, repeat reports about them, and set them again: so each user counts once in bouncesKept.
const (
	bouncedUsers = 4
	bounceWindow = 10 * time.Minute
	bouncesKept  = 24 * time.Hour
)

var errTooManyBounces = fault.New(fault.Unavailable, "Too many mails have bounced, try again later.")

// bounces limits how many users lose pushers. It is safe for concurrent use.
type bounces struct {
	mu        sync.Mutex
	counted   map[mxid.UserID]time.Time
	isStopped bool
}

// add counts a user who is about to lose a pusher, unless the limit is reached. IsNew reports
// whether it was reached now.
func (b *bounces) add(user mxid.UserID, now time.Time) (stopped, isNew bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	inWindow := 0
	for other, at := range b.counted {
		switch age := now.Sub(at); {
		case age >= bouncesKept:
			delete(b.counted, other)
		case age < bounceWindow:
			inWindow++
		}
	}
	if inWindow < bouncedUsers {
		b.isStopped = false
	}
	if _, isKnown := b.counted[user]; isKnown {
		return false, false
	}
	if inWindow < bouncedUsers {
		if b.counted == nil {
			b.counted = map[mxid.UserID]time.Time{}
		}
		b.counted[user] = now
		return false, false
	}
	isNew, b.isStopped = !b.isStopped, true
	return true, isNew
}
