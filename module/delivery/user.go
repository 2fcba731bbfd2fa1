package delivery

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/fault"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/pusher"
)

// fresh is for how long it counts what was read of a user's pushers.
const fresh = time.Second

// user is one of a shard for whom there is something to do.
type user struct {
	shard   *shard
	id      mxid.UserID
	devices []device
	read    time.Time // when the devices were, the zero time if they never were
	loading bool
	arrived []*notification // which wait for the devices
	fifos   []*fifo         // of pushers for which there is something to do
}

func (sh *shard) user(id mxid.UserID) *user {
	u := sh.users[id]
	if u == nil {
		u = &user{shard: sh, id: mxid.UserID(strings.Clone(string(id)))}
		sh.users[u.id] = u
	}
	return u
}

func (u *user) isFresh(now time.Time) bool { return !u.read.IsZero() && now.Sub(u.read) <= fresh }

// arrive takes a notification out of the log.
func (u *user) arrive(n *notification) {
	u.arrived = append(u.arrived, n)
	if u.isFresh(time.Now()) && !u.loading {
		u.deliver()
		return
	}
	u.refresh()
}

// refresh has the devices read, with those of others.
func (u *user) refresh() {
	if !u.loading {
		u.loading = true
		u.shard.s.toLoad.add(u)
	}
}

// load reads the pushers of users.
func (s *sender) load(users []*user) {
	ids := make([]mxid.UserID, len(users))
	for i, u := range users {
		ids[i] = u.id
	}
	s.bounded(func(ctx context.Context) func() {
		began := time.Now()
		lists := s.pushers.Pushers(ctx, ids)
		return func() {
			s.toLoad.done()
			for _, u := range users {
				if err := u.loaded(began, lists); err != nil {
					s.failed("read pushers", err)
				}
			}
		}
	})
}

// loaded takes in what was read. After an error it is read again.
func (u *user) loaded(began time.Time, lists map[mxid.UserID]module.Result[pusher.List]) error {
	if u.shard.lost {
		return nil
	}
	if err := u.takeDevices(began, lists); err != nil {
		u.shard.s.after(retryQueue, func() { u.shard.s.toLoad.add(u) })
		return err
	}
	u.loading = false
	u.deliver()
	for _, f := range slices.Clone(u.fifos) { // some may be forgotten
		if f.state == fifoLoading {
			f.resume()
		}
	}
	u.settle()
	return nil
}

// takeDevices keeps what was read of the user. Pushers that cannot be read are as
// good as none: nothing can be sent to them.
func (u *user) takeDevices(began time.Time, lists map[mxid.UserID]module.Result[pusher.List]) error {
	result, found := lists[u.id]
	switch {
	case !found:
		return errNoResult
	case result.Err != nil && fault.KindOf(result.Err) != fault.Database:
		return result.Err
	case began.Before(u.read): // another read was later
		return nil
	}
	u.devices, u.read = nil, began
	for _, p := range result.Value.All() {
		if d, ok := readDevice(u.id, p); ok {
			u.devices = append(u.devices, d)
		}
	}
	return nil
}

// device returns the pusher of an id as it was read last, nil if there is none
// to be sent to.
func (u *user) device(id pusherID) *device {
	for i := range u.devices {
		if u.devices[i].id == id {
			return &u.devices[i]
		}
	}
	return nil
}

// deliver gives what has arrived to the user's pushers.
func (u *user) deliver() {
	arrived := u.arrived
	u.arrived = nil
	for _, n := range arrived {
		var devices []*device
		for i := range u.devices {
			d := &u.devices[i]
			if !n.entry.isDoneFor(n.place, d.id) && !(n.event.countsOnly && d.noCounts) {
				devices = append(devices, d)
			}
		}
		u.shard.expect(n, len(devices))
		for _, d := range devices {
			own := *n
			u.fifo(d.id).push(&own, d)
		}
	}
	u.settle()
}

func (u *user) fifo(id pusherID) *fifo {
	for _, f := range u.fifos {
		if f.id == id {
			return f
		}
	}
	f := &fifo{user: u, id: id}
	u.fifos = append(u.fifos, f)
	return f
}

// settle forgets a user for whom there is nothing to do.
func (u *user) settle() {
	isKnown := u.shard.users[u.id] == u // it may have been forgotten before
	if isKnown && len(u.fifos) == 0 && len(u.arrived) == 0 && !u.loading {
		delete(u.shard.users, u.id)
	}
}
