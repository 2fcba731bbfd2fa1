package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/delivery"
	"github.com/pushfx/pushfx/module/delivery/channel"
	"github.com/pushfx/pushfx/module/delivery/channel/kinds"
	"github.com/pushfx/pushfx/module/delivery/redisqueue"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/pusher"
	"github.com/pushfx/pushfx/module/redisclient"
	"github.com/pushfx/pushfx/module/stored"
)

// addSelection adds the flags of [call.changeBacklogs].
func (f *flags) addSelection() {
	f.Func("gateway", "only pushers of the push gateway `HOST`: "+gatewayForms, func(text string) (err error) {
		f.gateway, err = readGatewayName(text)
		return err
	})
	f.addYes()
}

var queuesCommand = command{
	name:    "queues",
	summary: "counts waiting notifications, and says whether hosts send them",
	about: "Counts the users with waiting notifications, the due ones among them, and the hanging ones (whose\n" +
		"last request had no answer, while others are answered), and says for how long the oldest has waited.\n" +
		"Exit status 1: a notification has been due for more than ten seconds, so no host with pushfx.Delivery\n" +
		"runs, or hosts cannot keep up. 2: a part cannot be read; the rest is shown.",
	flags: (*flags).addJSON,
	run:   (*call).showQueues,
}

var errNoQueue = errors.New("no host has started with pushfx.Delivery")

// openQueue reads the format of the queue. If the format's master is away, it assumes the default.
func (b *backend) openQueue(ctx context.Context) error {
	isFound, other, err := b.readFormat(ctx)
	if other == nil && err == nil && !isFound {
		return fmt.Errorf("%w on this Redis with -key-prefix %q", errNoQueue, b.keys.Prefix)
	}
	return other
}

type shownQueues struct {
	Users   int     `json:"users"` // with waiting notifications, at each gateway and app
	Due     int     `json:"due"`
	Closed  int     `json:"behind_closed_gateways"` // due users of gateways that fail
	Hanging int     `json:"hanging_users"`
	Oldest  float64 `json:"oldest_seconds"` // for how long the oldest notification has waited
	Late    float64 `json:"late_seconds"`   // lateness of the user that has been due the longest at other gateways
	Stalled bool    `json:"stalled"`        // hosts do not send, or cannot keep up
}

// maxLate is the lateness from which hosts count as stalled.
const maxLate = 10 * time.Second

func (c *call) showQueues(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, replyTimeout)
	defer cancel()
	if err := c.openQueue(ctx); err != nil {
		return err
	}
	gates := c.readGates(ctx)
	var q shownQueues
	for _, g := range gates {
		q.Users, q.Due, q.Hanging = q.Users+g.users, q.Due+g.due, q.Hanging+g.hanging
		q.Oldest = max(q.Oldest, g.oldest.Seconds())
		if g.isClosed {
			q.Closed += g.due
		} else {
			q.Late = max(q.Late, g.late.Seconds())
		}
	}
	q.Stalled = q.Late > maxLate.Seconds()
	return c.result(q, q.write, q.Stalled)
}

func (q shownQueues) write(w io.Writer) error {
	err := writeTable(w, []string{"USERS", "DUE", "BEHIND CLOSED GATEWAYS", "LONGEST DUE FOR", "WAITING FOR", "HANGING"}, [][]string{{
		strconv.Itoa(q.Users), strconv.Itoa(q.Due), strconv.Itoa(q.Closed), duration(q.Late, time.Millisecond),
		duration(q.Oldest, time.Second), strconv.Itoa(q.Hanging),
	}})
	if err == nil && q.Stalled {
		_, err = fmt.Fprintln(w, "No host sends, or hosts cannot keep up.")
	}
	return err
}

// backlog is a pusher with something to send.
type backlog struct {
	redisqueue.Place
	delivery.Waiting
	gate, gateway string // of the pusher, or of its last failure if the user has deleted it
}

// pusherID is the name of the pusher in the log.
func (b *backlog) pusherID() string { return b.Place.Pusher }

// readBacklogs returns what waits for users.
func (b *backend) readBacklogs(ctx context.Context, users ...mxid.UserID) (all []backlog, err error) {
	places, err := b.queue.Places(ctx, users)
	if err != nil {
		return nil, fmt.Errorf("cannot read the queue: %w", err)
	}
	lists := b.pushers.LoadMany(ctx, users)
	for _, p := range places {
		waits := backlog{Place: p, Waiting: delivery.ReadTrouble(module.Trouble{Generation: p.Generation, Text: p.Trouble})}
		waits.gate, waits.gateway = cmp.Or(strings.TrimSpace(waits.Gateway+" "+waits.App), goneGate), waits.Gateway
		if target := targetOf(p.User, lists[p.User].Value, p.Pusher); target != nil {
			waits.gate, waits.gateway = target.Gate(), target.Gateway
		}
		all = append(all, waits)
	}
	return all, nil
}

