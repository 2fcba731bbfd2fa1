package delivery

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/fault"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/retry"
)

// Whatever is stored, the host sends what it was given.
func TestWhatIsClaimedAtOnceIsNotRead(t *testing.T) {
	inBubble(t, func(w *world) {
		w.set(name1, "key", "gw")
		queue := &countedReads{DeliveryQueue: w.queue}
		d, _ := w.hostOn(queue, w)
		synctest.Wait()
		w.notify(d, 1, "!r:h", name1)
		synctest.Wait()
		w.want("key", 1)
		if n := queue.n.Load(); n > 0 {
			t.Errorf("%d notifications were read", n)
		}
	})
}

// The text of an event is stored once for a user, however many pushers wait. All get it soon after an outage.
func TestPushersOfAUserShareTheText(t *testing.T) {
	inBubble(t, func(w *world) {
		w.answer("gw", always(502))
		for p := range 100 {
			w.set(name1, key(p), "gw")
		}
		d := w.host()
		for e := range 10 {
			w.notify(d, e, "!r:h", name1)
		}
		if n := w.log(name1).Bytes; n > 10*300 {
			t.Errorf("%d bytes are stored", n)
		}
		time.Sleep(time.Minute)
		w.answer("gw", slow(20*time.Millisecond, 200))
		w.wait(40*time.Second, func() bool { return w.queue.Waiting() == 0 }) // each waits up to 16 s, and 16 are claimed in 2.5 s
		for p := range 100 {
			if all := w.delivered(key(p)); len(all) != 10 || all[0].event != "$0" || all[9].event != "$9" {
				t.Errorf("%s got %v", key(p), w.got(key(p)))
			}
		}
	})
}

// parted is a queue whose users with an odd number are in a part that answers nothing. As on Redis, a call for many
// users finds that out in a second, and later ones know it.
type parted struct {
	module.DeliveryQueue
	isAway atomic.Bool
	known  atomic.Bool
	calls  atomic.Int64 // to the part
	most   atomic.Int64 // users in a call
}

func isOdd(user mxid.UserID) bool {
	return (user[len(user)-3]-'0')%2 == 1
}

func (q *parted) away(ctx context.Context, user mxid.UserID) error {
	if !q.isAway.Load() || !isOdd(user) {
		return nil
	}
	if !retry.LeavesSilent(ctx) {
		time.Sleep(5 * time.Second)
		return module.Unavailable(context.DeadlineExceeded)
	}
	if !q.known.Load() {
		time.Sleep(time.Second)
		q.known.Store(true)
	}
	return module.Unavailable(retry.ErrSilent)
}

func newParted(w *world) *parted {
	w.queue.PartitionOf = func(user mxid.UserID) int {
		if isOdd(user) {
			return 1
		}
		return 0
	}
	return &parted{DeliveryQueue: w.queue}
}

func (q *parted) Append(ctx context.Context, additions []module.AppendRequest) []module.Result[module.Appended] {
	if err := q.away(ctx, additions[0].User); err != nil {
		q.calls.Add(1)
		q.most.Store(max(q.most.Load(), int64(len(additions))))
		return slices.Repeat([]module.Result[module.Appended]{{Err: err}}, len(additions))
	}
	return q.DeliveryQueue.Append(ctx, additions)
}

func (q *parted) Claim(ctx context.Context, requests []module.ClaimRequest) []module.Result[module.Claimed] {
	if err := q.away(ctx, requests[0].User); err != nil {
		return make([]module.Result[module.Claimed], len(requests))
	}
	return q.DeliveryQueue.Claim(ctx, requests)
}

func (q *parted) Complete(ctx context.Context, c *module.Claim, d module.Done) (int, error) {
	if err := q.away(ctx, c.User); err != nil {
		return 0, err
	}
	return q.DeliveryQueue.Complete(ctx, c, d)
}

