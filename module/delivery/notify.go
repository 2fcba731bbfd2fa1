package delivery

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"time"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/delivery/content"
	"github.com/pushfx/pushfx/module/delivery/turns"
	"github.com/pushfx/pushfx/module/fault"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/observe"
	"github.com/pushfx/pushfx/module/pusher"
)

// fanOutAbove is the number of recipients in a shard above which Notify adds the event to
// the room's fan-out instead of the backlogs.
const fanOutAbove = 50

// maxRoomName bounds a recipient's own name of the room, in bytes. A recipient with a
// longer one gets the room name of the event.
const maxRoomName = 1 << 10

// recipient is a user with a notification of the event.
type recipient struct {
	User     mxid.UserID `json:"u"`
	Outcome  int         `json:"o"` // index of the outcome
	RoomName string      `json:"n,omitempty"`
}

// handover is an event that is being added to backlogs.
type handover struct {
	ev       *content.Event
	id       string // of its notifications
	key      string // of its batches
	added    time.Time
	trace    string
	outcomes []content.Outcome
}

// Notify implements [module.Notifier].
func (d *Delivery) Notify(ctx context.Context, e module.Event, part string, decisions module.Decisions) (err error) {
	ctx, end := d.observer.Begin(ctx, notifyCall)
	defer func() {
		if err != nil && fault.KindOf(err) != fault.InvalidParam {
			d.observer.Count(observe.HandoverFailed, string(reasonOf(err)), 1)
		}
		end(observe.Outcome{Err: err})
	}()
	ev, of, err := content.ReadEvent(e, d.limits, time.Now())
	if err != nil || !of {
		return err
	}
	id := content.EventID(ev.ID, part)
	h := &handover{ev: ev, id: id, key: id, added: d.clock(), trace: d.observer.Traceparent(ctx)}
	return d.handOver(ctx, h, h.recipients(decisions, d.cfg.Shards))
}

// recipients returns the users to notify, without the sender, by shard.
func (h *handover) recipients(decisions module.Decisions, shards int) map[int][]recipient {
	all := map[int][]recipient{}
	places := map[content.Outcome]int{}
	for _, decision := range decisions {
		if !decision.Result.Notify() || string(decision.User) == h.ev.Sender {
			continue
		}
		outcome := h.ev.Outcome(decision.Result)
		place, found := places[outcome]
		if !found {
			place = len(h.outcomes)
			places[outcome] = place
			h.outcomes = append(h.outcomes, outcome)
		}
		shard := ShardOf(decision.User, shards)
		r := recipient{decision.User, place, decision.RoomName}
		if len(r.RoomName) > maxRoomName {
			r.RoomName = ""
		}
		all[shard] = append(all[shard], r)
	}
	return all
}

var errFull = errors.New("delivery: too many large events wait")

// handOver adds an event to the backlogs of its recipients. In a shard with many recipients
// or pushers, it adds the event to the room's fan-out instead; see fanout.go. It does the
// same, to keep the order, in the shards that [Delivery.enqueue] returns as behind: their
// fan-out still has an earlier event of the room.
func (d *Delivery) handOver(ctx context.Context, h *handover, recipients map[int][]recipient) error {
	var few []recipient
	var batches []*batch
	for shard, some := range recipients {
		if len(some) > fanOutAbove {
			batches = append(batches, d.fanOut(h, shard, some)...)
		} else {
			few = append(few, some...)
		}
	}
	lists, err := d.pushersOf(ctx, few)
	if err != nil {
		d.withdraw(batches)
		return err
	}
	for shard, some := range recipients {
		switch {
		case len(some) > fanOutAbove:
		case fitting(some, lists) < len(some):
			batches = append(batches, d.fanOut(h, shard, some)...)
		default:
			if b := d.batchTo(h, shard, some, lists); len(b.Additions) > 0 {
				b.Key, b.Window, b.Room = h.key, d.cfg.DedupWindow, content.RoomDigest(h.ev.Room)
				batches = append(batches, b)
			}
		}
	}
	behind, err := d.enqueue(ctx, batches)
	if err != nil || len(behind) == 0 {
		return err
	}
	batches = nil
	for _, shard := range behind {
		batches = append(batches, d.fanOut(h, shard, recipients[shard])...)
	}
	_, err = d.enqueue(ctx, batches)
	return err
}

