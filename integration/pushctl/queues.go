package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/delivery"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/pusher"
	"github.com/pushfx/pushfx/module/stored"
)

type deliveryCall struct {
	*call
	json    *bool
	yes     bool
	gateway gatewayName
	pusher  string // a digest
	allowed string // prefixes
}

func forDelivery(declare func(*flags, *deliveryCall), run func(context.Context, *deliveryCall) error) func(*flags) runner {
	return func(f *flags) runner {
		d := &deliveryCall{}
		declare(f, d)
		return func(ctx context.Context, c *call) error {
			d.call = c
			return run(ctx, d)
		}
	}
}

func addYes(f *flags, c *deliveryCall) {
	f.BoolVar(&c.yes, "yes", false, "make the change; without it, show the change")
}

func addGateway(f *flags, c *deliveryCall) {
	f.Func("gateway", "only pushers of the push gateway `HOST`: "+gatewayForms, func(text string) (err error) {
		c.gateway, err = readGatewayName(text)
		return err
	})
	addYes(f, c)
}

func queuesCommand() command {
	return command{
		name:    "queues",
		summary: "counts waiting notifications, and says whether hosts send them",
		about: "Counts the pushers with waiting notifications, the due ones among them, and the failing ones. Exit\n" +
			"status 1: a notification has been due for more than ten seconds, so no host with pushfx.Delivery\n" +
			"runs, or hosts cannot keep up.",
		setup: forDelivery(func(f *flags, c *deliveryCall) { c.json = f.json() }, func(ctx context.Context, c *deliveryCall) error {
			ctx, cancel := context.WithTimeout(ctx, replyTimeout)
			defer cancel()
			return c.showQueues(ctx)
		}),
	}
}

var errNoQueue = errors.New("no host has started with pushfx.Delivery")

func (b *backend) shardCount(ctx context.Context) (int, error) {
	text, err := b.client.Get(ctx, b.keys.DeliveryFormat()).Result()
	if errors.Is(err, redis.Nil) {
		return 0, fmt.Errorf("%w on this Redis with -key-prefix %q", errNoQueue, b.keys.Prefix)
	}
	if err != nil {
		return 0, fmt.Errorf("read the queue: %w", err)
	}
	return stored.ReadDeliveryFormat(text)
}

type shownQueues struct {
	Backlogs int64   `json:"pushers_with_a_backlog"`
	Due      int64   `json:"due"`
	Closed   int64   `json:"behind_closed_gateways"` // due, at gateways that fail or are held
	Failing  int64   `json:"failing_pushers"`
	FanOut   int64   `json:"large_events"`
	Late     float64 `json:"late_seconds"` // of the backlog that has been due the longest, elsewhere
	Stalled  bool    `json:"stalled"`      // hosts do not send, or cannot keep up
}

// maxLate is the lateness at which hosts count as stalled.
const maxLate = 10 * time.Second

func (c *deliveryCall) showQueues(ctx context.Context) error {
	shards, err := c.shardCount(ctx)
	if err != nil {
		return err
	}
	q, err := c.readQueues(ctx, shards)
	if err != nil {
		return err
	}
	if *c.json {
		err = writeJSON(c.out, q)
	} else {
		err = q.write(c.out)
		if err == nil && q.Stalled {
			_, err = fmt.Fprintln(c.out, "No host sends, or hosts cannot keep up.")
		}
	}
	if err == nil && q.Stalled {
		return errProblems
	}
	return err
}

func (q shownQueues) write(w io.Writer) error {
	number := func(n int64) string { return strconv.FormatInt(n, 10) }
	late := time.Duration(q.Late * float64(time.Second)).Round(time.Millisecond).String()
	return writeTable(w, []string{"PUSHERS WITH A BACKLOG", "DUE", "BEHIND CLOSED GATEWAYS", "LONGEST DUE FOR", "FAILING", "LARGE EVENTS"},
		[][]string{{number(q.Backlogs), number(q.Due), number(q.Closed), late, number(q.Failing), number(q.FanOut)}})
}