// A part of the queue that does not answer costs its own users: a call adds for all others, and names the rest.
func TestAPartThatDoesNotAnswerCostsItsOwnUsers(t *testing.T) {
	inBubble(t, func(w *world) {
		const users = 1000
		queue := newParted(w)
		queue.isAway.Store(true)
		var members, odd []mxid.UserID
		for i := range users {
			members = append(members, name(i))
			if w.set(name(i), key(i), "gw"); isOdd(name(i)) {
				odd = append(odd, name(i))
			}
		}
		slices.Sort(odd)
		d, _ := w.hostOn(queue, w)
		synctest.Wait()
		count := func() (n int) {
			for i := range users {
				n += len(w.got(key(i)))
			}
			return n
		}
		decided := w.decide(d, message(0, "!r:h"), members...)
		notify := func(id int, within time.Duration, members ...mxid.UserID) {
			t.Helper()
			began := time.Now()
			err := d.Notify(t.Context(), message(id, "!r:h"), decided.Of(members))
			if left, all := module.Left(err); !slices.Equal(left, odd) || all || time.Since(began) > within {
				t.Errorf("event %d: %d are left after %v: %v", id, len(left), time.Since(began), err)
			}
			if reasons := reasonsOf(err); len(reasons) != 1 || reasons[0] != FailTimeout || fault.KindOf(err) != fault.Unavailable {
				t.Errorf("event %d: %v", id, reasons)
			}
		}
		go func() {
			time.Sleep(300 * time.Millisecond)
			if n := count(); n != users/2 {
				t.Errorf("%d of the other part came within 0.3 s", n)
			}
		}()
		notify(1, time.Second, members...)
		if queue.calls.Load() > chunksAtOnce || queue.most.Load() > chunkUsers {
			t.Errorf("%d calls of at most %d users", queue.calls.Load(), queue.most.Load())
		}
		notify(2, 0, members...)
		notify(1, 0, odd...)
		queue.isAway.Store(false)
		for n := range 2 {
			w.notify(d, n+1, "!r:h", odd...)
		}
		w.wait(time.Second, func() bool { return w.queue.Waiting() == 0 })
		for i := range users {
			w.want(key(i), 1, 2)
		}
	})
}

// Looks and completions at a part that does not answer delay nothing of the other one. Until the gate has opened again,
// some of the first 19 events wait for that.
func TestAPartThatDoesNotAnswerDelaysNoOther(t *testing.T) {
	for label, isAway := range map[string]bool{"control": false, "away": true} {
		t.Run(label, func(t *testing.T) {
			withReader(t, func(w *world, r *reader) {
				r.takes = func(events []module.UserEvent) time.Duration {
					if isAway && slices.ContainsFunc(events, func(e module.UserEvent) bool { return isOdd(e.User) }) {
						return 5 * time.Second
					}
					return 0
				}
				queue := newParted(w)
				for i := range 40 {
					w.set(name(i), key(i), "gw")
				}
				w.answer("gw", always(502))
				d, _ := w.hostOn(queue, w)
				for i := range 40 {
					w.notify(d, 1000+i, "!r:h", name(i))
				}
				w.answer("gw", always(200))
				queue.isAway.Store(isAway)
				sentAt := map[string]time.Time{}
				for e := range 100 {
					sentAt[fmt.Sprintf("$%d", e)] = time.Now()
					w.notify(d, e, "!r:h", name(2*(e%20)))
					time.Sleep(100 * time.Millisecond)
				}
				time.Sleep(10 * time.Second)
				ages := w.ages(sentAt)
				if len(ages) != 100 || ages[80] > 300*time.Millisecond || ages[99] > 3*time.Second {
					t.Errorf("%d came, the latest after %v", len(ages), ages[len(ages)-1:])
				}
			})
		})
	}
}

// A notification that is added while a host begins to look is not left for the next look.
func TestAHostThatStartsMissesNothing(t *testing.T) {
	inBubble(t, func(w *world) {
		for i := range 50 {
			w.set(name(i), key(i), "gw")
		}
		queue := &slowAppend{DeliveryQueue: w.queue}
		d := w.stopped(queue, w)
		go func() { _ = w.tryNotify(d, 1, "!r:h", name1, name(1)) }()
		time.Sleep(10 * time.Millisecond) // the host is not running when the call begins
		ctx, stop := context.WithCancel(context.Background())
		go d.Run(ctx)
		w.wait(200*time.Millisecond, func() bool { return len(w.got(key(1))) == 1 })
		stop()
		time.Sleep(w.cfg.DrainTimeout)
	})
}

// slowAppend is a queue that needs a while to append.
type slowAppend struct{ module.DeliveryQueue }

func (q *slowAppend) Append(ctx context.Context, additions []module.AppendRequest) []module.Result[module.Appended] {
	time.Sleep(100 * time.Millisecond)
	return q.DeliveryQueue.Append(ctx, additions)
}
