package delivery

import (
	"context"
	"time"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/observe"
	"github.com/pushfx/pushfx/module/pusher"
)

// prepared is what is asked right before notifications are sent.
type prepared struct {
	began  time.Time
	lists  map[mxid.UserID]module.Result[pusher.List]
	counts map[mxid.UserID]module.Result[module.Counts]
	read   []bool
	holds  map[*fifo]time.Duration
}

// prepare asks for what must be known of pushers and users right before sending.
func (s *sender) prepare(fifos []*fifo) {
	now := time.Now()
	var stale, users []mxid.UserID
	var asked []*fifo
	var devices []module.UserDevice
	events := make([]module.UserEvent, len(fifos))
	for i, f := range fifos {
		n := f.sending
		if !f.user.isFresh(now) {
			stale = append(stale, f.user.id)
		}
		users = append(users, f.user.id)
		if d := f.user.device(f.id); d != nil && f.asksAttention() {
			asked, devices = append(asked, f), append(devices, module.UserDevice{User: f.user.id, Device: d.name})
		}
		events[i] = module.UserEvent{User: f.user.id, RoomID: n.event.room, EventID: n.event.id}
	}
	s.bounded(func(ctx context.Context) func() {
		p := prepared{began: now}
		if len(stale) > 0 {
			p.lists = s.pushers.Pushers(ctx, stale)
		}
		if s.unread != nil {
			p.read = s.unread.AreRead(ctx, events)
			p.counts = s.unread.Counts(ctx, users)
		}
		if len(asked) > 0 {
			p.takeHolds(asked, s.attention.Hold(ctx, devices))
		}
		return func() {
			s.toPrepare.done()
			for i, f := range fifos {
				f.prepared(p, i < len(p.read) && p.read[i])
			}
		}
	})
}

// takeHolds takes in for how long what pushers are sent is to be held back.
func (p *prepared) takeHolds(asked []*fifo, holds []time.Duration) {
	p.holds = make(map[*fifo]time.Duration, len(asked))
	for i, f := range asked {
		if i < len(holds) {
			p.holds[f] = holds[i]
		}
	}
}

// prepared goes on with a notification when it is known what to send.
func (f *fifo) prepared(p prepared, isRead bool) {
	u := f.user
	if !u.isFresh(p.began) && !u.shard.lost {
		if err := u.takeDevices(p.began, p.lists); err != nil {
			f.abandon()
			f.park()
			return
		}
	}
	n, d := f.sending, u.device(f.id)
	switch {
	case u.shard.lost:
		f.abandon()
	case !u.shard.canSend():
		f.abandon()
		f.park()
	case d == nil:
		f.abandon()
		f.gone()
	case d.gateway != f.gateway.name:
		f.abandon()
		f.next()
	case isRead && !n.event.countsOnly:
		f.abandon()
		f.discard(n, DropRead)
		f.next()
	default:
		if left := f.holdLeft(p); left > 0 {
			f.abandon()
			f.hold(left)
			f.keep()
			return
		}
		f.prepareCounts(n, d, p.counts)
	}
}

// prepareCounts sends a notification with the counts of its user, if they are
// known.
func (f *fifo) prepareCounts(n *notification, d *device, all map[mxid.UserID]module.Result[module.Counts]) {
	var counts *module.Counts
	if result, found := all[f.user.id]; found && result.Err == nil && !d.noCounts {
		counts = &result.Value
	}
	if n.event.countsOnly && (counts == nil || f.sender().badges.shows(f.id, *counts)) {
		f.abandon()
		f.discard(n, DropCoalesced)
		f.next()
		return
	}
	f.send(counts)
}

// send posts the first notification. What is posted does not change meanwhile.
func (f *fifo) send(counts *module.Counts) {
	d := f.user.device(f.id)
	if d == nil || d.gateway != f.gateway.name {
		f.abandon()
		f.next()
		return
	}
	f.renew(d)
	f.device = d
	s, sh, n := f.sender(), f.user.shard, f.sending
	m := message{user: f.user.id, event: n.event, outcome: n.outcome, device: d, counts: counts, slim: n.slim}
	ctx, cut := context.WithTimeout(sh.ctx, s.cfg.RequestTimeout)
	f.post.cut = cut
	s.post(func(context.Context) func() {
		defer cut()
		began := time.Now()
		traced, end := s.observer.BeginPost(ctx, d.gateway, m.event.traceparent)
		answer, err := s.postSafely(traced, sh, m)
		took := time.Since(began)
		v, wait := judge(answer, err, d.key.Pushkey)
		end(string(v.outcome()), answer.Status)
		return func() { f.sent(n, v, answer.Status, wait, took, counts) }
	})
}