// goneGate lists users for deleted pushers that have not failed. A look at any gate finds them.
const goneGate = "unknown"

// targetOf returns a pusher of a user, nil if it is deleted or disabled.
func targetOf(user mxid.UserID, list pusher.List, id string) *channel.Target {
	for _, p := range list.All() {
		if delivery.PusherID(user, p.Key) == id {
			if target, ok := kinds.Names().Read(user, p); ok {
				return target
			}
		}
	}
	return nil
}

var queuesShowCommand = command{
	name: "queues show", args: "USER",
	summary: "shows what waits for a user's pushers, and why",
	about: "Shows each pusher of a user by a digest, its app and device: its gateway, the waiting notifications, since when they\n" +
		"wait and it fails, the status of the last answer or why there was none (dns, tls, refused, timeout, blocked),\n" +
		"and the next try. Exit status 1: a pusher is late, so no host sends, or damaged, or there is no such user.",
	flags: (*flags).addJSON,
	run:   (*call).showUserQueues,
}

// The states of a pusher for operators.
const (
	stateWell     = "well"
	stateOff      = "not sent to" // disabled, or not of the kind http
	stateWaits    = "waits"
	stateUnderWay = "under way"
	stateLate     = "late"           // due, but no host sends
	stateClosed   = "gateway closed" // waits until a failing gateway works again
	stateGone     = "gone"           // deleted; a host will drop its backlog
	stateDamaged  = "damaged"        // hosts cannot read the log of its user
)

type shownQueue struct {
	namedPusher
	Gateway       string    `json:"gateway,omitempty"`
	State         string    `json:"state"`
	Notifications int       `json:"notifications"`
	Oldest        time.Time `json:"oldest,omitzero"` // when Notify queued the oldest notification
	Since         time.Time `json:"failing_since,omitzero"`
	Attempts      int       `json:"attempts"`
	Last          string    `json:"last,omitempty"` // the status, or why there was no answer
	Due           time.Time `json:"due,omitzero"`   // zero if a host has claimed the backlog
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
	isBad := slices.ContainsFunc(all, func(q shownQueue) bool { return q.State == stateLate || q.State == stateDamaged })
	return c.result(all, func(w io.Writer) error { return writeQueues(w, all, c.now()) }, isBad)
}

// queuesOf returns what waits for a user's pushers, deleted pushers included.
func (c *call) queuesOf(ctx context.Context, user mxid.UserID) ([]shownQueue, error) {
	if err := c.openQueue(ctx); err != nil {
		return nil, err
	}
	backlogs, err := c.readBacklogs(ctx, user)
	if err != nil {
		return nil, err
	}
	var gates map[string]*gate
	if len(backlogs) > 0 {
		gates = c.readGates(ctx)
	}
	list, err := c.pushers.Load(ctx, user)
	if err != nil && !isUnreadable(err) {
		return nil, err
	}
	all := []shownQueue{}
	for _, p := range list.All() {
		q := newShownQueue(user, p)
		if i := slices.IndexFunc(backlogs, func(b backlog) bool { return b.pusherID() == q.Pusher }); i >= 0 {
			q.fill(backlogs[i], gates)
			backlogs = slices.Delete(backlogs, i, i+1)
		}
		all = append(all, q)
	}
	for _, b := range backlogs {
		q := shownQueue{namedPusher: namedPusher{Pusher: b.pusherID(), AppID: b.App}, Gateway: b.gateway, State: stateGone}
		q.fill(b, gates)
		all = append(all, q)
	}
	if len(all) == 0 {
		return all, c.checkUser(ctx, user)
	}
	isDamaged, err := c.hasDamagedLog(ctx, user, all)
	for i := range all {
		if isDamaged && all[i].State != stateOff {
			all[i].State = stateDamaged
		}
	}
	return all, err
}