// pushersOf reads the pushers of recipients. It leaves out users whose pushers are damaged.
func (d *Delivery) pushersOf(ctx context.Context, recipients []recipient) (map[mxid.UserID]pusher.List, error) {
	if len(recipients) == 0 {
		return nil, nil
	}
	users := make([]mxid.UserID, len(recipients))
	for i, r := range recipients {
		users[i] = r.User
	}
	return d.readPushers(ctx, users)
}

func (d *Delivery) readPushers(ctx context.Context, users []mxid.UserID) (map[mxid.UserID]pusher.List, error) {
	lists := make(map[mxid.UserID]pusher.List, len(users))
	results := d.host.Pushers(ctx, users)
	for _, user := range users {
		result, found := results[user]
		switch {
		case !found:
			return nil, module.Unavailable(errNoResult)
		case result.Err == nil:
			lists[user] = result.Value
		case fault.KindOf(result.Err) != fault.Database:
			return nil, result.Err
		}
	}
	return lists, nil
}

// batch has additions to backlogs of a shard, and what sending them at once needs.
type batch struct {
	module.DeliveryBatch
	turns   []*turns.Turn // of each addition, nil for none
	targets []*content.Target
	metas   []content.Meta
	readAt  time.Time // when the pushers were read
}

func (d *Delivery) batchTo(h *handover, shard int, recipients []recipient, lists map[mxid.UserID]pusher.List) *batch {
	b := d.newBatch(shard)
	for _, r := range recipients {
		list := lists[r.User]
		for _, p := range list.All() {
			target, ok := content.ReadTarget(r.User, p, d.limits)
			if !ok {
				continue
			}
			m := newMeta(r.User, h.added, h.ev.Lifetime)
			m.Event, m.Room, m.Call, m.Trace = h.ev.ID, h.ev.Room, h.ev.IsCall(), h.trace
			m.Position, m.Thread = h.ev.Position, h.ev.Thread
			to := content.To{User: r.User, RoomName: r.RoomName, Outcome: h.outcomes[r.Outcome], Target: target}
			n := h.ev.Notification(to, m, d.limits)
			n.ID = h.id
			b.add(d, n, m, target, 0)
		}
	}
	return b
}

// keepFor is the age below which notifications are not coalesced: a backlog may become long
// while it waits for the claim of a dead host to lapse.
const keepFor = 30 * time.Second

func (d *Delivery) newBatch(shard int) *batch {
	return &batch{
		readAt: time.Now(),
		DeliveryBatch: module.DeliveryBatch{
			Shard: shard, Lease: lease, MaxBacklog: d.cfg.MaxBacklog, KeepFor: keepFor, MaxUserBytes: d.cfg.MaxUserBytes,
		},
	}
}

func newMeta(user mxid.UserID, added time.Time, lifetime time.Duration) content.Meta {
	return content.Meta{User: user, Added: added.UnixMilli(), Expires: added.Add(lifetime).UnixMilli()}
}

// add adds a notification. If this host has a turn for it, the addition also claims the
// backlog.
func (b *batch) add(d *Delivery, n module.Notification, m content.Meta, target *content.Target, delay time.Duration) {
	var turn *turns.Turn
	gate := target.Gate()
	if delay == 0 && d.mayClaim(gate) {
		var wait time.Duration
		if turn, wait = d.gates.admit(m.User, gate); wait > 0 {
			d.gates.expectMore()
		}
	}
	b.turns, b.targets, b.metas = append(b.turns, turn), append(b.targets, target), append(b.metas, m)
	b.Additions = append(b.Additions, module.Addition{
		Target: target.ID, Gate: gate, User: content.UserDigest(m.User), Notification: n,
		Claim: turn != nil, Delay: delay, Urgent: m.Call, Generation: target.SetAt,
	})
}