// readQueues reads all shards, but no backlogs.
func (c *deliveryCall) readQueues(ctx context.Context, shards int) (q shownQueues, err error) {
	failing, fanOut := make([]*redis.IntCmd, shards), make([]*redis.StringCmd, shards)
	_, err = c.client.Pipelined(ctx, func(p redis.Pipeliner) error {
		for n := range shards {
			failing[n] = p.HLen(ctx, c.keys.ShardTrouble(n))
			fanOut[n] = p.HGet(ctx, c.keys.ShardBytes(n), stored.FanOutEntries)
		}
		return nil
	})
	if err != nil && !errors.Is(err, redis.Nil) {
		return q, fmt.Errorf("read the queue: %w", err)
	}
	for n := range shards {
		q.Failing += failing[n].Val()
		waiting, _ := fanOut[n].Int64()
		q.FanOut += waiting
	}
	gates, err := c.readGates(ctx, shards)
	if err != nil {
		return q, err
	}
	for _, g := range gates {
		q.Backlogs += int64(g.backlogs)
		q.Due += int64(g.due)
		if g.isClosed() {
			q.Closed += int64(g.due)
		} else {
			q.Late = max(q.Late, g.late.Seconds())
		}
	}
	q.Stalled = q.Late > maxLate.Seconds()
	return q, nil
}

type backlog struct {
	delivery.Waiting
	claim module.Claim
}

// readBacklogs returns the matching backlogs of some shards, and writes the number of
// unreadable ones to the notes.
func (c *deliveryCall) readBacklogs(ctx context.Context, shards []int, matches func(delivery.Waiting) bool) ([]backlog, error) {
	var mu sync.Mutex
	var all []backlog
	unreadable := 0
	err := parallel(ctx, shards, func(ctx context.Context, shard int) error {
		return c.queue.Backlogs(ctx, shard, func(b module.Backlog) bool {
			if b.Claim.Target.IsFanOut() {
				return true
			}
			w, err := delivery.ReadBacklog(b)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				unreadable++
			} else if matches(w) {
				all = append(all, backlog{w, b.Claim})
			}
			return true
		})
	})
	if err != nil {
		return nil, fmt.Errorf("read the queue: %w", err)
	}
	if unreadable > 0 {
		fmt.Fprintf(c.notes, "pushctl: skipped %d unreadable backlogs (see pushctl check)\n", unreadable)
	}
	slices.SortFunc(all, func(a, b backlog) int {
		return cmp.Or(cmp.Compare(a.claim.Target.Shard, b.claim.Target.Shard), cmp.Compare(a.Pusher, b.Pusher))
	})
	return slices.CompactFunc(all, func(a, b backlog) bool { return a.claim.Target == b.claim.Target }), nil
}

func queuesShowCommand() command {
	return command{
		name: "queues show", args: "USER",
		summary: "shows what waits for a user's pushers, and why",
		about: "Shows each pusher of a user by a digest: its gateway, the waiting notifications, since when they\n" +
			"wait and it fails, the status of the last answer or why there was none (dns, tls, refused, timeout, blocked),\n" +
			"the next try, and its generation, which changes when the pusher is set. Exit status 1: a pusher is\n" +
			"late, so no host sends, or there is no such user.",
		setup: forDelivery(func(f *flags, c *deliveryCall) { c.json = f.json() }, func(ctx context.Context, c *deliveryCall) error {
			user, err := c.userArgument()
			if err != nil {
				return err
			}
			ctx, cancel := context.WithTimeout(ctx, replyTimeout)
			defer cancel()
			return c.showUser(ctx, user)
		}),
	}
}

// The states of a pusher for operators.
const (
	stateWell     = "well"
	stateOff      = "not sent to" // of another kind than http, or disabled
	stateWaits    = "waits"
	stateUnderWay = "under way"
	stateLate     = "late" // due, but no host sends
	stateHeld     = "gateway held"
	stateClosed   = "gateway closed" // due when a gateway that fails works again
	stateGone     = "gone"           // deleted; a host will drop its backlog
)

