package delivery

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/mxid"
)

// unreadCounts is what a host knows of what users have read.
type unreadCounts struct {
	mu     sync.Mutex
	counts map[mxid.UserID]int // a negative count fails
	read   map[module.UserEvent]bool
	asked  int
}

func (u *unreadCounts) Counts(_ context.Context, users []mxid.UserID) map[mxid.UserID]module.Result[module.Counts] {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.asked++
	all := map[mxid.UserID]module.Result[module.Counts]{}
	for _, user := range users {
		if n, found := u.counts[user]; found && n < 0 {
			all[user] = module.Result[module.Counts]{Err: errors.New("failed")}
		} else if found {
			all[user] = module.Result[module.Counts]{Value: module.Counts{Unread: n}}
		}
	}
	return all
}

func (u *unreadCounts) AreRead(_ context.Context, events []module.UserEvent) []bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	if len(u.read) == 0 {
		return nil
	}
	read := make([]bool, len(events))
	for i, e := range events {
		read[i] = u.read[e]
	}
	return read
}

func (u *unreadCounts) set(user mxid.UserID, n int) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.counts[user] = n
}

func (w *world) countsOf(pushkey string) (all []string) {
	for _, p := range w.all() {
		switch {
		case p.pushkey != pushkey:
		case p.counts == nil:
			all = append(all, p.event+" none")
		default:
			all = append(all, fmt.Sprintf("%s %d", p.event, p.counts.Unread))
		}
	}
	return all
}

func TestNotificationsHaveTheCountsOfTheirTime(t *testing.T) {
	inBubble(t, func(w *world) {
		u := &unreadCounts{counts: map[mxid.UserID]int{name(1): 3, name(2): -1, name(4): 0}, read: map[module.UserEvent]bool{
			{User: name(1), RoomID: "!r:h", EventID: "$2"}: true,
		}}
		w.unread = u
		d, stop := w.started()
		defer stop()
		for i := range 5 {
			w.set(name(i), key(i), "gw")
		}
		for e := range 3 {
			w.notify(d, e+1, "!r:h", name(1), name(2), name(3), name(4))
		}
		synctest.Wait()
		for i, want := range map[int]string{
			1: "[$1 3 $3 3]", 2: "[$1 none $2 none $3 none]", 3: "[$1 none $2 none $3 none]", 4: "[$1 0 $2 0 $3 0]",
		} {
			if got := fmt.Sprint(w.countsOf(key(i))); got != want {
				t.Errorf("user %d got %s, want %s", i, got, want)
			}
		}
		if got := w.drops(DropRead); got != 1 {
			t.Errorf("%d are read", got)
		}
	})
}

func TestBadgesAreUpdatedOnceAndIfTheyChange(t *testing.T) {
	inBubble(t, func(w *world) {
		u := &unreadCounts{counts: map[mxid.UserID]int{name(1): 3, name(2): 1}}
		w.unread = u
		d, stop := w.started()
		defer stop()
		w.set(name(1), key(1), "gw")
		w.set(name(2), key(2), "gw")
		w.notify(d, 1, "!r:h", name(1))
		synctest.Wait()
		for range 5 { // nothing has changed
			d.UpdateBadges(t.Context(), name(1), name(3))
			time.Sleep(10 * time.Second)
		}
		for n := range 3 {
			u.set(name(1), 2-n)
			d.UpdateBadges(t.Context(), name(1))
			time.Sleep(time.Second / 2)
		}
		d.UpdateBadges(t.Context(), name(2)) // a user without counts
		time.Sleep(10 * time.Second)
		if got := fmt.Sprint(w.countsOf(key(1))); got != "[$1 3  0]" {
			t.Errorf("got %s", got)
		}
		if got := fmt.Sprint(w.countsOf(key(2))); got != "[ 1]" {
			t.Errorf("the other got %s", got)
		}
		if entries, held := w.queue.counts(); entries != 0 || held != 0 {
			t.Errorf("%d entries and %d held pushers are left", entries, held)
		}
	})
}

// Counts alone wake no device while its gateway is away, and none later: those that
// come with the next notification are newer.
func TestCountsAloneAreNotHeld(t *testing.T) {
	inBubble(t, func(w *world) {
		u := &unreadCounts{counts: map[mxid.UserID]int{name(1): 3}}
		w.unread = u
		d, stop := w.started()
		defer stop()
		w.set(name(1), key(1), "gw")
		w.answer("gw", always(502))
		w.notify(d, 1, "!r:h", name(1))
		synctest.Wait()
		u.set(name(1), 2)
		d.UpdateBadges(t.Context(), name(1))
		time.Sleep(5 * time.Second)
		before := len(w.all())
		w.answer("gw", always(200))
		time.Sleep(longestWait)
		if got := fmt.Sprint(w.countsOf(key(1))[before:]); got != "[$1 2]" {
			t.Errorf("got %s", got)
		}
	})
}

func TestBadgesThatCannotBeHandedOverAreTriedAgain(t *testing.T) {
	inBubble(t, func(w *world) {
		w.unread = &unreadCounts{counts: map[mxid.UserID]int{name(1): 3}}
		failing := 3
		w.queue.failWith(func(op string) (error, error) {
			if op == "append" && failing > 0 {
				failing--
				return errAway, nil
			}
			return nil, nil
		})
		d, stop := w.started()
		defer stop()
		w.set(name(1), key(1), "gw")
		d.UpdateBadges(t.Context(), name(1))
		time.Sleep(4*w.cfg.BadgeDelay + time.Second)
		if got := fmt.Sprint(w.countsOf(key(1))); got != "[ 3]" {
			t.Errorf("got %s", got)
		}
	})
}
