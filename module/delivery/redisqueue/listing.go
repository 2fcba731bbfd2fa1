package redisqueue

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/pushfx/pushfx/module/fault"
	"github.com/pushfx/pushfx/module/internal/bounded"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/redisclient"
)

// place is where the index lists a user at a gate. Without a score, it is not known.
type place struct {
	shard int
	score int64
}

// listing is what this host knows of a user at a gate.
type listing struct {
	place place
	names []string // the user's pushers, of the last call

	// isBehind says that a pusher there has something to send already: it waits, or is claimed. The
	// next append finds it so again, and lists the user once, as its reply says. Otherwise it would
	// list the user for its claim, too.
	isBehind bool
}

// listings has the listings of this host's last calls. It is safe for concurrent use.
type listings struct {
	mu  sync.Mutex
	all bounded.Map[userAt, listing]
}

type userAt struct {
	user mxid.UserID
	gate string
}

// maxListings bounds the listings. An unknown one stays in the index until a look finds nothing to
// send.
const maxListings = 50_000

func (l *listings) at(user mxid.UserID, gate string) listing {
	l.mu.Lock()
	defer l.mu.Unlock()
	one, _ := l.all.Get(userAt{user, gate})
	return one
}

func (l *listings) set(user mxid.UserID, gate string, now listing) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all.Limit = maxListings
	l.all.Put(userAt{user, gate}, now, 1)
}

// listRequest asks for a listing of a user at a gate.
type listRequest struct {
	user  mxid.UserID
	gate  string
	delay time.Duration
	fails bool // whether the user is listed as [module.DueUser.Fails]

	afterReply bool // the call's reply says when to list the user
	waits      bool // by the reply, a pusher has something to send at the gate
	isBehind   bool // and the call has not claimed it

	by          *listCall // the latest try
	place       place
	isListed    bool
	err         error
	unconfirmed error
}

type sender func(context.Context, ...*redisclient.Command) []error

// listedCall is a call on a user's log, after which the user is listed.
type listedCall struct {
	call    *redisclient.Call
	command *redisclient.Command // of the call
	entries []*listRequest
	replied func(reply []any) error // may change entries

	err         error
	unconfirmed error // the call or its listing is done, but wraps [fault.ErrNotConfirmed]
}

func newListedCall(call *redisclient.Call, replied func(reply []any) error, entries ...*listRequest) *listedCall {
	return &listedCall{call: call, command: call.Command(), entries: entries, replied: replied}
}

// sendListed makes calls, and lists their users after that. It plans the listings that can travel
// in the pipelines of the calls, sends both, and lists again what the replies ask for, or what
// may have come before its call.
func (x *Index) sendListed(ctx context.Context, do sender, all []*listedCall) {
	lists := x.plan(ctx, all)
	send(ctx, do, all, lists)
	x.list(ctx, do, relist(all))
	for _, one := range all {
		for _, e := range one.entries {
			if one.err == nil && !e.isListed {
				one.err = e.err
			}
			one.unconfirmed = cmp.Or(one.unconfirmed, e.unconfirmed)
		}
	}
}

// plan returns the listings that are on the masters of their users' logs: a master executes a
// pipeline in order, with a script for all users of a shard.
func (x *Index) plan(ctx context.Context, all []*listedCall) []*listCall {
	near := map[int][]*listRequest{}
	for _, one := range all {
		for _, e := range one.entries {
			if shard, isNear := x.shardOf(ctx, e.user); isNear && !e.afterReply {
				near[shard] = append(near[shard], e)
			}
		}
	}
	return x.listCalls(near)
}

// send sends calls with listings, and reads the replies.
func send(ctx context.Context, do sender, all []*listedCall, lists []*listCall) {
	commands := make([]*redisclient.Command, 0, len(all)+len(lists))
	for _, one := range all {
		commands = append(commands, one.command)
	}
	for _, l := range lists {
		commands = append(commands, l.command)
	}
	errs := do(ctx, commands...)
	for i, l := range lists {
		_ = l.finish(errs[len(all)+i]) // relist repeats it
	}
	for i, one := range all {
		if one.err, one.unconfirmed = apart(errs[i]); one.err == nil && one.replied != nil {
			var reply []any
			if reply, one.err = sliceOf(one.call); one.err == nil {
				one.err = one.replied(reply)
			}
		}
	}
}

// relist returns the entries to list after the calls. A call that was sent again may have come
// after its listing.
func relist(all []*listedCall) (again []*listRequest) {
	for _, one := range all {
		for _, e := range one.entries {
			e.isListed = e.isListed && e.by != nil && one.command.Sent <= e.by.command.Sent
			if one.err == nil && !e.isListed {
				again = append(again, e)
			}
		}
	}
	return again
}

// listCall lists users in a shard.
type listCall struct {
	shard   int
	entries []*listRequest
	call    *redisclient.Call
	command *redisclient.Command
}

func (x *Index) listCalls(byShard map[int][]*listRequest) (calls []*listCall) {
	for shard, entries := range byShard {
		for some := range slices.Chunk(entries, maxEntries) {
			args, l := newIndexArgs(x, shard), &listCall{shard: shard, entries: some}
			for _, e := range some {
				e.by = l
				args.add(e.gate, e.user, microseconds(e.delay), oneIf(e.fails))
			}
			l.call = args.call(list)
			l.command = l.call.Command()
			calls = append(calls, l)
		}
	}
	return calls
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
			e.place = place{l.shard, scores[i]}
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
	for len(entries) > 0 && ctx.Err() == nil {
		byShard := map[int][]*listRequest{}
		for _, e := range entries {
			shard, isNear := x.shardOf(ctx, e.user)
			if !isNear || bad[masters[shard]] {
				var isFound bool
				if shard, isFound = findShard(masters, e.user, func(master *redis.Client) bool { return !bad[master] }); !isFound {
					return
				}
			}
			byShard[shard] = append(byShard[shard], e)
		}
		calls, commands := x.listCalls(byShard), []*redisclient.Command{}
		for _, l := range calls {
			commands = append(commands, l.command)
		}
		entries = nil
		for i, err := range do(ctx, commands...) {
			if l := calls[i]; l.finish(err) != nil {
				bad[masters[l.shard]] = true
				entries = append(entries, l.entries...)
			}
		}
	}
}

// maxEntries limits the entries of a script: with a gate each, it takes Redis some milliseconds.
const maxEntries = 256

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
		a.keys = append(a.keys, a.of.keys.ShardDue(a.shard, gate), a.of.keys.ShardFailing(a.shard, gate))
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
	user  mxid.UserID
	gate  string
	place *place        // as it was, and then as it is
	delay time.Duration // or remove
	fails bool
}

// remove is the delay of a settlement that removes a user.
const remove = -time.Microsecond

// settle makes settlements. A user whose settlement fails stays listed as before.
func (x *Index) settle(ctx context.Context, all []settlement) {
	by := map[int][]settlement{}
	for _, s := range all {
		by[s.place.shard] = append(by[s.place.shard], s)
	}
	var groups [][]settlement
	var calls []*redisclient.Call
	var commands []*redisclient.Command
	for shard, of := range by {
		for some := range slices.Chunk(of, maxEntries) {
			args := newIndexArgs(x, shard)
			for _, s := range some {
				args.add(s.gate, s.user, s.place.score, s.delay.Microseconds(), oneIf(s.fails))
			}
			call := args.call(settle)
			groups, calls, commands = append(groups, some), append(calls, call), append(commands, call.Command())
		}
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
			s.place.score = scores[n]
		}
	}
}
