package redisqueue

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/pushfx/pushfx/module/fault"
	"github.com/pushfx/pushfx/module/internal/bounded"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/redisclient"
)

// listing is the entry of a user at a gate in the index, as this host has read or written it last.
type listing struct {
	user mxid.UserID
	gate string

	// isBehind says that a pusher at the gate has something to send already: it waits, or is
	// claimed. The next append finds it so again, and lists the user once, as its reply says.
	// Otherwise it would list the user for its claim, too.
	isBehind atomic.Bool

	mu    sync.Mutex
	names []string // pushers of the user
	shard int
	score int64 // 0 if it is not known
	open  int   // claims that the host has, since a look found the user
}

// listings are the last ones that this host knows. It is safe for concurrent use.
type listings struct {
	mu  sync.Mutex
	all bounded.Map[userAt, *listing]
}

type userAt struct {
	user mxid.UserID
	gate string
}

const maxListings = 50_000

func (l *listings) at(user mxid.UserID, gate string) *listing {
	l.mu.Lock()
	defer l.mu.Unlock()
	at := userAt{user, gate}
	one, found := l.all.Get(at)
	if !found {
		l.all.Limit = maxListings
		one = &listing{user: user, gate: gate}
		l.all.Put(at, one, 1)
	}
	return one
}

// known returns the shard and the score of the listing, or a score of 0. A caller reads it before
// a completion and removes it afterwards: an append between the two has changed the score.
func (l *listing) known() (shard int, score int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.shard, l.score
}

func (l *listing) addNames(pushers ...string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, p := range pushers {
		if !slices.Contains(l.names, p) {
			l.names = append(l.names, p)
		}
	}
}

// found forgets what the host knew: a look has found the user.
func (l *listing) found(shard int, score int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.shard, l.score, l.open, l.names = shard, score, 0, nil
}

// others returns the other pushers.
func (l *listing) others(pusher string) (others []any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, name := range l.names {
		if name != pusher {
			others = append(others, name)
		}
	}
	return others
}

func (l *listing) set(shard int, score int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.shard, l.score = shard, score
}

// addOpen changes the number of the host's claims, and returns it.
func (l *listing) addOpen(n int) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.open += n
	return l.open
}

// listRequest asks for a listing.
type listRequest struct {
	*listing
	delay time.Duration
	fails bool // whether the user is listed as [module.DueUser.Fails]

	afterReply  bool // the call's reply says when to list the user
	waits       bool // by the reply, a pusher has something to send at the gate
	findsBehind bool // and the call has not claimed it

	by          *listCall // the first try
	isListed    bool
	err         error
	unconfirmed error
}

func (x *Index) listRequest(user mxid.UserID, gate string, delay time.Duration) *listRequest {
	return &listRequest{listing: x.listings.at(user, gate), delay: delay}
}

type sender func(context.Context, ...*redisclient.Command) []error

// listedCall is a call on a user's log, after which the user is listed.
type listedCall struct {
	before  *redisclient.Command // in the slot of the user, nil for none
	call    *redisclient.Call
	entries []*listRequest
	replied func(reply []any) error // may change entries

	err         error
	unconfirmed error // the call or its listing is done, but wraps [fault.ErrNotConfirmed]
}

// sendListed makes calls, and lists their users after that. Listings travel in the same
// pipeline if they are on the same master, which executes it in order: a script for all users
// of a shard. A call that was sent again may have come after its listing, which is
// then repeated.
func (x *Index) sendListed(ctx context.Context, do sender, all []*listedCall) {
	commands, times := make([]*redisclient.Command, len(all)), make([]*atomic.Int32, len(all))
	near := map[int][]*listRequest{}
	var before []*redisclient.Command
	for i, one := range all {
		commands[i], times[i] = counted(one.call)
		if one.before != nil {
			before = append(before, one.before)
		}
		for _, e := range one.entries {
			if e.afterReply {
				continue
			}
			if shard, isNear := x.shardOf(ctx, e.user, x.pipelines.Master(ctx, x.keys.UserLog(e.user))); isNear {
				near[shard] = append(near[shard], e)
			}
		}
	}
	var lists []*listCall
	for shard, entries := range near {
		lists = append(lists, x.listCall(shard, entries))
		commands = append(commands, lists[len(lists)-1].command)
	}
	errs := do(ctx, append(before, commands...)...)
	failed, errs := errs[:len(before)], errs[len(before):]
	for i, l := range lists {
		_ = l.finish(errs[len(all)+i]) // repeated below
	}
	var again []*listRequest
	for i, one := range all {
		one.err, one.unconfirmed = apart(errs[i])
		if one.before != nil {
			one.err, failed = cmp.Or(failed[0], one.err), failed[1:]
		}
		if one.err == nil {
			one.err = one.readReply()
		}
		for _, e := range one.entries {
			if e.by == nil || times[i].Load() > e.by.times.Load() {
				e.isListed = false
			}
			if one.err == nil && !e.isListed {
				again = append(again, e)
			}
		}
	}
	x.list(ctx, do, again)
	for _, one := range all {
		for _, e := range one.entries {
			if one.err == nil && !e.isListed {
				one.err = e.err
			}
			one.unconfirmed = cmp.Or(one.unconfirmed, e.unconfirmed)
		}
	}
}

func (one *listedCall) readReply() error {
	if one.replied == nil {
		return nil
	}
	reply, err := sliceOf(one.call)
	if err != nil {
		return err
	}
	return one.replied(reply)
}

