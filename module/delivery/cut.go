package delivery

import (
	"context"
	"math"
	"slices"
	"time"

	"github.com/pushfx/pushfx/module"
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

// cutIfLong cuts the log of a user that is longer than Config.MaxBacklog by a fifth.
func (d *Delivery) cutIfLong(ctx context.Context, user mxid.UserID, added module.Appended) {
	every := int64(cutEvery)
	for int64(added.Length) > 12*every {
		every *= 2
	}
	if added.Again || added.Length*5 <= d.cfg.MaxBacklog*6 || added.End%every != 0 {
		return
	}
	if !d.start(func(life context.Context) { d.cut(life, user) }) {
		d.cut(ctx, user)
	}
}

func (d *Delivery) cut(ctx context.Context, user mxid.UserID) {
	log, err := d.queue.Log(ctx, user)
	if err == nil {
		chosen := leastImportant(log, d.cfg.MaxBacklog, d.clock())
		if err = d.queue.Cut(ctx, user, chosen); err == nil {
			for _, p := range log.Pushers {
				at, _ := slices.BinarySearch(chosen, p.Number)
				d.dropped(DropCoalesced, len(chosen)-at)
			}
		}
	}
	if err != nil && ctx.Err() == nil {
		d.failures.add("cut a long log", err)
	}
}

// leastImportant returns the numbers of the notifications to remove from a log, so that limit
// are left: counts first, then low priority, then the oldest of the room with most. It spares
// the ones at which a claimed pusher is, and young ones, unless more than keepMost times the
// limit would be left.
func leastImportant(log module.Log, limit int, now time.Time) (numbers []int64) {
	first := int64(math.MaxInt64)
	var at []int64 // the places of claimed pushers
	for _, p := range log.Pushers {
		if first = min(first, p.Number); p.Claimed {
			at = append(at, p.Number)
		}
	}
	isYoung := func(n module.Notification) bool { return now.Sub(n.Added) < keepFor }
	var all []module.Notification // that may be chosen
	waiting, old, rooms := 0, 0, map[string]int{}
	for _, n := range log.Notifications {
		if n.Number < first { // all pushers have passed it
			continue
		}
		waiting++
		rooms[n.Room]++
		if slices.Contains(at, n.Number) {
			continue
		}
		if all = append(all, n); !isYoung(n) {
			old++
		}
	}
	rank := func(n module.Notification) int {
		switch n.Priority {
		case module.CountsOnly:
			return math.MaxInt
		case module.LowPriority:
			return math.MaxInt - 1
		}
		return rooms[n.Room]
	}
	for excess := waiting - limit; excess > 0 && len(all) > 0 && (old > 0 || waiting > keepMost*limit); excess-- {
		worst := 0
		for i, n := range all {
			if rank(n) > rank(all[worst]) {
				worst = i
			}
		}
		n := all[worst]
		all = slices.Delete(all, worst, worst+1)
		rooms[n.Room]--
		if isYoung(n) && waiting <= keepMost*limit {
			continue
		}
		if !isYoung(n) {
			old--
		}
		waiting--
		numbers = append(numbers, n.Number)
	}
	slices.Sort(numbers)
	return numbers
}
