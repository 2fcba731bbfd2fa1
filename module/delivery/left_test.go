package delivery

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/fault"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/observe"
)

// leftRow is an event in an outbox, with the users who are left.
type leftRow struct {
	event int
	users []mxid.UserID
}

// handOver returns the row, unless nobody is left.
func (w *world) handOver(d *Delivery, r leftRow) []leftRow {
	w.t.Helper()
	e := message(r.event, "!r:h")
	decisions, undecided := d.Decide(context.Background(), e, membersOf(r.users))
	left, all := module.Left(errors.Join(undecided, d.Notify(context.Background(), e, decisions)))
	if all {
		w.t.Fatalf("event %d: the error names nobody", r.event)
	}
	if len(left) == 0 {
		return nil
	}
	return []leftRow{{r.event, left}}
}

// While a part of the storage is away, an outbox repeats its events each minute. All others get each event once, and
// the rest get theirs when it is back.
func TestAnOutboxRepeatsForTheUsersWhoAreLeft(t *testing.T) {
	const events, rounds, users = 300, 10, 6
	inBubble(t, func(w *world) {
		newParted(w)
		isAway := true
		w.queue.Fail = func(operation string, user mxid.UserID) error {
			if operation == "append" && isAway && isOdd(user) {
				return errors.New("refused")
			}
			return nil
		}
		var members []mxid.UserID
		for i := range users {
			members = append(members, name(i))
			w.set(name(i), key(i), "gw")
		}
		d := w.host()
		var rows []leftRow
		var all []int
		for e := range events {
			rows, all = append(rows, w.handOver(d, leftRow{e, members})...), append(all, e)
		}
		if len(rows) != events {
			t.Fatalf("%d rows", len(rows))
		}
		for range rounds {
			time.Sleep(time.Minute)
			var left []leftRow
			for _, r := range rows {
				left = append(left, w.handOver(d, r)...)
			}
			rows = left
		}
		for i := range users {
			if !isOdd(name(i)) {
				w.want(key(i), all...)
			} else {
				w.want(key(i))
			}
		}
		isAway = false
		time.Sleep(time.Minute)
		for _, r := range rows {
			if left := w.handOver(d, r); len(left) > 0 {
				t.Fatalf("event %d: left are %v", r.event, left)
			}
		}
		w.wait(time.Minute, func() bool { return w.queue.Waiting() == 0 })
		for i := range users {
			w.want(key(i), all...)
		}
	})
}

// A notification that is stored, but not confirmed by replicas, is sent once, and is none of the host's work.
func TestWhatIsNotConfirmedIsSent(t *testing.T) {
	withReader(t, func(w *world, r *reader) {
		w.queue.IsConfirmed = func(user mxid.UserID) bool { return user != name1 }
		w.set(name1, "key", "gw")
		w.set(name(5), key(5), "gw")
		d := w.host()
		const events, badges = 5, 7
		for e := range events {
			w.notify(d, e, "!r:h", name1, name(5)) // no error
			w.notify(d, e, "!r:h", name1, name(5))
		}
		synctest.Wait()
		w.want("key", 0, 1, 2, 3, 4)
		w.want(key(5), 0, 1, 2, 3, 4)
		for n := range badges {
			r.set(name1, n+1)
			w.badge(d, name1)
			time.Sleep(time.Minute)
		}
		if all := w.delivered("key"); len(all) != events+badges || all[len(all)-1].counts.Unread != badges {
			t.Errorf("%d were delivered", len(all))
		}
		if n, failed := w.counted(observe.NotificationUnconfirmed, ""), w.counted(observe.HandoverFailed, FailDurability); n != 2*events+badges || failed > 0 {
			t.Errorf("%d were counted, %d failed", n, failed)
		}
		if n := w.reported(observe.NotificationsUnconfirmed); n != badges { // one in half a minute
			t.Errorf("%d reports", n)
		}
	})
}

// A log that cannot be read costs its user alone.
func TestADamagedLogLeavesItsUserOut(t *testing.T) {
	inBubble(t, func(w *world) {
		w.queue.Fail = func(operation string, user mxid.UserID) error {
			if operation == "append" && user == name1 {
				return fault.New(fault.Database, "The stored notifications cannot be read.")
			}
			return nil
		}
		w.set(name1, "key", "gw")
		w.set(name(5), key(5), "gw")
		d := w.host()
		for e := range 3 {
			w.notify(d, e, "!r:h", name1, name(5)) // no error
			time.Sleep(time.Second)
		}
		w.want("key")
		w.want(key(5), 0, 1, 2)
		if n := w.reported(observe.DeliveryDelayed); n != 1 {
			t.Errorf("%d reports", n)
		}
	})
}

// A permanent error is no reason to drop an event for which users are left.
func TestAnEventWithoutAnIDNamesNobody(t *testing.T) {
	inBubble(t, func(w *world) {
		w.set(name1, "key", "gw")
		err := w.send(w.host(), module.Event{JSON: `{"type":"m.room.message","content":{}}`}, name1)
		if left, all := module.Left(err); err == nil || len(left) > 0 || all || !module.IsPermanent(err) {
			t.Errorf("got %v, left are %v", err, left)
		}
		if slices.Contains(w.got("key"), "") {
			t.Error("something was sent")
		}
	})
}
