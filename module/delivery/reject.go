package delivery

import (
	"context"
	"time"

	"github.com/pushfx/pushfx/module/observe"
)

const (
	// removeAfter is how long after its rejection a pusher is removed, so that what
	// else its gateway rejects is seen first. Where that is more than a few, it
	// takes longer.
	removeAfter     = 3 * time.Second
	removeManyAfter = time.Minute
	fewRejections   = 5

	// brakedFor is how long the pushers of a gateway that rejects too many are kept.
	brakedFor = 24 * time.Hour

	brakeWindow     = 10 * time.Minute
	brakeRejections = 50 // of all hosts together
	brakeShare      = 5  // one of so many pushers that were sent to
	brakeLeast      = 5
	brakeMemory     = 1 << 17 // pushers
)

// brake counts the pushers that a gateway has rejected, and those that it was
// sent notifications for, in a window of 10 to 20 minutes.
type brake struct {
	rejected, answered recent
	reported           bool
}

// recent is a set of pushers that forgets those that were not seen for long.
type recent struct {
	young, old map[uint64]struct{}
	size       int
	turnedAt   time.Time
}

func (r *recent) add(id uint64) {
	if _, found := r.young[id]; found || len(r.young) >= brakeMemory {
		return
	}
	if r.young == nil {
		r.young = map[uint64]struct{}{}
	}
	r.young[id] = struct{}{}
	if _, found := r.old[id]; !found {
		r.size++
	}
}

func (r *recent) remove(id uint64) {
	_, young := r.young[id]
	if _, old := r.old[id]; young || old {
		r.size--
	}
	delete(r.young, id)
	delete(r.old, id)
}

func (r *recent) rotate(now time.Time) {
	if now.Sub(r.turnedAt) < brakeWindow {
		return
	}
	r.turnedAt = now
	r.old, r.young, r.size = r.young, nil, len(r.young)
}

func (b *brake) rotate(now time.Time) {
	b.rejected.rotate(now)
	b.answered.rotate(now)
	if b.rejected.size == 0 {
		b.reported = false
	}
}

func (b *brake) isEmpty() bool { return b.rejected.size == 0 && b.answered.size == 0 }

// isOn reports whether the gateway rejects so many pushkeys that it is more
// likely to be misconfigured than right. Each host sees its share of them.
func (b *brake) isOn(hosts int) bool {
	most := max(brakeRejections/hosts, brakeLeast)
	return b.rejected.size >= most && b.rejected.size*brakeShare > b.answered.size
}

// reject stops sending to a pusher, and removes it some seconds later (Matrix
// specification, Push Gateway API: "cease sending notification requests for these
// pushkeys and remove the associated pushers", for which it sets no time). First
// it is read anew: one that was set since it was read is sent to.
func (f *fifo) reject(d *device) {
	f.countRejection()
	f.rejected, f.setAt, f.since, f.trouble = true, d.setAt, time.Now(), rejected
	f.due = f.since.Add(removeAfter)
	if f.gateway.rejected.rejected.size > fewRejections {
		f.due = f.since.Add(removeManyAfter)
	}
	f.touchRecord()
	f.user.read = time.Time{}
	f.next()
}

// isRejectedStill drops what a rejected pusher was to be sent, and removes it when
// it is time.
func (f *fifo) isRejectedStill(d *device) {
	queue := f.queue
	f.queue = nil
	for _, n := range queue {
		f.drop(n, DropGone)
	}
	if left := time.Until(f.due); left > 0 {
		f.user.read = time.Time{} // what arrives asks whether it was set anew
		f.wait(rejected, left)
		return
	}
	f.removeRejected(d)
}

// countRejection reports it once if that engages the brake.
func (f *fifo) countRejection() {
	b := &f.gateway.rejected
	b.rejected.add(f.id.short())
	if s := f.sender(); b.isOn(s.hosts) && !b.reported {
		b.reported = true
		s.observer.Report(observe.TooManyRejections, nil)
	}
}

// removeRejected removes a rejected pusher, unless its gateway rejects too many and
// no operator has confirmed it.
func (f *fifo) removeRejected(d *device) {
	s := f.sender()
	b := &s.gatewayOf(d.gateway).rejected
	if kept := time.Since(f.since); !f.confirmed && b.isOn(s.hosts) && kept < brakedFor {
		f.wait(rejected, brakedFor-kept)
		return
	}
	f.state = fifoWaiting
	user, key, setAt := f.user.id, d.key, d.setAt
	s.bounded(func(ctx context.Context) func() {
		err := s.pushers.RemovePusher(ctx, user, key, setAt)
		return func() {
			switch {
			case f.user.shard.lost, !f.rejected, f.setAt != setAt:
			case err != nil:
				s.failed("remove a rejected pusher", err)
				f.wait(rejected, removeAfter)
			default:
				f.user.read = time.Time{} // it is not there any more
				f.gone()
			}
		}
	})
}
