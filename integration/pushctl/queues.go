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

// addSelection adds the flags of [call.selected].
func (f *flags) addSelection() {
	f.Func("gateway", "only pushers of the push gateway `HOST`: "+gatewayForms, func(text string) (err error) {
		f.gateway, err = readGatewayName(text)
		return err
	})
	f.addYes()
}

func queuesCommand() command {
	return command{
		name:    "queues",
		summary: "counts waiting notifications, and says whether hosts send them",
		about: "Counts the pushers with waiting notifications, the due ones among them, and the failing ones. Exit\n" +
			"status 1: a notification has been due for more than ten seconds, so no host with pushfx.Delivery\n" +
			"runs, or hosts cannot keep up.",
		flags: (*flags).addJSON,
		run:   (*call).showQueues,
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

func allShards(shards int) (numbers []int) {
	for n := range shards {
		numbers = append(numbers, n)
	}
	return numbers
}

type shownQueues struct {
	Backlogs int64   `json:"pushers_with_a_backlog"`
	Due      int64   `json:"due"`
	Closed   int64   `json:"behind_closed_gateways"` // due backlogs at gateways that fail or are held
	Failing  int64   `json:"failing_pushers"`
	FanOut   int64   `json:"large_events"`
	Late     float64 `json:"late_seconds"` // lateness of the backlog that has been due the longest at other gateways
	Stalled  bool    `json:"stalled"`      // hosts do not send, or cannot keep up
}

// maxLate is the lateness from which hosts count as stalled.
const maxLate = 10 * time.Second

func (c *call) showQueues(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, replyTimeout)
	defer cancel()
	shards, err := c.shardCount(ctx)
	if err != nil {
		return err
	}
	q, err := c.readQueues(ctx, shards)
	if err != nil {
		return err
	}
	return c.result(q, q.write, q.Stalled)
}

func (q shownQueues) write(w io.Writer) error {
	number := func(n int64) string { return strconv.FormatInt(n, 10) }
	err := writeTable(w, []string{"PUSHERS WITH A BACKLOG", "DUE", "BEHIND CLOSED GATEWAYS", "LONGEST DUE FOR", "FAILING", "LARGE EVENTS"},
		[][]string{{number(q.Backlogs), number(q.Due), number(q.Closed), duration(q.Late, time.Millisecond), number(q.Failing), number(q.FanOut)}})
	if err == nil && q.Stalled {
		_, err = fmt.Fprintln(w, "No host sends, or hosts cannot keep up.")
	}
	return err
}

// readQueues reads all shards, but no backlogs.
func (c *call) readQueues(ctx context.Context, shards int) (q shownQueues, err error) {
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
func (c *call) readBacklogs(ctx context.Context, shards []int, matches func(delivery.Waiting) bool) ([]backlog, error) {
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
		flags: (*flags).addJSON,
		run:   (*call).showUserQueues,
	}
}

// The states of a pusher for operators.
const (
	stateWell     = "well"
	stateOff      = "not sent to" // disabled, or not of the kind http
	stateWaits    = "waits"
	stateUnderWay = "under way"
	stateLate     = "late" // due, but no host sends
	stateHeld     = "gateway held"
	stateClosed   = "gateway closed" // waits until a failing gateway works again
	stateGone     = "gone"           // deleted; a host will drop its backlog
)

type shownQueue struct {
	Pusher        string    `json:"pusher"` // a digest
	Gateway       string    `json:"gateway,omitempty"`
	State         string    `json:"state"`
	Notifications int       `json:"notifications"`
	Oldest        time.Time `json:"oldest,omitzero"` // when Notify queued the oldest notification
	Since         time.Time `json:"failing_since,omitzero"`
	Attempts      int       `json:"attempts"`
	Last          string    `json:"last,omitempty"` // the status, or why there was no answer
	Due           time.Time `json:"due,omitzero"`   // zero if a host has claimed the backlog
	Generation    int64     `json:"generation,omitempty"`
}

func (c *call) showUserQueues(ctx context.Context) error {
	user, err := c.userArgument()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, replyTimeout)
	defer cancel()
	all, err := c.queuesOf(ctx, user)
	if err != nil {
		return err
	}
	isLate := slices.ContainsFunc(all, func(q shownQueue) bool { return q.State == stateLate })
	return c.result(all, func(w io.Writer) error { return writeQueues(w, all, c.now()) }, isLate)
}

