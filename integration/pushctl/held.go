package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/pushfx/pushfx/module/delivery"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/pusher"
)

// heldPusher is a pusher of which the queue has a record.
type heldPusher struct {
	delivery.Held
	id      string // as [delivery.PusherID]
	shard   int
	gateway string // see findGateways
}

// readHeld reads the records of shards that are wanted. It notes how many cannot be
// read.
func (c *deliveryCall) readHeld(ctx context.Context, shards []int, wanted func(heldPusher) bool) ([]heldPusher, error) {
	var unreadable atomic.Int64
	var mu sync.Mutex
	var all []heldPusher
	err := parallel(ctx, shards, func(ctx context.Context, shard int) error {
		page, err := c.readHeldOf(ctx, shard, wanted, &unreadable)
		mu.Lock()
		defer mu.Unlock()
		all = append(all, page...)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("read the queue: %w", err)
	}
	if n := unreadable.Load(); n > 0 {
		fmt.Fprintf(c.notes, "pushctl: %d records of pushers in trouble cannot be read, and are left out (see pushctl check)\n", n)
	}
	slices.SortFunc(all, func(a, b heldPusher) int { return cmp.Or(cmp.Compare(a.shard, b.shard), cmp.Compare(a.id, b.id)) })
	return slices.CompactFunc(all, func(a, b heldPusher) bool { return a.id == b.id }), nil
}

func (c *deliveryCall) readHeldOf(
	ctx context.Context, shard int, wanted func(heldPusher) bool, unreadable *atomic.Int64,
) (all []heldPusher, err error) {
	err = scanHeld(ctx, c.client, c.keys.ShardHeld(shard), func(id, text string) {
		held, err := delivery.ReadHeld([]byte(text))
		h := heldPusher{Held: held, id: id, shard: shard}
		if err != nil {
			unreadable.Add(1)
		} else if wanted(h) {
			all = append(all, h)
		}
	})
	return all, err
}

// scanHeld calls each for the records of a shard, some of them perhaps twice.
func scanHeld(ctx context.Context, client redis.Cmdable, key string, each func(id, text string)) error {
	for cursor := uint64(0); ; {
		page, next, err := client.HScan(ctx, key, cursor, "", pageSize).Result()
		if err != nil {
			return err
		}
		for i := 0; i+1 < len(page); i += 2 {
			each(page[i], page[i+1])
		}
		if cursor = next; cursor == 0 {
			return nil
		}
	}
}

// findGateways fills in where pushers are sent to, as [delivery.GatewayOf] has it. It
// is empty for one that is gone, or not sent to.
func (c *deliveryCall) findGateways(ctx context.Context, all []heldPusher) error {
	users := make([]mxid.UserID, len(all))
	for i, h := range all {
		users[i] = h.User
	}
	slices.Sort(users)
	lists := c.pushers.LoadMany(ctx, slices.Compact(users))
	for i := range all {
		list := lists[all[i].User]
		if list.Err != nil && !isDamaged(list.Err) {
			return fmt.Errorf("read pushers: %w", list.Err)
		}
		for _, p := range list.Value.All() {
			if delivery.PusherID(all[i].User, p.Key) == all[i].id {
				all[i].gateway, _ = delivery.GatewayOf(all[i].User, p)
			}
		}
	}
	return nil
}

func queuesShowCommand() command {
	return command{
		name: "queues show", args: "USER",
		summary: "shows what is to be delivered to a user's pushers",
		about: "Shows each pusher of a user by a digest, with its gateway, since when it is in trouble, how the last\n" +
			"request ended, when it is tried again, how many notifications are kept for it and how many were dropped,\n" +
			"and its generation, which is new with each time that it is set. An outcome of throttled is to be tried\n" +
			"later: 429, 503 with Retry-After, or 507, which ntfy answers while no app listens.",
		setup: forDelivery(func(f *flags, c *deliveryCall) { c.json = f.json() }, func(ctx context.Context, c *deliveryCall) error {
			user, err := c.userArgument()
			if err != nil {
				return err
			}
			ctx, cancel := context.WithTimeout(ctx, replyLimit)
			defer cancel()
			all, err := c.queuesOf(ctx, user)
			if err != nil {
				return err
			}
			if *c.json {
				return writeJSON(c.out, all)
			}
			return writeQueues(c.out, all, c.now())
		}),
	}
}

// The states of a pusher, as operators see them.
const (
	isWell        = "well"
	isNotSentTo   = "not sent to" // of another kind than http, or disabled
	isHeldUp      = "waits for its gateway"
	isWaiting     = "waits"
	isRejected    = "rejected"
	isBlocked     = "blocked" // its address is not to be connected to
	isGoneAlready = "gone"    // it was deleted, which its host will see
)

// shownQueue is what is to be delivered to a pusher.
type shownQueue struct {
	Pusher     string               `json:"pusher"` // a digest
	Gateway    string               `json:"gateway,omitempty"`
	State      string               `json:"state"`
	Since      time.Time            `json:"since,omitzero"`
	Outcome    delivery.PostOutcome `json:"outcome,omitempty"`
	Attempts   int                  `json:"attempts"`
	Due        time.Time            `json:"due,omitzero"`
	Kept       int                  `json:"kept"`
	Dropped    int                  `json:"dropped"`
	Generation int64                `json:"generation"`
}

// queuesOf returns what is to be delivered to a user's pushers, those that are gone
// included.
func (c *deliveryCall) queuesOf(ctx context.Context, user mxid.UserID) ([]shownQueue, error) {
	shards, err := c.shardCount(ctx)
	if err != nil {
		return nil, err
	}
	held, err := c.readHeld(ctx, []int{delivery.ShardOf(user, shards)}, func(h heldPusher) bool { return h.User == user })
	if err != nil {
		return nil, err
	}
	list, err := c.pushers.Load(ctx, user)
	if err != nil && !isDamaged(err) {
		return nil, err
	}
	all := []shownQueue{}
	for _, p := range list.All() {
		q := newShownQueue(user, p)
		if i := slices.IndexFunc(held, func(h heldPusher) bool { return h.id == q.Pusher }); i >= 0 {
			q.fill(held[i])
			held = slices.Delete(held, i, i+1)
		}
		all = append(all, q)
	}
	for _, h := range held {
		q := shownQueue{Pusher: h.id, State: isGoneAlready, Generation: h.SetAt}
		q.fill(h)
		all = append(all, q)
	}
	return all, nil
}

func newShownQueue(user mxid.UserID, p pusher.Pusher) shownQueue {
	q := shownQueue{Pusher: delivery.PusherID(user, p.Key), State: isWell, Generation: p.SetAt}
	gateway, ok := delivery.GatewayOf(user, p)
	if q.Gateway = gateway; !ok {
		q.State = isNotSentTo
	}
	return q
}

// fill fills in what the queue has.
func (q *shownQueue) fill(h heldPusher) {
	q.Since, q.Attempts, q.Due, q.Kept, q.Dropped = h.Since, h.Attempts, h.Due, len(h.Kept), h.Dropped
	if !h.Since.IsZero() {
		q.Outcome = h.Outcome
	}
	switch {
	case q.State != isWell:
	case h.Rejected:
		q.State = isRejected
	case h.Since.IsZero():
		q.State = isHeldUp
	case h.Outcome == delivery.PostBlocked:
		q.State = isBlocked
	default:
		q.State = isWaiting
	}
}

func writeQueues(w io.Writer, all []shownQueue, now time.Time) error {
	if len(all) == 0 {
		_, err := fmt.Fprintln(w, "The user has no pushers, and nothing is to be delivered.")
		return err
	}
	var rows [][]string
	for _, q := range all {
		failing, next := "-", "-"
		if !q.Since.IsZero() {
			failing = now.Sub(q.Since).Round(time.Second).String()
			next = max(0, q.Due.Sub(now)).Round(time.Second).String()
		}
		rows = append(rows, []string{
			printable(q.Pusher), printable(cmp.Or(q.Gateway, "-")), q.State, failing, cmp.Or(string(q.Outcome), "-"),
			strconv.Itoa(q.Attempts), next, strconv.Itoa(q.Kept), strconv.Itoa(q.Dropped), strconv.FormatInt(q.Generation, 10),
		})
	}
	head := []string{
		"PUSHER", "GATEWAY", "STATE", "FAILING FOR", "LAST OUTCOME", "ATTEMPTS", "NEXT TRY IN", "KEPT", "DROPPED", "GENERATION",
	}
	return writeTable(w, head, rows)
}
