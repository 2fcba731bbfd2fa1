package delivery

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/delivery/content"
	"github.com/pushfx/pushfx/module/delivery/turns"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/pusher"
	"github.com/pushfx/pushfx/module/strictjson"
)

const (
	fanOutItem  = 1000      // recipients of one entry of a fan-out
	fanOutBytes = 256 << 10 // bytes of an entry's recipients and outcomes
	fanOutStep  = 500       // notifications of a shard that are added at once; those of a recipient are added together
	fanOutRead  = 100       // recipients whose pushers are read at once, at first
	fanOutAhead = 200       // a fan-out pauses while its shard has more due backlogs
	fanOutPause = 200 * time.Millisecond
	expansions  = 8 // steps of a host at once

	maxRoomBytes  = 1 << 20 // bytes of a room's entries in a shard
	maxShardBytes = 8 << 20
)

// fanOutText is the stored text of a fan-out's entry. Each shard of a large room has such
// an entry, with the data of the shard's recipients only.
type fanOutText struct {
	Event      json.RawMessage // see [content.Event.Text]
	ID         string
	Added      int64  // in milliseconds
	Expires    int64  // in milliseconds
	Trace      string `json:",omitempty"`
	Outcomes   []storedOutcome
	Recipients []recipient
}

type storedOutcome struct {
	High   bool            `json:"h,omitempty"`
	Tweaks json.RawMessage `json:"t"`
}

func (d *Delivery) fanOut(h *handover, shard int, recipients []recipient) (all []*batch) {
	event := h.ev.Text(d.limits)
	for i := 0; len(recipients) > 0; i++ {
		text, n := h.fanOutText(event, recipients)
		recipients = recipients[n:]
		b := d.newBatch(shard)
		b.Key, b.Window = fmt.Sprint(h.key, i), d.cfg.DedupWindow
		if i == 0 {
			b.Key = h.key
		}
		b.turns, b.targets, b.metas = []*turns.Turn{nil}, []*content.Target{nil}, []content.Meta{{}}
		room := content.RoomDigest(h.ev.Room)
		b.Room, b.MaxRoomBytes, b.MaxShardBytes = room, maxRoomBytes, maxShardBytes
		b.Additions = []module.Addition{{
			Target: module.FanOut + room, Gate: module.FanOut, User: room, Claim: !d.isStopping(),
			Notification: module.Notification{
				ID: content.EventID(h.id, strconv.Itoa(i)), Priority: module.HighPriority, Room: room, Text: text,
			},
		}}
		all = append(all, b)
	}
	return all
}

// fanOutText returns an entry for the first n recipients, as a [fanOutText]. It takes a
// fraction of the time of encoding/json, which would write "<" in six bytes.
func (h *handover) fanOutText(event string, recipients []recipient) (text string, n int) {
	var outcomes, users []byte
	places := map[int]int{} // place of each outcome in this entry
	for n < min(len(recipients), fanOutItem) && len(users)+len(outcomes) < fanOutBytes {
		r := recipients[n]
		place, found := places[r.Outcome]
		if !found {
			place = len(places)
			places[r.Outcome] = place
			outcomes = appendOutcome(outcomes, h.outcomes[r.Outcome])
		}
		users = r.append(users, place)
		n++
	}
	dst := append(strictjson.AppendMember([]byte{'{'}, "Event"), event...)
	dst = strictjson.AppendString(strictjson.AppendMember(dst, "ID"), h.id)
	dst = strconv.AppendInt(strictjson.AppendMember(dst, "Added"), h.added.UnixMilli(), 10)
	dst = strconv.AppendInt(strictjson.AppendMember(dst, "Expires"), h.added.Add(h.ev.Lifetime).UnixMilli(), 10)
	dst = strictjson.AppendString(strictjson.AppendMember(dst, "Trace"), h.trace)
	dst = append(append(strictjson.AppendMember(dst, "Outcomes"), '['), outcomes...)
	dst = append(append(strictjson.AppendMember(append(dst, ']'), "Recipients"), '['), users...)
	return string(append(dst, "]}"...)), n
}

func appendOutcome(dst []byte, o content.Outcome) []byte {
	if len(dst) > 0 {
		dst = append(dst, ',')
	}
	dst = append(dst, '{')
	if o.High {
		dst = append(strictjson.AppendMember(dst, "h"), "true"...)
	}
	return append(append(strictjson.AppendMember(dst, "t"), o.Tweaks...), '}')
}