// queuesOf returns the backlogs of a user's pushers, deleted pushers included.
func (c *call) queuesOf(ctx context.Context, user mxid.UserID) ([]shownQueue, error) {
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
		next := "-"
		if !q.Due.IsZero() {
			next = max(0, q.Due.Sub(now)).Round(time.Second).String()
		}
		rows = append(rows, []string{
			printable(q.Pusher), printable(cmp.Or(q.Gateway, "-")), q.State, strconv.Itoa(q.Notifications), ago(q.Oldest, now), ago(q.Since, now),
			printable(cmp.Or(q.Last, "-")), strconv.Itoa(q.Attempts), next, strconv.FormatInt(q.Generation, 10),
		})
	}
	head := []string{"PUSHER", "GATEWAY", "STATE", "NOTIFICATIONS", "WAITING FOR", "FAILING FOR", "LAST", "ATTEMPTS", "NEXT TRY IN", "GENERATION"}
	return writeTable(w, head, rows)
}

// selectBacklogs returns the backlogs of a user, or of all users, at the gateways that -gateway names.
func (c *call) selectBacklogs(ctx context.Context, user mxid.UserID) ([]backlog, error) {
	shards, err := c.shardCount(ctx)
	if err != nil {
		return nil, err
	}
	numbers := allShards(shards)
	if user != "" {
		numbers = []int{delivery.ShardOf(user, shards)}
	}
	return c.readBacklogs(ctx, numbers, func(w delivery.Waiting) bool {
		return (user == "" || w.User == user) && c.gateway.matches(w.Gateway)
	})
}

// selection has the backlogs that a command changes.
type selection struct {
	backlogs []backlog
	at       string // the gateway of -gateway, as a part of a sentence
}

// selected returns the backlogs that USER and -gateway name. If there are none, it prints "nothing waits". It returns a
// [notFoundError] if the user or the gateway is unknown.
func (c *call) selected(ctx context.Context) (s selection, err error) {
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
		if err = c.checkSelection(ctx, user); err == nil {
			_, err = fmt.Fprintln(c.out, "nothing waits")
		}
		return s, err
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

// checkSelection checks a selection without backlogs: the user must exist, and the gateway must have a pusher.
func (c *call) checkSelection(ctx context.Context, user mxid.UserID) error {
	switch {
	case c.gateway.isAny():
		return c.checkUser(ctx, user)
	case user == "":
		_, err := c.pushersAt(ctx, c.gateway)
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
		flags: (*flags).addSelection,
		run:   (*call).retryQueues,
	}
}

func (c *call) retryQueues(ctx context.Context) error {
	s, err := c.selected(ctx)
	if err != nil || len(s.backlogs) == 0 {
		return err
	}
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
	all := 0
	for at, targets := range byGate {
		n := len(targets)
		if c.yes {
			if n, err = c.queue.Retry(ctx, at.shard, at.gate, targets); err != nil {
				return err
			}
		}
		all += n
	}
	if err := c.noteHeld(ctx, s.backlogs); err != nil {
		return err
	}
	return c.report("retry %d of %d pushers%s", all, len(s.backlogs), s.at)
}

// noteHeld writes a note if some of the backlogs are at a held gateway, to which hosts send nothing.
func (c *call) noteHeld(ctx context.Context, all []backlog) error {
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
		flags: (*flags).addSelection,
		run:   (*call).flushQueues,
	}
}

func (c *call) flushQueues(ctx context.Context) error {
	s, err := c.selected(ctx)
	if err != nil || len(s.backlogs) == 0 {
		return err
	}
	return c.flush(ctx, s)
}

// flush counts the notifications and, with -yes, drops them.
func (c *call) flush(ctx context.Context, s selection) error {
	all := 0
	for _, b := range s.backlogs {
		n := b.Notifications
		if c.yes {
			var err error
			if n, err = c.queue.Flush(ctx, b.claim); err != nil {
				return err
			}
		}
		all += n
	}
	return c.report("drop %d notifications of %d pushers%s", all, len(s.backlogs), s.at)
}

// forgetBacklogs drops the backlogs of a user without pushers.
func (c *call) forgetBacklogs(ctx context.Context, user mxid.UserID) error {
	all, err := c.selectBacklogs(ctx, user)
	if errors.Is(err, errNoQueue) || err == nil && len(all) == 0 {
		return nil
	}
	if err != nil {
		return err
	}
	return c.flush(ctx, selection{backlogs: all})
}