type shownQueue struct {
	Pusher        string    `json:"pusher"` // a digest
	Gateway       string    `json:"gateway,omitempty"`
	State         string    `json:"state"`
	Notifications int       `json:"notifications"`
	Oldest        time.Time `json:"oldest,omitzero"` // when Notify got the oldest one
	Since         time.Time `json:"failing_since,omitzero"`
	Attempts      int       `json:"attempts"`
	Last          string    `json:"last,omitempty"` // the status, or why there was no answer
	Due           time.Time `json:"due,omitzero"`   // unless a host has claimed the backlog
	Generation    int64     `json:"generation,omitempty"`
}

func (c *deliveryCall) showUser(ctx context.Context, user mxid.UserID) error {
	all, err := c.queuesOf(ctx, user)
	if err != nil {
		return err
	}
	if *c.json {
		err = writeJSON(c.out, all)
	} else {
		err = writeQueues(c.out, all, c.now())
	}
	if err == nil && slices.ContainsFunc(all, func(q shownQueue) bool { return q.State == stateLate }) {
		return errProblems
	}
	return err
}

// queuesOf returns the backlogs of a user's pushers, deleted pushers included.
func (c *deliveryCall) queuesOf(ctx context.Context, user mxid.UserID) ([]shownQueue, error) {
	backlogs, err := c.selectBacklogs(ctx, user)
	if err != nil {
		return nil, err
	}
	var gates map[string]*gate
	if len(backlogs) > 0 {
		shards, err := c.shardCount(ctx)
		if err != nil {
			return nil, err
		}
		if gates, err = c.readGates(ctx, shards); err != nil {
			return nil, err
		}
	}
	list, err := c.pushers.Load(ctx, user)
	if err != nil && !isUnreadable(err) {
		return nil, err
	}
	all := []shownQueue{}
	for _, p := range list.All() {
		q := newShownQueue(user, p)
		if i := slices.IndexFunc(backlogs, func(b backlog) bool { return b.Pusher == q.Pusher }); i >= 0 {
			q.fill(backlogs[i], c.now(), gates)
			backlogs = slices.Delete(backlogs, i, i+1)
		}
		all = append(all, q)
	}
	for _, b := range backlogs {
		q := shownQueue{Pusher: b.Pusher, Gateway: b.Gateway, State: stateGone}
		q.fill(b, c.now(), gates)
		all = append(all, q)
	}
	if len(all) == 0 {
		return all, c.checkUser(ctx, user)
	}
	return all, nil
}

func newShownQueue(user mxid.UserID, p pusher.Pusher) shownQueue {
	q := shownQueue{Pusher: delivery.PusherID(user, p.Key), State: stateWell, Generation: p.SetAt}
	gateway, ok := delivery.GatewayOf(user, p)
	if q.Gateway = gateway; !ok {
		q.State = stateOff
	}
	return q
}

func (q *shownQueue) fill(b backlog, now time.Time, gates map[string]*gate) {
	q.Notifications, q.Oldest, q.Since, q.Attempts, q.Last = b.Notifications, b.Oldest, b.Since, b.Attempts, lastOf(b.Waiting)
	if !b.Claimed {
		q.Due = b.Due
	}
	g := gates[b.claim.Gate]
	if g == nil {
		g = &gate{}
	}
	isDue := !b.Due.After(now)
	switch {
	case q.State != stateWell:
	case !g.heldSince.IsZero():
		q.State = stateHeld
	case isDue && g.isClosed():
		q.State, q.Last = stateClosed, cmp.Or(q.Last, g.last)
	case now.Sub(b.Due) > maxLate:
		q.State = stateLate
	case b.Claimed:
		q.State = stateUnderWay
	default:
		q.State = stateWaits
	}
}

// lastOf returns the status of the last answer, or why there was none.
func lastOf(w delivery.Waiting) string {
	if w.Status > 0 {
		return strconv.Itoa(w.Status)
	}
	return w.Class
}

