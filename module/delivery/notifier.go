package delivery

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"time"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/observe"
	"github.com/pushfx/pushfx/module/pushrule"
)

// Notify implements [module.Notifier]. Each shard that one of the users is in gets
// one entry, in one call of the queue.
func (d *Delivery) Notify(ctx context.Context, e module.Event, part string, decisions module.Decisions) (err error) {
	ctx, end := d.observer.Begin(ctx, notifyCall)
	defer func() { end(observe.Outcome{Err: err}) }()
	began := time.Now()
	ev, of, err := readEvent(e, d.cfg, began)
	if err != nil {
		return err
	}
	if of {
		ev.traceparent = d.observer.Traceparent(ctx)
		entries := newEntries(ev, d.cfg.Shards)
		for _, decision := range decisions {
			entries.add(decision)
		}
		err = d.append(ctx, entryKey(ev.id, part), entries)
	}
	return err
}

func (d *Delivery) append(ctx context.Context, key string, entries *entries) error {
	if len(entries.recipients) == 0 {
		return nil
	}
	return d.queue.Append(ctx, key, d.cfg.DedupWindow, entries.encode())
}

// entryKey names the part of an event without telling it: what the queue keeps
// has no ids in its keys.
func entryKey(event, part string) string {
	sum := sha256.Sum256([]byte(event + "\x00" + part))
	return base64.RawURLEncoding.EncodeToString(sum[:16])
}

// entries are those of an event, by shard.
type entries struct {
	event      *event
	shards     int
	outcomes   []outcome
	places     map[outcome]int
	recipients map[int][]recipient

	// known are the places of rules' actions: those who share a set of rules share
	// them.
	known map[*pushrule.Action]int
}

func newEntries(ev *event, shards int) *entries {
	return &entries{
		event: ev, shards: shards, places: map[outcome]int{}, recipients: map[int][]recipient{},
		known: map[*pushrule.Action]int{},
	}
}

// add adds a user who is to be notified. Nobody is notified of what they sent.
func (e *entries) add(decision module.Decision) {
	if !decision.Result.Notify() || string(decision.User) == e.event.sender {
		return
	}
	e.addRecipient(recipient{decision.User, e.place(decision)})
}

func (e *entries) addRecipient(r recipient) {
	shard := ShardOf(r.user, e.shards)
	e.recipients[shard] = append(e.recipients[shard], r)
}

// place returns the place of what a user's rules say among all such outcomes.
func (e *entries) place(decision module.Decision) int {
	actions := decision.Result.Actions() // at least "notify"
	place, found := e.known[&actions[0]]
	if !found {
		place = e.placeOf(outcome{high: e.event.isHigh(decision.Result), tweaks: tweaksOf(actions)})
		e.known[&actions[0]] = place
	}
	return place
}

func (e *entries) placeOf(o outcome) int {
	place, found := e.places[o]
	if !found {
		place = len(e.outcomes)
		e.places[o] = place
		e.outcomes = append(e.outcomes, o)
	}
	return place
}

// encode returns the entries as they are kept.
func (e *entries) encode() map[int][]byte {
	all := make(map[int][]byte, len(e.recipients))
	for shard, recipients := range e.recipients {
		all[shard] = encodeEntry(e.event, e.outcomes, recipients)
	}
	return all
}

// handOverCounts hands users over who are to be sent counts alone.
func (d *Delivery) handOverCounts(ctx context.Context, users []mxid.UserID, key string) error {
	entries := newEntries(&event{countsOnly: true, lifetime: d.cfg.MaxAge}, d.cfg.Shards)
	place := entries.placeOf(outcome{tweaks: "{}"})
	for _, user := range users {
		entries.addRecipient(recipient{user, place})
	}
	return d.append(ctx, key, entries)
}