// counted returns the command of a call, and how often it was sent.
func counted(call *redisclient.Call) (*redisclient.Command, *atomic.Int32) {
	times, c := &atomic.Int32{}, call.Command()
	queue := c.Queue
	c.Queue = func(ctx context.Context, to redisclient.Sender) func() error {
		times.Add(1)
		return queue(ctx, to)
	}
	return c, times
}

// listCall lists users in a shard.
type listCall struct {
	shard   int
	entries []*listRequest
	call    *redisclient.Call
	command *redisclient.Command
	times   *atomic.Int32
}

func (x *Index) listCall(shard int, entries []*listRequest) *listCall {
	l := &listCall{shard: shard, entries: entries}
	args := newIndexArgs(x, shard)
	for _, e := range entries {
		e.by = l
		args.add(e.gate, e.user, microseconds(e.delay), oneIf(e.fails))
	}
	l.call = args.call(list)
	l.command, l.times = counted(l.call)
	return l
}

func (l *listCall) finish(err error) (failed error) {
	err, unconfirmed := apart(err)
	var scores []int64
	if err == nil {
		if scores, err = l.call.Reply.Int64Slice(); err == nil && len(scores) != len(l.entries) {
			err = unavailable("list", fmt.Errorf("%d replies", len(scores)))
		}
	}
	for i, e := range l.entries {
		e.isListed, e.err, e.unconfirmed = err == nil, err, unconfirmed
		if err == nil {
			e.set(l.shard, scores[i])
		}
	}
	return err
}

// apart tells the error of a write that is done, but not confirmed, from others.
func apart(err error) (failed, unconfirmed error) {
	if errors.Is(err, fault.ErrNotConfirmed) {
		return nil, err
	}
	return err, nil
}

// list lists users. Where a master does not answer, it tries another one.
func (x *Index) list(ctx context.Context, do sender, entries []*listRequest) {
	masters, bad := x.masters(ctx), map[*redis.Client]bool{}
	for len(entries) > 0 {
		shards := map[int][]*listRequest{}
		for _, e := range entries {
			shard, isNear := x.shardOf(ctx, e.user, x.pipelines.Master(ctx, x.keys.UserLog(e.user)))
			if !isNear || bad[masters[shard]] {
				var isFound bool
				if shard, isFound = findShard(masters, e.user, func(master *redis.Client) bool { return !bad[master] }); !isFound {
					return
				}
			}
			shards[shard] = append(shards[shard], e)
		}
		var calls []*listCall
		var commands []*redisclient.Command
		for shard, of := range shards {
			l := x.listCall(shard, of)
			calls, commands = append(calls, l), append(commands, l.command)
		}
		entries = nil
		for i, err := range do(ctx, commands...) {
			if calls[i].finish(err) != nil {
				bad[masters[calls[i].shard]] = true
				entries = append(entries, calls[i].entries...)
			}
		}
		if ctx.Err() != nil {
			return
		}
	}
}

// indexArgs are the keys and arguments of a script on a shard.
type indexArgs struct {
	keys    []string
	names   []any
	entries []any
	numbers map[string]int // of gates
	of      *Index
	shard   int
}

func newIndexArgs(x *Index, shard int) *indexArgs {
	return &indexArgs{keys: []string{x.keys.ShardGates(shard)}, numbers: map[string]int{}, of: x, shard: shard}
}

func (a *indexArgs) gate(gate string) int {
	n, known := a.numbers[gate]
	if !known {
		n = len(a.numbers) + 1
		a.numbers[gate], a.names = n, append(a.names, gate)
		a.keys = append(a.keys, a.of.keys.ShardDue(a.shard, gate), a.of.keys.ShardAfter(a.shard, gate))
	}
	return n
}

func (a *indexArgs) add(gate string, user mxid.UserID, more ...any) {
	a.entries = append(append(a.entries, a.gate(gate), string(user)), more...)
}

func (a *indexArgs) call(script *redisclient.Script) *redisclient.Call {
	return script.Call(a.keys, append(append([]any{len(a.names)}, a.names...), a.entries...)...)
}

func oneIf(is bool) int {
	if is {
		return 1
	}
	return 0
}

// settlement raises a user's score, or removes the user, if the score is as it was.
type settlement struct {
	*listing
	shard int
	score int64
	delay time.Duration // below 0 to remove
	fails bool
}

// settle makes settlements. A user whose settlement fails stays listed as before.
func (x *Index) settle(ctx context.Context, all []settlement) {
	by := map[int][]settlement{}
	for _, s := range all {
		by[s.shard] = append(by[s.shard], s)
	}
	var groups [][]settlement
	var calls []*redisclient.Call
	var commands []*redisclient.Command
	for shard, of := range by {
		args := newIndexArgs(x, shard)
		for _, s := range of {
			delay := int64(-1)
			if s.delay >= 0 {
				delay = s.delay.Microseconds()
			}
			args.add(s.gate, s.user, s.score, delay, oneIf(s.fails))
		}
		call := args.call(settle)
		groups, calls, commands = append(groups, of), append(calls, call), append(commands, call.Command())
	}
	for i, err := range x.writer.Do(ctx, commands...) {
		if err != nil {
			continue
		}
		scores, err := calls[i].Reply.Int64Slice()
		if err != nil || len(scores) != len(groups[i]) {
			continue
		}
		for n, s := range groups[i] {
			s.set(s.shard, scores[n])
		}
	}
}