// hasDamagedLog reports whether hosts cannot read a user's log, or what it says of one of the pushers that they send to:
// then they send to none of them.
func (c *call) hasDamagedLog(ctx context.Context, user mxid.UserID, pushers []shownQueue) (isDamaged bool, err error) {
	fields := []string{stored.LogField}
	for _, q := range pushers {
		if q.State != stateOff {
			fields = append(fields, q.Pusher, stored.KeptField(q.Pusher))
		}
	}
	values, err := c.client.HMGet(ctx, c.keys.UserLog(user), fields...).Result()
	if redisclient.IsWrongType(err) {
		return true, nil
	}
	for i, value := range values {
		text, isStored := value.(string)
		isDamaged = isDamaged || isStored && !isReadable(fields[i], text)
	}
	return isDamaged, err
}

func newShownQueue(user mxid.UserID, p pusher.Pusher) shownQueue {
	q := shownQueue{namedPusher: newNamedPusher(user, p), State: stateWell}
	gateway, ok := delivery.GatewayOf(user, p)
	if q.Gateway = gateway; !ok {
		q.State = stateOff
	}
	return q
}

func (q *shownQueue) fill(b backlog, gates map[string]*gate) {
	due := time.UnixMicro(b.Until)
	q.Notifications, q.Oldest, q.Since, q.Attempts, q.Last = b.Place.Notifications, b.Place.Oldest, b.Since, b.Attempts, lastOf(b.Waiting)
	if !b.IsClaimed() {
		q.Due = due
	}
	g := gates[b.gate]
	if g == nil {
		g = &gate{}
	}
	switch {
	case q.State != stateWell:
	case !due.After(b.Now) && g.isClosed:
		q.State, q.Last = stateClosed, cmp.Or(q.Last, g.last)
	case b.Now.Sub(due) > maxLate:
		q.State = stateLate
	case b.IsClaimed():
		q.State = stateUnderWay
	default:
		q.State = stateWaits
	}
}

// lastOf returns the status of the last answer, or why there was none. It is empty if neither is known.
func lastOf(w delivery.Waiting) string {
	switch {
	case w.Status > 0:
		return strconv.Itoa(w.Status)
	case w.Class == string(channel.ClassStatus): // of mail: no server has answered, and the network has not failed
		return ""
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
		rows = append(rows, append(q.cells(),
			printable(cmp.Or(q.Gateway, "-")), q.State, strconv.Itoa(q.Notifications), ago(q.Oldest, now), ago(q.Since, now),
			printable(cmp.Or(q.Last, "-")), strconv.Itoa(q.Attempts), next,
		))
	}
	head := []string{"GATEWAY", "STATE", "NOTIFICATIONS", "WAITING FOR", "FAILING FOR", "LAST", "ATTEMPTS", "NEXT TRY IN"}
	return writeTable(w, slices.Concat(pusherColumns, head), rows)
}

// changeBacklogs calls change for the selected backlogs of each user, [workers] at a time, and reports the sum of what it
// returns: format gets the sum, the number of pushers, and the gateway. Without any backlog it prints "nothing waits".
func (c *call) changeBacklogs(ctx context.Context, format string, change func(context.Context, []backlog) (int, error)) error {
	if isNarrow := len(c.args) > 0 || !c.gateway.isAny(); c.all && isNarrow {
		return errors.New("-all is for all users and gateways: want no USER and no -gateway")
	} else if !c.all && !isNarrow {
		return errors.New("want USER or -gateway HOST (see -h)")
	}
	backlogs, err := c.selectBacklogs(ctx)
	if err != nil {
		return err
	}
	if len(backlogs) == 0 {
		_, err = fmt.Fprintln(c.out, "nothing waits")
		return err
	}
	at := ""
	pushers, byUser := map[string]int{}, map[mxid.UserID][]backlog{}
	for _, b := range backlogs {
		pushers[b.gateway]++
		byUser[b.Place.User] = append(byUser[b.Place.User], b)
	}
	if !c.gateway.isAny() {
		gateway, err := c.gateway.only(pushers)
		if err != nil {
			return err
		}
		at = " at " + printable(gateway)
	}
	var all atomic.Int64
	err = parallel(ctx, slices.Collect(maps.Values(byUser)), func(ctx context.Context, of []backlog) error {
		n, err := change(ctx, of)
		all.Add(int64(n))
		return err
	})
	if err != nil {
		return err
	}
	return c.report(format, all.Load(), len(backlogs), at)
}

