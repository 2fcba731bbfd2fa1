package service

import (
	"sync"
	"time"

	"github.com/pushfx/pushfx/module/fault"
	"github.com/pushfx/pushfx/module/pusher"
)

// In bounceWindow, bounces remove the pushers of bouncedAddresses addresses, as many as delivery
// removes without doubt because of refused addresses: a host that reads reports wrongly, or that a
// block list has, must not remove the pushers of all users at once.
const (
	bouncedAddresses = 4
	bounceWindow     = 10 * time.Minute
)

var errTooManyBounces = fault.New(fault.Unavailable, "Too many mails have bounced, try again later.")

// bounces limits how many addresses lose their pushers. It is safe for concurrent use.
type bounces struct {
	mu        sync.Mutex
	began     time.Time
	addresses map[pusher.Digest]bool
}

// add counts the digest of an address. IsNew reports whether the limit was reached now.
func (b *bounces) add(address pusher.Digest, now time.Time) (stopped, isNew bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if now.Sub(b.began) >= bounceWindow {
		b.began, b.addresses = now, map[pusher.Digest]bool{}
	}
	was := len(b.addresses)
	if was <= bouncedAddresses {
		b.addresses[address] = true
	}
	return len(b.addresses) > bouncedAddresses, len(b.addresses) > bouncedAddresses && was <= bouncedAddresses
}
