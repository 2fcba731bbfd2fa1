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
// addresses, and repeat reports about them.
const (
	bouncedUsers = 4
	bounceWindow = 10 * time.Minute
)

var errTooManyBounces = fault.New(fault.Unavailable, "Too many mails have bounced, try again later.")

// bounces limits how many users lose pushers. It is safe for concurrent use.
type bounces struct {
	mu        sync.Mutex
	began     time.Time
	users     map[mxid.UserID]bool
	isStopped bool
}

// add counts a user who is about to lose a pusher, unless the limit is reached. IsNew reports
// whether it was reached now.
func (b *bounces) add(user mxid.UserID, now time.Time) (stopped, isNew bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if now.Sub(b.began) >= bounceWindow {
		b.began, b.users, b.isStopped = now, map[mxid.UserID]bool{}, false
	}
	if b.users[user] || len(b.users) < bouncedUsers {
		b.users[user] = true
		return false, false
	}
	isNew, b.isStopped = !b.isStopped, true
	return true, isNew
}