// postSafely posts a message if the shard is ours for long enough, by a clock
// that has gone on while this process was stopped.
func (s *sender) postSafely(ctx context.Context, sh *shard, m message) (module.GatewayAnswer, error) {
	body := m.body(&s.cfg)
	if !sh.lease.isSafe() || ctx.Err() != nil {
		return module.GatewayAnswer{}, errLeaseEnding
	}
	return s.gateway.Post(ctx, m.device.url, body)
}

// sent takes in the answer.
func (f *fifo) sent(n *notification, v verdict, status int, wait, took time.Duration, counts *module.Counts) {
	s, g, d := f.sender(), f.gateway, f.device
	now := time.Now()
	s.posters.busy--
	closes, opens := g.ended(f.post, now, f.id, n.event, v, status, wait)
	f.endRequest()
	if v != unsent {
		if took < hangsAfter {
			g.class = responsive
		}
	}
	if v == delivered || v == rejected {
		g.rejected.answered.add(f.id.short())
	}
	f.state = fifoIdle
	if !f.user.shard.lost {
		if v != unsent {
			s.saves.unsaved++
			f.user.shard.unsaved++
			f.user.shard.change()
		}
		f.judged(n, d, v, status, wait, counts)
	}
	s.announceState(g, now)
	if closes {
		s.closed(g)
	}
	if opens {
		s.opened(g, now)
	}
}

// judged does what the answer asks for.
func (f *fifo) judged(n *notification, d *device, v verdict, status int, wait time.Duration, counts *module.Counts) {
	switch v {
	case delivered:
		f.delivered(n, counts)
	case rejected:
		f.reject(d)
	case refused:
		f.slimOrSkip(n, d)
	case throttled:
		f.throttled(wait)
	case busy:
		f.attempts++
		f.wait(v, max(wait, backoff(f.attempts)))
	case blocked:
		f.wait(v, blockedWait)
	case unsent:
		f.park()
	default:
		f.failed(n, d, v, status)
	}
}

func (f *fifo) delivered(n *notification, counts *module.Counts) {
	s := f.sender()
	isAhead := n != f.queue[0]
	f.recover()
	if f.take(n); isAhead {
		f.blame.took(f.gateway)
	}
	if n.entry == nil {
		f.touchRecord()
	}
	f.user.shard.finish(n, f.id)
	if counts != nil {
		s.badges.sent(f.id, *counts)
	}
	if !n.event.countsOnly {
		s.observer.Took(observe.DeliveryAge, "", max(0, s.clock().Sub(n.added)), true)
	}
	f.next()
}

// slimOrSkip sends a notification that was refused once more, with as little as
// event_id_only tells. It reports whether it drops it, since that was refused.
func (f *fifo) slimOrSkip(n *notification, d *device) (skips bool) {
	if skips = n.slim || d.slimOnly || n.event.countsOnly; skips {
		f.discard(n, DropRefused)
	} else {
		n.slim = true
	}
	f.next()
	return skips
}

func (f *fifo) throttled(wait time.Duration) {
	if f.gateway.isClosed() {
		f.next()
		return
	}
	f.wait(throttled, wait)
}

// failed is for a failure that may be the gateway's. While the gateway is closed
// it costs the pusher nothing.
func (f *fifo) failed(n *notification, d *device, v verdict, status int) {
	g, now := f.gateway, time.Now()
	if v != limited && n == f.queue[0] && f.blame.add(f.queue, g, status, now) {
		if f.slimOrSkip(n, d) {
			g.suspects.markPoison(n.event)
		}
		return
	}
	if f.blame.ahead || g.isClosed() {
		if f.blame.ahead && g.state == GateProbing { // right after the first, or the gateway may have recovered meanwhile
			g.until = now
		}
		f.next()
		return
	}
	f.attempts++
	f.setFailed(true)
	if v == limited {
		f.wait(v, max(minRetryAfter, backoff(f.attempts)))
		return
	}
	f.wait(v, f.sender().retryIn(f.attempts))
}
