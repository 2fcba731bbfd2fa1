package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/delivery"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/pusher"
	"github.com/pushfx/pushfx/module/stored"
)

// deliveryCall is a call of a command about delivery, with its flags.
type deliveryCall struct {
	*call
	json    *bool
	yes     bool
	gateway string
	pusher  string // a digest
	allowed string // prefixes
}

// forDelivery is the setup of a command about delivery.
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
	f.BoolVar(&c.yes, "yes", false, "do it; without it nothing is changed")
}

// addGateway is for commands that change backlogs.
func addGateway(f *flags, c *deliveryCall) {
	f.StringVar(&c.gateway, "gateway", "", "`HOST` of a push gateway, as host, host:port or scheme://host:port: only its pushers")
	addYes(f, c)
}

func queuesCommand() command {
	return command{
		name:    "queues",
		summary: "shows how much is to be delivered, and whether that is done",
		about: "Shows how many pushers have a backlog of notifications, how many of these are due, and how many could\n" +
			"not be delivered at the last try. What has been due for longer than ten seconds is a problem: no host\n" +
			"with pushfx.Delivery runs, or none keeps up.",
		setup: forDelivery(func(f *flags, c *deliveryCall) { c.json = f.json() }, func(ctx context.Context, c *deliveryCall) error {
			ctx, cancel := context.WithTimeout(ctx, replyLimit)
			defer cancel()
			return c.showQueues(ctx)
		}),
	}
}

var errNoQueue = errors.New("there is no queue: no host has started with pushfx.Delivery")

// shardCount is how many shards the queue has.
func (b *backend) shardCount(ctx context.Context) (int, error) {
	text, err := b.client.Get(ctx, b.keys.DeliveryFormat()).Result()
	if errors.Is(err, redis.Nil) {
		return 0, fmt.Errorf("%w here, with the prefix %q", errNoQueue, b.keys.Prefix)
	}
	if err != nil {
		return 0, fmt.Errorf("read the queue: %w", err)
	}
	shards, found := stored.ReadDeliveryFormat(text)
	if !found {
		return 0, fmt.Errorf("the queue has a form that this pushctl cannot read: %q", text)
	}
	return shards, nil
}

// shownQueues is the whole queue.
type shownQueues struct {
	Backlogs  int64   `json:"pushers_with_a_backlog"`
	Due       int64   `json:"due"`
	Trouble   int64   `json:"pushers_in_trouble"`
	FanOut    int64   `json:"large_events"`
	Late      float64 `json:"due_for_seconds"` // the one that has been due the longest
	NobodyAct bool    `json:"nobody_sends"`
}

// maxLate is how late a host that is well sends what is due.
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
		_, err = fmt.Fprintf(c.out, "%d pushers have a backlog, %d of them are due, the longest for %v; %d are in trouble; %d large events wait\n",
			q.Backlogs, q.Due, time.Duration(q.Late*float64(time.Second)).Round(time.Millisecond), q.Trouble, q.FanOut)
		if err == nil && q.NobodyAct {
			_, err = fmt.Fprintln(c.out, "No host sends, or none keeps up.")
		}
	}
	if err == nil && q.NobodyAct {
		return errProblems
	}
	return err
}

// readQueues reads all shards, in one pipeline for each node.
func (c *deliveryCall) readQueues(ctx context.Context, shards int) (q shownQueues, err error) {
	now := c.now().UnixMicro()
	lengths, due := make([]*redis.IntCmd, shards), make([]*redis.IntCmd, shards)
	trouble, fanOut := make([]*redis.IntCmd, shards), make([]*redis.IntCmd, shards)
	first := make([]*redis.ZSliceCmd, shards)
	_, err = c.client.Pipelined(ctx, func(p redis.Pipeliner) error {
		for n := range shards {
			lengths[n] = p.ZCard(ctx, c.keys.ShardDue(n))
			due[n] = p.ZCount(ctx, c.keys.ShardDue(n), "-inf", strconv.FormatInt(now, 10))
			trouble[n] = p.HLen(ctx, c.keys.ShardTrouble(n))
			fanOut[n] = p.LLen(ctx, c.keys.Backlog(n, module.FanOut))
			first[n] = p.ZRangeWithScores(ctx, c.keys.ShardDue(n), 0, 0)
		}
		return nil
	})
	if err != nil {
		return q, fmt.Errorf("read the queue: %w", err)
	}
	for n := range shards {
		q.Backlogs += lengths[n].Val()
		q.Due += due[n].Val()
		q.Trouble += trouble[n].Val()
		q.FanOut += fanOut[n].Val()
		for _, z := range first[n].Val() {
			q.Late = max(q.Late, float64(now-int64(z.Score))/1e6)
		}
	}
	q.NobodyAct = q.Late > maxLate.Seconds()
	return q, nil
}