// selectBacklogs returns what waits for USER, or for all users, at the gateways that -gateway names. It returns a
// [notFoundError] if nothing waits, and the user or the gateway is unknown.
func (c *call) selectBacklogs(ctx context.Context) (all []backlog, err error) {
	var user mxid.UserID
	if len(c.args) > 0 {
		if user, err = c.userArgument(); err != nil {
			return nil, err
		}
	}
	if err := c.openQueue(ctx); err != nil {
		return nil, err
	}
	users := []mxid.UserID{user}
	if user == "" {
		if users, err = c.waitingUsers(ctx); err != nil {
			return nil, err
		}
	}
	for part := range slices.Chunk(users, 1000) {
		some, err := c.readBacklogs(ctx, part...)
		if err != nil {
			return nil, err
		}
		all = append(all, slices.DeleteFunc(some, func(b backlog) bool { return !c.gateway.matches(b.gateway) })...)
	}
	if len(all) == 0 {
		err = c.checkSelection(ctx, user)
	}
	return all, err
}

// waitingUsers returns the users in the index of the gateways that -gateway names.
func (c *call) waitingUsers(ctx context.Context) ([]mxid.UserID, error) {
	byShard, err := c.queue.Index.GateNames(ctx)
	if err != nil {
		return nil, err
	}
	users := map[mxid.UserID]bool{}
	for shard, gates := range byShard {
		for _, gate := range gates {
			if gateway, _ := delivery.SplitGate(gate); !c.gateway.matches(gateway) {
				continue
			}
			found, err := c.queue.Index.UsersAt(ctx, shard, gate)
			if err != nil {
				return nil, err
			}
			for _, user := range found {
				users[user] = true
			}
		}
	}
	return slices.Collect(maps.Keys(users)), nil
}

func gatesOf(backlogs []backlog) (pushers []module.PusherGate) {
	for _, b := range backlogs {
		pushers = append(pushers, module.PusherGate{Pusher: b.pusherID(), Gate: b.gate})
	}
	return pushers
}

// checkSelection checks a selection without backlogs: the user must exist, and the gateway must have a pusher.
func (c *call) checkSelection(ctx context.Context, user mxid.UserID) error {
	switch {
	case c.all:
		return nil
	case c.gateway.isAny():
		return c.checkUser(ctx, user)
	case user == "":
		return c.checkGateway(ctx)
	}
	list, err := c.pushers.Load(ctx, user)
	if err != nil {
		return err
	}
	if !c.isAtGateway(user, list) {
		return notFoundError(fmt.Sprintf("%s has no pusher at the gateway %s", printable(string(user)), c.gateway))
	}
	return nil
}

var queuesRetryCommand = command{
	name: "queues retry", args: "[USER]",
	summary: "tries waiting notifications of a user or gateway now",
	about: "Makes pushers due that wait after a failure. Give a user, -gateway or both. Without -yes it shows\n" +
		"what it would do. A host that has closed the gateway tries one of its pushers first. Exit status 1:\n" +
		"there is no such user or gateway.",
	flags: (*flags).addSelection,
	run: func(c *call, ctx context.Context) error {
		return c.changeBacklogs(ctx, "retry %d of %d pushers%s", c.retry)
	},
}

// retry returns how many pushers wait for their next try. With -yes, it makes them due.
func (c *call) retry(ctx context.Context, of []backlog) (n int, err error) {
	waiting := slices.DeleteFunc(of, func(b backlog) bool { return b.IsClaimed() })
	if len(waiting) == 0 || !c.yes {
		return len(waiting), nil
	}
	return c.queue.Retry(ctx, waiting[0].Place.User, gatesOf(waiting))
}

var queuesFlushCommand = command{
	name: "queues flush", args: "[USER]",
	summary: "drops waiting notifications of a user or gateway",
	about: "Drops all waiting notifications, for good. Give a user, -gateway or both, or -all for all users. Without\n" +
		"-yes it shows what it would do. Notifications that a host is sending are not affected. Exit status 1:\n" +
		"there is no such user or gateway.",
	flags: func(f *flags) {
		f.addSelection()
		f.BoolVar(&f.all, "all", false, "drop what waits for all users, after a restore for example")
	},
	run: func(c *call, ctx context.Context) error {
		return c.changeBacklogs(ctx, "drop %d notifications of %d pushers%s", c.flush)
	},
}

// flush counts the notifications. With -yes, it drops them, but for pushers for which a host is sending.
func (c *call) flush(ctx context.Context, of []backlog) (n int, err error) {
	var dropped []string
	if c.yes {
		if dropped, err = c.queue.Drop(ctx, of[0].Place.User, gatesOf(of), of[0].End); err != nil {
			return 0, err
		}
	}
	for _, b := range of {
		if !c.yes || slices.Contains(dropped, b.pusherID()) {
			n += b.Place.Notifications
		}
	}
	return n, nil
}