func (r recipient) append(dst []byte, outcome int) []byte {
	if len(dst) > 0 {
		dst = append(dst, ',')
	}
	dst = strictjson.AppendString(strictjson.AppendMember(append(dst, '{'), "u"), string(r.User))
	dst = strconv.AppendInt(strictjson.AppendMember(dst, "o"), int64(outcome), 10)
	if r.RoomName != "" {
		dst = strictjson.AppendString(strictjson.AppendMember(dst, "n"), r.RoomName)
	}
	return append(dst, '}')
}

// expand adds the events of a room's fan-out in a shard to the backlogs of recipients.
func (d *Delivery) expand(life context.Context, b module.Backlog, claimedAt time.Time) {
	c := d.claims.add(b.Claim, claimedAt)
	defer c.begin()()
	from := b.From
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
		if left, ok = c.complete(life, items[0].ID, module.Trouble{}, ""); !ok {
			return
		}
	}
}

func (d *Delivery) expandOne(life context.Context, c *claimed, n module.Notification, from int) (done bool) {
	var text fanOutText
	if err := json.Unmarshal([]byte(n.Text), &text); err != nil || !text.isValid() {
		d.dropped(DropUnreadable, 1)
		return true
	}
	h, ok := text.handover(d)
	if !ok {
		d.dropped(DropExpired, len(text.Recipients)-min(from, len(text.Recipients)))
		return true
	}
	for read := fanOutRead; from < len(text.Recipients); {
		if !d.beginExpansion(life, c, h.ev.Sender) {
			return false
		}
		to, due, err := d.expandPart(life, c, h, text.Recipients, from, min(from+read, len(text.Recipients)))
		d.expanding.end()
		if err != nil {
			d.failures.add("add a large event", err)
			c.postpone(time.Second, nil)
			return false
		}
		read = min(2*(to-from), fanOutStep)
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

// beginExpansion waits for a step's turn. If it returns false, the fan-out is due again.
func (d *Delivery) beginExpansion(life context.Context, c *claimed, sender string) bool {
	timeout := time.NewTimer(maxAwait)
	defer timeout.Stop()
	ready := d.expanding.await(sender)
	select {
	case <-ready:
		return true
	case <-timeout.C:
		d.expanding.leave(sender, ready)
		c.postpone(fanOutPause, nil)
	case <-d.stopping:
		d.expanding.leave(sender, ready)
		c.release(nil)
	case <-life.Done():
		d.expanding.leave(sender, ready)
	}
	return false
}

// expandPart adds an event to the backlogs of some of the recipients in the range from
// (included) to last (excluded). It returns the end of the part, and how many backlogs
// are due at the recipients' gates.
func (d *Delivery) expandPart(ctx context.Context, c *claimed, h *handover, recipients []recipient, from, last int) (to, due int, err error) {
	lists, err := d.pushersOf(ctx, recipients[from:last])
	if err != nil {
		return from, 0, err
	}
	if err := c.keep(ctx); err != nil {
		return from, 0, err
	}
	to = from + fitting(recipients[from:last], lists)
	b := d.batchTo(h, c.claim.Target.Shard, recipients[from:to], lists)
	b.Of, b.From, b.To = c.claim, from, to
	claimedAt := time.Now()
	result := d.queue.Enqueue(ctx, []module.DeliveryBatch{b.DeliveryBatch})[0]
	if result.Err != nil {
		d.withdraw([]*batch{b})
		return from, 0, result.Err
	}
	d.dropped(DropCoalesced, result.Value.Coalesced)
	d.sendClaimed(b, result.Value.Claims, claimedAt)
	return to, result.Value.Due, nil
}

// fitting returns how many of the first recipients fit into one step. A step has at most
// fanOutStep pushers, or one recipient with more.
func fitting(recipients []recipient, lists map[mxid.UserID]pusher.List) int {
	pushers := 0
	for n, r := range recipients {
		list := lists[r.User]
		if pushers += list.Len(); n > 0 && pushers > fanOutStep {
			return n
		}
	}
	return len(recipients)
}

func (t fanOutText) isValid() bool {
	return !slices.ContainsFunc(t.Recipients, func(r recipient) bool { return r.Outcome < 0 || r.Outcome >= len(t.Outcomes) })
}

// handover returns the event; ok is false if it has expired or is invalid.
func (t fanOutText) handover(d *Delivery) (h *handover, ok bool) {
	added, expires := time.UnixMilli(t.Added), time.UnixMilli(t.Expires)
	ev, err := content.ReadText(string(t.Event))
	if err != nil || !d.clock().Before(expires) {
		return nil, false
	}
	ev.Lifetime = expires.Sub(added)
	h = &handover{ev: ev, id: t.ID, added: added, trace: t.Trace}
	for _, o := range t.Outcomes {
		h.outcomes = append(h.outcomes, content.Outcome{High: o.High, Tweaks: string(o.Tweaks)})
	}
	return h, true
}