// backlog is a backlog of a pusher.
type backlog struct {
	delivery.Waiting
	target module.Target
}

// readBacklogs returns the backlogs that are wanted. It notes how many cannot be read.
func (c *deliveryCall) readBacklogs(ctx context.Context, shards []int, wanted func(delivery.Waiting) bool) ([]backlog, error) {
	var mu sync.Mutex
	var all []backlog
	unreadable := 0
	err := parallel(ctx, shards, func(ctx context.Context, shard int) error {
		return c.queue.Backlogs(ctx, shard, func(b module.Backlog) bool {
			if b.Claim.Target.Name == module.FanOut {
				return true
			}
			w, err := delivery.ReadBacklog(b)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				unreadable++
			} else if wanted(w) {
				all = append(all, backlog{w, b.Claim.Target})
			}
			return true
		})
	})
	if err != nil {
		return nil, fmt.Errorf("read the queue: %w", err)
	}
	if unreadable > 0 {
		fmt.Fprintf(c.notes, "pushctl: %d backlogs cannot be read, and are left out (see pushctl check)\n", unreadable)
	}
	slices.SortFunc(all, func(a, b backlog) int {
		return cmp.Or(cmp.Compare(a.target.Shard, b.target.Shard), cmp.Compare(a.Pusher, b.Pusher))
	})
	return slices.CompactFunc(all, func(a, b backlog) bool { return a.target == b.target }), nil
}

func queuesShowCommand() command {
	return command{
		name: "queues show", args: "USER",
		summary: "shows what is to be delivered to a user's pushers",
		about: "Shows each pusher of a user by a digest, with its gateway, how many notifications wait, since when it\n" +
			"fails and how the last try ended: the status of the answer, or why there was none (dns, tls, refused,\n" +
			"timeout, blocked); when it is tried again; and its generation, which is new with each time that it is\n" +
			"set. What is late is a problem: no host sends.",
		setup: forDelivery(func(f *flags, c *deliveryCall) { c.json = f.json() }, func(ctx context.Context, c *deliveryCall) error {
			user, err := c.userArgument()
			if err != nil {
				return err
			}
			ctx, cancel := context.WithTimeout(ctx, replyLimit)
			defer cancel()
			return c.showUser(ctx, user)
		}),
	}
}

// The states of a pusher, as operators see them.
const (
	isWell        = "well"
	isNotSentTo   = "not sent to" // of another kind than http, or disabled
	isWaiting     = "waits"
	isUnderWay    = "under way"
	isLate        = "late" // it is due, and no host sends
	isGatewayHeld = "gateway held"
	isGoneAlready = "gone" // it was deleted, which its host will see
)

// shownQueue is what is to be delivered to a pusher.
type shownQueue struct {
	Pusher        string    `json:"pusher"` // a digest
	Gateway       string    `json:"gateway,omitempty"`
	State         string    `json:"state"`
	Notifications int       `json:"notifications"`
	Since         time.Time `json:"failing_since,omitzero"`
	Attempts      int       `json:"attempts"`
	Last          string    `json:"last,omitempty"` // a status, or why there was no answer
	Due           time.Time `json:"due,omitzero"`
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
	if err == nil && slices.ContainsFunc(all, func(q shownQueue) bool { return q.State == isLate }) {
		return errProblems
	}
	return err
}

// queuesOf returns what is to be delivered to a user's pushers, those that are gone
// included.
func (c *deliveryCall) queuesOf(ctx context.Context, user mxid.UserID) ([]shownQueue, error) {
	backlogs, err := c.selectBacklogs(ctx, user)
	if err != nil {
		return nil, err
	}
	held, err := c.queue.Held(ctx)
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
		if i := slices.IndexFunc(backlogs, func(b backlog) bool { return b.Pusher == q.Pusher }); i >= 0 {
			q.fill(backlogs[i], c.now(), held)
			backlogs = slices.Delete(backlogs, i, i+1)
		}
		all = append(all, q)
	}
	for _, b := range backlogs {
		q := shownQueue{Pusher: b.Pusher, Gateway: b.Gateway, State: isGoneAlready}
		q.fill(b, c.now(), held)
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
func (q *shownQueue) fill(b backlog, now time.Time, held map[string]time.Time) {
	q.Notifications, q.Since, q.Attempts, q.Due, q.Last = b.Notifications, b.Since, b.Attempts, b.Due, lastOf(b.Waiting)
	_, isHeld := held[q.Gateway]
	switch {
	case q.State != isWell:
	case now.Sub(b.Due) > maxLate:
		q.State = isLate
	case isHeld:
		q.State = isGatewayHeld
	case b.Claimed:
		q.State = isUnderWay
	default:
		q.State = isWaiting
	}
}

// lastOf says how the last try has ended.
func lastOf(w delivery.Waiting) string {
	if w.Status > 0 {
		return strconv.Itoa(w.Status)
	}
	return w.Class
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
		}
		if !q.Due.IsZero() {
			next = max(0, q.Due.Sub(now)).Round(time.Second).String()
		}
		rows = append(rows, []string{
			printable(q.Pusher), printable(cmp.Or(q.Gateway, "-")), q.State, strconv.Itoa(q.Notifications), failing,
			printable(cmp.Or(q.Last, "-")), strconv.Itoa(q.Attempts), next, strconv.FormatInt(q.Generation, 10),
		})
	}
	head := []string{"PUSHER", "GATEWAY", "STATE", "NOTIFICATIONS", "FAILING FOR", "LAST", "ATTEMPTS", "NEXT TRY IN", "GENERATION"}
	return writeTable(w, head, rows)
}