func writeQueues(w io.Writer, all []shownQueue, now time.Time) error {
	if len(all) == 0 {
		_, err := fmt.Fprintln(w, "The user has no pushers and no waiting notifications.")
		return err
	}
	var rows [][]string
	for _, q := range all {
		since := func(t time.Time) string {
			if t.IsZero() {
				return "-"
			}
			return now.Sub(t).Round(time.Second).String()
		}
		next := "-"
		if !q.Due.IsZero() {
			next = max(0, q.Due.Sub(now)).Round(time.Second).String()
		}
		rows = append(rows, []string{
			printable(q.Pusher), printable(cmp.Or(q.Gateway, "-")), q.State, strconv.Itoa(q.Notifications), since(q.Oldest), since(q.Since),
			printable(cmp.Or(q.Last, "-")), strconv.Itoa(q.Attempts), next, strconv.FormatInt(q.Generation, 10),
		})
	}
	head := []string{"PUSHER", "GATEWAY", "STATE", "NOTIFICATIONS", "WAITING FOR", "FAILING FOR", "LAST", "ATTEMPTS", "NEXT TRY IN", "GENERATION"}
	return writeTable(w, head, rows)
}

// selectBacklogs returns the backlogs of a user, or of all users, at the gateways that the
// flag names.
func (c *deliveryCall) selectBacklogs(ctx context.Context, user mxid.UserID) ([]backlog, error) {
	shards, err := c.shardCount(ctx)
	if err != nil {
		return nil, err
	}
	numbers := []int{delivery.ShardOf(user, shards)}
	if user == "" {
		numbers = nil
		for n := range shards {
			numbers = append(numbers, n)
		}
	}
	return c.readBacklogs(ctx, numbers, func(w delivery.Waiting) bool {
		return (user == "" || w.User == user) && c.gateway.matches(w.Gateway)
	})
}

// selection has the backlogs that a command changes.
type selection struct {
	backlogs []backlog
	at       string // the gateway of the flag, as a part of a sentence
}

// forSelection returns a setup whose runner selects backlogs by USER and -gateway.
func forSelection(run func(context.Context, *deliveryCall, selection) error) func(*flags) runner {
	return forDelivery(addGateway, func(ctx context.Context, c *deliveryCall) error {
		s, err := c.selected(ctx)
		if err != nil {
			return err
		}
		if len(s.backlogs) == 0 {
			_, err := fmt.Fprintln(c.out, "nothing waits")
			return err
		}
		return run(ctx, c, s)
	})
}

// selected returns no backlogs if nothing waits, and a [notFoundError] if the user or the
// gateway is unknown.
func (c *deliveryCall) selected(ctx context.Context) (s selection, err error) {
	if len(c.args) == 0 && c.gateway.isAny() {
		return s, errors.New("want USER or -gateway HOST (see -h)")
	}
	var user mxid.UserID
	if len(c.args) > 0 {
		if user, err = c.userArgument(); err != nil {
			return s, err
		}
	}
	if s.backlogs, err = c.selectBacklogs(ctx, user); err != nil {
		return s, err
	}
	if len(s.backlogs) == 0 {
		return s, c.checkSelection(ctx, user)
	}
	if c.gateway.isAny() {
		return s, nil
	}
	pushers := map[string]int{}
	for _, b := range s.backlogs {
		pushers[b.Gateway]++
	}
	gateway, err := c.gateway.only(pushers)
	s.at = " at " + printable(gateway)
	return s, err
}

// checkSelection checks that a selection without backlogs has a user, and the gateway a
// pusher.
func (c *deliveryCall) checkSelection(ctx context.Context, user mxid.UserID) error {
	switch {
	case c.gateway.isAny():
		return c.checkUser(ctx, user)
	case user == "":
		pushers, err := c.pushersAt(ctx, c.gateway)
		if err == nil && len(pushers) == 0 {
			err = notFoundError(fmt.Sprintf("no pusher uses the gateway %s", c.gateway))
		}
		return err
	}
	list, err := c.pushers.Load(ctx, user)
	if err != nil {
		return err
	}
	uses := func(p pusher.Pusher) bool {
		gateway, ok := delivery.GatewayOf(user, p)
		return ok && c.gateway.matches(gateway)
	}
	if !slices.ContainsFunc(list.All(), uses) {
		return notFoundError(fmt.Sprintf("%s has no pusher at the gateway %s", printable(string(user)), c.gateway))
	}
	return nil
}

