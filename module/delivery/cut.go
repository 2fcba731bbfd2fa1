package delivery

import (
	"cmp"
	"container/heap"
	"context"
	"maps"
	"slices"
	"time"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/delivery/content"
	"github.com/pushfx/pushfx/module/mxid"
)

const (
	// A log is cut after cutEvery notifications, a long one after a twelfth of its length or
	// more: since a cut reads all of it, the cost for each notification stays the same.
	cutEvery = 20

	// keepFor is the age below which notifications are not cut, up to keepMost times the
	// limit: a log may become long while it waits for the claim of a dead host to lapse.
	keepFor  = 30 * time.Second
	keepMost = 10
)

// cutter cuts long logs.
type cutter struct{ *Delivery }

// isLong reports whether more notifications wait than Config.MaxBacklog and a fifth.
func (d cutter) isLong(waiting int) bool { return waiting*5 > d.cfg.MaxBacklog*6 }

// cutIfLong cuts the pushers of a user with a long log.
func (d cutter) cutIfLong(ctx context.Context, user mxid.UserID, added module.Appended) {
	every := int64(cutEvery)
	for int64(added.Length) > 12*every {
		every *= 2
	}
	if added.Again || !d.isLong(added.Length) || added.End%every != 0 {
		return
	}
	if !d.start(func(life context.Context) { d.cut(life, user) }) {
		d.cut(ctx, user)
	}
}

// cut cuts each pusher of a user for which too much waits, as if the user had no other one.
func (d cutter) cut(ctx context.Context, user mxid.UserID) {
	log, err := d.queue.Log(ctx, user)
	if err != nil || len(log.Notifications) == 0 {
		d.failedToCut(ctx, err)
		return
	}
	last, now, dropped := log.Notifications[len(log.Notifications)-1].Number, d.clock(), 0
	for i := range log.Pushers {
		p := &log.Pushers[i]
		if !d.isLong(len(p.Waiting)) {
			continue
		}
		spared := []int64{last} // a pusher may begin with counts that are the last
		if p.Claimed {
			spared = append(spared, p.Waiting[0])
		}
		gone := leastImportant(notificationsOf(log, p), spared, d.cfg.MaxBacklog, now)
		p.Waiting = slices.DeleteFunc(p.Waiting, func(n int64) bool {
			_, isGone := slices.BinarySearch(gone, n)
			return isGone
		})
		dropped += len(gone)
	}
	done, err := d.queue.Cut(ctx, user, log)
	if d.failedToCut(ctx, err); done {
		d.dropped(DropCoalesced, dropped)
	}
}

func (d cutter) failedToCut(ctx context.Context, err error) {
	if err != nil && ctx.Err() == nil {
		d.failures.add("cut a long log", err)
	}
}

func notificationsOf(log module.Log, p *module.LogPusher) (all []module.Notification) {
	for _, n := range log.Notifications {
		if _, found := slices.BinarySearch(p.Waiting, n.Number); found {
			all = append(all, n)
		}
	}
	return all
}

// leastImportant returns the numbers of the notifications to take from a pusher, so that limit
// are left: counts first, then low priority, then the oldest of the room with most. The newest
// call of each room goes last while it rings. The spared ones stay, and young ones, unless more than keepMost times the limit would be left.
func leastImportant(waiting []module.Notification, spared []int64, limit int, now time.Time) (numbers []int64) {
	left, old := len(waiting), 0
	isYoung := func(n module.Notification) bool { return now.Sub(n.Added) < keepFor }
	rooms := map[string]*roomWaiting{}
	var byPriority [2][]module.Notification // counts, then low priority
	var ringing []module.Notification
	calls := newestCalls(waiting, now)
	for i, n := range waiting {
		room := rooms[n.Room]
		if room == nil {
			room = &roomWaiting{}
			rooms[n.Room] = room
		}
		room.waiting++
		switch {
		case slices.Contains(spared, n.Number):
			continue
		case n.Priority == module.CountsOnly:
			byPriority[0] = append(byPriority[0], n)
		case n.Priority == module.LowPriority:
			byPriority[1] = append(byPriority[1], n)
		case calls[n.Room] == n.Number:
			ringing = append(ringing, n)
		default:
			room.places = append(room.places, i)
		}
		if !isYoung(n) {
			old++
		}
	}
	take := func(n module.Notification) {
		switch isOld := !isYoung(n); {
		case isOld:
			old--
		case left <= keepMost*limit:
			return
		}
		left--
		numbers = append(numbers, n.Number)
	}
	excess := len(waiting) - limit
	goesOn := func() bool { excess--; return excess >= 0 && (old > 0 || left > keepMost*limit) }
	takeOf := func(all []module.Notification) {
		for len(all) > 0 && goesOn() {
			rooms[all[0].Room].waiting--
			take(all[0])
			all = all[1:]
		}
	}
	takeOf(slices.Concat(byPriority[:]...))
	most := roomsByWaiting(slices.DeleteFunc(slices.Collect(maps.Values(rooms)), func(r *roomWaiting) bool { return len(r.places) == 0 }))
	heap.Init(&most)
	for len(most) > 0 && goesOn() {
		room := most[0]
		n := waiting[room.places[0]]
		if room.places, room.waiting = room.places[1:], room.waiting-1; len(room.places) == 0 {
			heap.Pop(&most)
		} else {
			heap.Fix(&most, 0)
		}
		take(n)
	}
	takeOf(ringing)
	slices.Sort(numbers)
	return numbers
}

// newestCalls returns the number of the newest call that rings, by room.
func newestCalls(waiting []module.Notification, now time.Time) map[string]int64 {
	calls := map[string]int64{}
	for _, n := range waiting {
		if m, err := content.ReadMeta(n.Meta); err == nil && m.Rings(now) {
			calls[n.Room] = n.Number
		}
	}
	return calls
}

// roomWaiting is what waits of a room.
type roomWaiting struct {
	waiting int
	places  []int // of the notifications that may be taken
}

// roomsByWaiting is a heap: the room with most waiting is first, of several the one with the oldest
// notification.
type roomsByWaiting []*roomWaiting

func (r roomsByWaiting) Len() int { return len(r) }
func (r roomsByWaiting) Less(i, j int) bool {
	return cmp.Or(r[j].waiting-r[i].waiting, r[i].places[0]-r[j].places[0]) < 0
}
func (r roomsByWaiting) Swap(i, j int) { r[i], r[j] = r[j], r[i] }
func (r *roomsByWaiting) Push(x any)   { *r = append(*r, x.(*roomWaiting)) }
func (r *roomsByWaiting) Pop() any {
	old := *r
	*r = old[:len(old)-1]
	return old[len(old)-1]
}