// selectBacklogs returns the backlogs of a user, or all, that the flags name.
func (c *deliveryCall) selectBacklogs(ctx context.Context, user mxid.UserID) ([]backlog, error) {
	shards, err := c.shardCount(ctx)
	if err != nil {
		return nil, err
	}
	of := []int{delivery.ShardOf(user, shards)}
	if user == "" {
		of = nil
		for n := range shards {
			of = append(of, n)
		}
	}
	return c.readBacklogs(ctx, of, func(w delivery.Waiting) bool {
		return (user == "" || w.User == user) && (c.gateway == "" || isGateway(w.Gateway, c.gateway))
	})
}

// isGateway reports whether a push gateway is the one that an operator names: by its
// host, with or without port and scheme.
func isGateway(gateway, name string) bool {
	name = strings.ToLower(name)
	_, host, _ := strings.Cut(gateway, "://")
	return name != "" && (gateway == name || host == name || host[:max(0, strings.LastIndexByte(host, ':'))] == name)
}

// chosen returns the backlogs that a change is for.
func (c *deliveryCall) chosen(ctx context.Context) (all []backlog, err error) {
	if len(c.args) == 0 && c.gateway == "" {
		return nil, errors.New("want USER, or -gateway HOST (-h explains them)")
	}
	var user mxid.UserID
	if len(c.args) > 0 {
		if user, err = c.userArgument(); err != nil {
			return nil, err
		}
	}
	return c.selectBacklogs(ctx, user)
}

func queuesRetryCommand() command {
	return command{
		name: "queues retry", args: "[USER]",
		summary: "has what waits for a user's pushers, or for a gateway, tried at once",
		about: "Has pushers tried at once that wait after a failure. Give a user or -gateway. Without -yes it only\n" +
			"tells what it would do. Hosts that have closed the gateway try it with one of them first.",
		setup: forDelivery(addGateway, func(ctx context.Context, c *deliveryCall) error {
			all, err := c.chosen(ctx)
			if err != nil {
				return err
			}
			byShard := map[int][]string{}
			for _, b := range all {
				if !b.Claimed {
					byShard[b.target.Shard] = append(byShard[b.target.Shard], b.target.Name)
				}
			}
			n := 0
			for shard, targets := range byShard {
				if c.yes {
					retried, err := c.queue.Retry(ctx, shard, targets)
					if err != nil {
						return err
					}
					n += retried
				} else {
					n += len(targets)
				}
			}
			return c.tell("retry", "%d pushers", n)
		}),
	}
}

func queuesFlushCommand() command {
	return command{
		name: "queues flush", args: "[USER]",
		summary: "drops what waits for a user's pushers, or for a gateway",
		about: "Drops all notifications that wait for pushers, for good. Give a user or -gateway. Without -yes it only\n" +
			"tells what it would do. What a host is sending right now is sent.",
		setup: forDelivery(addGateway, func(ctx context.Context, c *deliveryCall) error {
			all, err := c.chosen(ctx)
			if err != nil {
				return err
			}
			n, err := c.flush(ctx, all)
			if err != nil {
				return err
			}
			return c.tell("drop", "%d notifications of %d pushers", n, len(all))
		}),
	}
}

// flush drops backlogs, if it is to do so, and returns how many notifications they
// have.
func (c *deliveryCall) flush(ctx context.Context, all []backlog) (notifications int, err error) {
	for _, b := range all {
		n := b.Notifications
		if c.yes {
			if n, err = c.queue.Flush(ctx, b.target); err != nil {
				return notifications, err
			}
		}
		notifications += n
	}
	return notifications, nil
}

// tell says what was done, or would be.
func (c *deliveryCall) tell(what, format string, args ...any) error {
	begin := "would " + what + " "
	if c.yes {
		begin = "done: " + what + " "
	}
	_, err := fmt.Fprintf(c.out, begin+format+"\n", args...)
	return err
}

// forgetBacklogs drops what waits for the pushers of a user who has none any more.
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
	return c.tell("drop", "%d notifications that waited for %d pushers", n, len(all))
}