func queuesRetryCommand() command {
	return command{
		name: "queues retry", args: "[USER]",
		summary: "tries waiting notifications of a user or gateway now",
		about: "Makes pushers due that wait after a failure. Give a user, -gateway or both. Without -yes it shows\n" +
			"what it would do. A host that has closed the gateway tries one of its pushers first. Exit status 1:\n" +
			"there is no such user or gateway.",
		setup: forSelection(func(ctx context.Context, c *deliveryCall, s selection) error {
			type place struct {
				shard int
				gate  string
			}
			byGate := map[place][]string{}
			for _, b := range s.backlogs {
				if at := (place{b.claim.Target.Shard, b.claim.Gate}); !b.Claimed {
					byGate[at] = append(byGate[at], b.claim.Target.Name)
				}
			}
			n := 0
			for at, targets := range byGate {
				if c.yes {
					retried, err := c.queue.Retry(ctx, at.shard, at.gate, targets)
					if err != nil {
						return err
					}
					n += retried
				} else {
					n += len(targets)
				}
			}
			if err := c.noteHeld(ctx, s.backlogs); err != nil {
				return err
			}
			return c.report("retry", "%d of %d pushers%s", n, len(s.backlogs), s.at)
		}),
	}
}

// noteHeld writes a note if backlogs have a held gateway, to which hosts send nothing.
func (c *deliveryCall) noteHeld(ctx context.Context, all []backlog) error {
	held, err := c.queue.Held(ctx)
	if err != nil {
		return err
	}
	isHeld := func(b backlog) bool { return !held[b.Gateway].IsZero() }
	if i := slices.IndexFunc(all, isHeld); i >= 0 {
		fmt.Fprintf(c.notes, "pushctl: hosts send nothing to %s, which is held (gateways open ends it)\n", printable(all[i].Gateway))
	}
	return nil
}

func queuesFlushCommand() command {
	return command{
		name: "queues flush", args: "[USER]",
		summary: "drops waiting notifications of a user or gateway",
		about: "Drops all waiting notifications, for good. Give a user, -gateway or both. Without -yes it shows what\n" +
			"it would do. Notifications that a host is sending are not affected. Exit status 1: there is no such\n" +
			"user or gateway.",
		setup: forSelection(func(ctx context.Context, c *deliveryCall, s selection) error {
			n, err := c.flush(ctx, s.backlogs)
			if err != nil {
				return err
			}
			return c.report("drop", "%d notifications of %d pushers%s", n, len(s.backlogs), s.at)
		}),
	}
}

// flush counts the notifications in the backlogs and, with -yes, drops them.
func (c *deliveryCall) flush(ctx context.Context, all []backlog) (notifications int, err error) {
	for _, b := range all {
		n := b.Notifications
		if c.yes {
			if n, err = c.queue.Flush(ctx, b.claim); err != nil {
				return notifications, err
			}
		}
		notifications += n
	}
	return notifications, nil
}

// report writes the change, or without -yes the change that -yes would make.
func (c *deliveryCall) report(verb, format string, args ...any) error {
	begin := "would " + verb + " "
	if c.yes {
		begin = "done: " + verb + " "
	}
	_, err := fmt.Fprintf(c.out, begin+format+"\n", args...)
	return err
}

// forgetBacklogs drops the backlogs of a user without pushers.
func (c *deliveryCall) forgetBacklogs(ctx context.Context, user mxid.UserID) error {
	all, err := c.selectBacklogs(ctx, user)
	if errors.Is(err, errNoQueue) || err == nil && len(all) == 0 {
		return nil
	}
	if err != nil {
		return err
	}
	c.yes = true
	n, err := c.flush(ctx, all)
	if err != nil {
		return err
	}
	return c.report("drop", "%d notifications of %d pushers", n, len(all))
}
