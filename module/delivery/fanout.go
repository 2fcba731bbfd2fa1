package delivery

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/delivery/content"
	"github.com/pushfx/pushfx/module/delivery/turns"
)

const (
	fanOutItem  = 1000 // recipients of one entry of a fan-out
	fanOutStep  = 500  // recipients that are expanded at once
	fanOutAhead = 200  // due backlogs of a shard above which it pauses
	fanOutPause = 200 * time.Millisecond
)

// fanOutText is the stored text of a fan-out's entry.
type fanOutText struct {
	JSON       string
	RoomName   string `json:",omitempty"`
	RoomAlias  string `json:",omitempty"`
	SenderName string `json:",omitempty"`
	Position   int64  `json:",omitempty"`
	Thread     string `json:",omitempty"`
	ID         string
	Added      int64  // in milliseconds
	Expires    int64  // in milliseconds
	Trace      string `json:",omitempty"`
	Outcomes   []content.Outcome
	Recipients []recipient
}

func (d *Delivery) fanOut(h *handover, shard int, recipients []recipient) (all []*adding) {
	for i, some := range slices.Collect(slices.Chunk(recipients, fanOutItem)) {
		text, _ := json.Marshal(fanOutText{
			h.event.JSON, h.event.RoomName, h.event.RoomAlias, h.event.SenderName, h.event.Position, h.event.Thread, h.id,
			h.added.UnixMilli(), h.added.Add(h.ev.Lifetime).UnixMilli(), h.trace, h.outcomes, some,
		})
		a := d.newAdding(shard)
		a.batch.Key, a.batch.Window = fmt.Sprint(h.key, i), d.cfg.DedupWindow
		if i == 0 {
			a.batch.Key = h.key
		}
		a.turns, a.targets, a.metas = []*turns.Turn{nil}, []*content.Target{nil}, []content.Meta{{}}
		a.batch.Additions = []module.Addition{{
			Target: module.FanOut, User: module.FanOut + "--", Claim: !d.isStopping(),
			Notification: module.Notification{
				ID: content.EventID(h.id, strconv.Itoa(i)), Priority: module.HighPriority, Room: "--------", Text: string(text),
			},
		}}
		a.batch.MaxUserBytes = maxFanOutBytes
		all = append(all, a)
	}
	return all
}

// maxFanOutBytes is no limit: the queue bounds the number of entries.
const maxFanOutBytes = 1 << 30

// expand adds the events in the fan-out of a shard to backlogs.
func (d *Delivery) expand(life context.Context, b module.Backlog, claimedAt time.Time) {
	own := d.newClaimed(b.Claim, claimedAt)
	c := &own
	defer c.begin()()
	position, _, _ := strings.Cut(b.Trouble, " ")
	from, _ := strconv.Atoi(position) // 0 for none
	for left := 1; left > 0; from = 0 {
		items, err := d.queue.Read(life, c.claim, 1)
		if err != nil || len(items) == 0 || d.isStopping() {
			c.release(err)
			return
		}
		if !d.expandOne(life, c, items[0], from) {
			return
		}
		var ok bool
		if left, ok = c.complete(life, items[0].ID, ""); !ok {
			return
		}
	}
}

func (d *Delivery) expandOne(life context.Context, c *claimed, n module.Notification, from int) (done bool) {
	var text fanOutText
	if err := json.Unmarshal([]byte(n.Text), &text); err != nil {
		d.dropped(DropUnreadable, 1)
		return true
	}
	h, of := text.handover(d)
	if !of {
		d.dropped(DropExpired, len(text.Recipients)-min(from, len(text.Recipients)))
		return true
	}
	for from < len(text.Recipients) {
		to := min(from+fanOutStep, len(text.Recipients))
		due, err := d.expandPart(life, c, h, text.Recipients, from, to)
		if err != nil {
			d.failed("add a large event", err)
			c.postpone(time.Second, nil)
			return false
		}
		if from = to; d.isStopping() {
			c.release(nil)
			return false
		}
		if from < len(text.Recipients) && due > fanOutAhead {
			c.postpone(fanOutPause, nil)
			return false
		}
	}
	return true
}

// expandPart adds an event to the backlogs of some recipients, and returns the number
// of due backlogs in the shard.
func (d *Delivery) expandPart(ctx context.Context, c *claimed, h *handover, recipients []recipient, from, to int) (due int, err error) {
	lists, err := d.pushersOf(ctx, recipients[from:to])
	if err != nil {
		return 0, err
	}
	if err := c.keep(ctx); err != nil {
		return 0, err
	}
	a := d.addingTo(h, c.claim.Target.Shard, recipients[from:to], lists)
	a.batch.Of, a.batch.From, a.batch.To = c.claim, from, to
	claimedAt := time.Now()
	result := d.queue.Enqueue(ctx, []module.DeliveryBatch{a.batch})[0]
	if result.Err != nil {
		d.withdraw([]*adding{a})
		return 0, result.Err
	}
	d.dropped(DropCoalesced, result.Value.Coalesced)
	d.sendClaimed(a, result.Value.Claims, claimedAt)
	return result.Value.Due, nil
}

// handover returns the event; of is false if it has expired.
func (t fanOutText) handover(d *Delivery) (h *handover, of bool) {
	e := module.Event{
		JSON: t.JSON, RoomName: t.RoomName, RoomAlias: t.RoomAlias, SenderName: t.SenderName, Position: t.Position, Thread: t.Thread,
	}
	added, expires := time.UnixMilli(t.Added), time.UnixMilli(t.Expires)
	ev, _, err := content.ReadEvent(e, d.limits, added)
	if err != nil || !d.clock().Before(expires) {
		return nil, false
	}
	ev.Lifetime = expires.Sub(added)
	return &handover{event: e, ev: ev, id: t.ID, added: added, trace: t.Trace, outcomes: t.Outcomes}, true
}