// enqueue adds batches, and sends the claimed backlogs. Behind has the shards whose batches
// were not added, because the room's fan-out there still has an earlier event.
func (d *Delivery) enqueue(ctx context.Context, all []*batch) (behind []int, err error) {
	if len(all) == 0 {
		return nil, nil
	}
	batches := make([]module.DeliveryBatch, len(all))
	for i, b := range all {
		batches[i] = b.DeliveryBatch
	}
	claimedAt := time.Now()
	for i, result := range d.queue.Enqueue(ctx, batches) {
		switch e := result.Value; {
		case result.Err != nil:
			err = result.Err
			d.withdraw(all[i : i+1])
		case e.Full:
			err = module.Unavailable(errFull)
			d.withdraw(all[i : i+1])
		case e.Behind:
			behind = append(behind, batches[i].Shard)
			d.withdraw(all[i : i+1])
		default:
			d.dropped(DropCoalesced, e.Coalesced)
			d.sendClaimed(all[i], e.Claims, claimedAt)
		}
	}
	return behind, err
}

// withdraw ends the turns of batches that were not added.
func (d *Delivery) withdraw(all []*batch) {
	for _, b := range all {
		for _, turn := range b.turns {
			if turn != nil {
				d.gates.unused(turn)
			}
		}
	}
}

func (d *Delivery) sendClaimed(b *batch, claims []module.Claim, claimedAt time.Time) {
	for i, claim := range claims {
		if claim.Token == 0 {
			if b.turns[i] != nil {
				d.gates.unused(b.turns[i])
			}
			continue
		}
		if claim.Target.IsFanOut() {
			d.startOrRelease(claim, func(life context.Context) { d.expand(life, module.Backlog{Claim: claim}, claimedAt) })
			continue
		}
		s, first := d.newSending(claim, claimedAt), b.Additions[i].Notification
		s.turn, s.user, s.target, s.readAt = b.turns[i], b.metas[i].User, b.targets[i], b.readAt
		s.known, s.meta, s.metaOf = []module.Notification{first}, b.metas[i], first.ID
		if !d.startOrRelease(claim, s.run) {
			d.gates.unused(s.turn)
		}
	}
}

// startOrRelease runs do for a claimed backlog. If this host is stopping, it releases the
// claim instead.
func (d *Delivery) startOrRelease(claim module.Claim, do func(context.Context)) (started bool) {
	if started = d.start(do); !started {
		d.claims.release(claim)
	}
	return started
}

// UpdateBadges implements [module.Notifier]. Without [module.Unread] it does nothing.
func (d *Delivery) UpdateBadges(ctx context.Context, users ...mxid.UserID) error {
	if !d.hasUnread || len(users) == 0 {
		return nil
	}
	lists, err := d.readPushers(ctx, users)
	if err != nil {
		return err
	}
	var all []*batch
	byShard := map[int]*batch{}
	now, key := d.clock(), rand.Text()
	for user, list := range lists {
		for _, p := range list.All() {
			target, ok := content.ReadTarget(user, p, d.limits)
			if !ok || target.NoCounts {
				continue
			}
			shard := ShardOf(user, d.cfg.Shards)
			b := byShard[shard]
			if b == nil || len(b.targets) == fanOutStep {
				b = d.newBatch(shard)
				b.Key, b.Window = fmt.Sprint(key, len(all)), d.cfg.DedupWindow
				byShard[shard], all = b, append(all, b)
			}
			m := newMeta(user, now, d.cfg.MaxAge)
			b.add(d, content.Counts(key[:16], m), m, target, max(d.cfg.BadgeDelay, time.Millisecond))
		}
	}
	_, err = d.enqueue(ctx, all)
	return err
}
