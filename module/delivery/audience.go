package delivery

import (
	"context"
	"runtime"
	"slices"
	"sync"

	"golang.org/x/sync/semaphore"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/delivery/content"
	"github.com/pushfx/pushfx/module/fault"
	"github.com/pushfx/pushfx/module/feed"
	"github.com/pushfx/pushfx/module/internal/partition"
	"github.com/pushfx/pushfx/module/match"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/observe"
	"github.com/pushfx/pushfx/module/retry"
)

// audience evaluates events with the push rules of users, which the feed keeps until they
// change. It is safe for concurrent use.
//
// Rules that the feed has not kept are read and evaluated in chunks, and then let go. The
// semaphores bound the memory for all events at once. Members with kept rules do not wait for
// them. Large sets wait for each other alone, and take half of the cores: they must not delay
// rooms without them.
type audience struct {
	feed      *feed.Feed
	host      module.HostService
	partition partition.Func // of the stores
	observer  observe.Observer

	reads      *semaphore.Weighted // users
	largeReads *semaphore.Weighted // users with more than largeSet bytes
}

const (
	readsAtOnce = 128 // users; 32 MiB with rules of the default limit
	largeSet    = 32 << 10
)

func newAudience(f *feed.Feed, host module.HostService, partition partition.Func, observer observe.Observer) *audience {
	return &audience{
		feed: f, host: host, partition: partition, observer: observer,
		reads: semaphore.NewWeighted(readsAtOnce), largeReads: semaphore.NewWeighted(int64(max(1, runtime.GOMAXPROCS(0)/2))),
	}
}

func (a *audience) decide(ctx context.Context, e module.Event, members []match.Member) (module.Decisions, error) {
	event, err := match.ReadEvent(e.JSON)
	if err != nil {
		return nil, fault.Wrap(fault.InvalidParam, "The event is not a JSON object.", err)
	}
	if err := checkRoom(e, members); err != nil {
		return nil, err
	}
	results, failed, err := a.evaluate(ctx, event, e.Room, members)
	if err != nil {
		return nil, module.Unavailable(err)
	}
	left, _ := module.Left(failed)
	subject, membership := memberEvent(e.JSON)
	decisions := make(module.Decisions, 0, len(members))
	for i, result := range results {
		user := members[i].User
		if _, isLeft := slices.BinarySearch(left, user); !isLeft {
			decisions = append(decisions, module.Decision{User: user, Result: result, Invite: membership == "invite" && user == subject})
		}
	}
	return decisions, failed
}

var errNoMembers = fault.New(fault.InvalidParam, "A room needs the number of its joined members.")

// checkRoom refuses a MemberCount of 0, with which no rule by the number of members would
// match. It allows 0 at an invite, because the host may know the room only by this invite.
func checkRoom(e module.Event, members []match.Member) error {
	switch {
	case e.Room.MemberCount > 0 || len(members) == 0:
		return nil
	case e.Room.MemberCount == 0 && len(members) == 1:
		if user, _ := memberEvent(e.JSON); user == members[0].User {
			return nil
		}
	}
	return errNoMembers
}

// memberEvent returns the user of a membership event and the new membership. Both are empty
// for other events.
func memberEvent(event string) (user mxid.UserID, membership string) {
	if content.ReadText(content.MemberOf(event, "type")) != "m.room.member" {
		return "", ""
	}
	return mxid.UserID(content.ReadText(content.MemberOf(event, "state_key"))), content.MembershipOf(content.MemberOf(event, "content"))
}

// evaluate evaluates an event for members, with the stored rules of those without rules. A user
// with unreadable stored rules gets no notification. Failed is a [module.LeftError].
func (a *audience) evaluate(
	ctx context.Context, event *match.Event, room match.Room, members []match.Member,
) (results []match.Result, failed, err error) {
	rules := a.feed.Rules(members)
	results, evicted, err := match.EvaluateCached(ctx, event, room, members, rules.Entries)
	if err != nil {
		return nil, nil, err
	}
	rules.Evicted(evicted)
	users, large := rules.Missing(largeSet)
	a.count(members, len(users)+len(large))
	if len(users)+len(large) == 0 {
		return results, nil, nil
	}
	r := &reading{audience: a, event: event, room: room, members: members, rules: rules, results: results}
	r.read(ctx, users, partition.Size{Chunk: readsAtOnce / 4, AtOnce: 2}, r.readChunk)
	r.read(ctx, append(large, r.large...), partition.Size{Chunk: 1, AtOnce: 2}, r.readLarge)
	return results, r.left.Err(), ctx.Err()
}

func (a *audience) count(members []match.Member, missing int) {
	wanted := 0
	for i := range members {
		if members[i].Rules == nil {
			wanted++
		}
	}
	a.observer.Count(observe.RulesKept, "", wanted-missing)
	a.observer.Count(observe.RulesRead, "", missing)
}

// reading is an event whose members' rules are being read.
type reading struct {
	*audience
	event   *match.Event
	room    match.Room
	members []match.Member
	rules   *feed.Rules
	results []match.Result // of the members; each is written once
	left    partition.Left

	mu    sync.Mutex
	large []mxid.UserID // users whose rules turned out to be large
}

// read reads and evaluates rules. It does not wait for a partition that does not answer.
func (r *reading) read(ctx context.Context, users []mxid.UserID, size partition.Size, chunk func(context.Context, []mxid.UserID) (answered bool)) {
	if len(users) > 0 {
		r.left.Add(retry.ErrSilent, partition.Do(ctx, r.partition, users, size, chunk)...)
	}
}

// readChunk reads and evaluates rules, except large ones.
func (r *reading) readChunk(ctx context.Context, users []mxid.UserID) (answered bool) {
	if err := r.reads.Acquire(ctx, int64(len(users))); err != nil {
		r.left.Add(err, users...)
		return false
	}
	defer r.reads.Release(int64(len(users)))
	sets, answered := r.load(ctx, users)
	for user, set := range sets {
		if len(set.Rules.JSON()) <= largeSet {
			r.evaluateFor(ctx, user, r.rules.Keep(user, set))
			continue
		}
		r.mu.Lock()
		r.large = append(r.large, user)
		r.mu.Unlock()
	}
	return answered
}

// readLarge reads and evaluates the rules of one user, unless another event has read them
// while this one waited.
func (r *reading) readLarge(ctx context.Context, users []mxid.UserID) (answered bool) {
	if err := r.largeReads.Acquire(ctx, 1); err != nil {
		r.left.Add(err, users...)
		return false
	}
	defer r.largeReads.Release(1)
	if rules := r.rules.Again(users[0]); rules != nil {
		r.evaluateFor(ctx, users[0], rules)
		return true
	}
	sets, answered := r.load(ctx, users)
	for user, set := range sets {
		r.evaluateFor(ctx, user, r.rules.Keep(user, set))
	}
	return answered
}

// load reads the rules of users. Users whose rules cannot be read now are left.
func (r *reading) load(ctx context.Context, users []mxid.UserID) (sets map[mxid.UserID]module.Content, answered bool) {
	loaded := r.host.Rulesets(ctx, users)
	sets = make(map[mxid.UserID]module.Content, len(users))
	for _, user := range users {
		set, found := loaded[user]
		switch {
		case !found:
			r.left.Add(errNoResult, user)
		case set.Err == nil:
			sets[user], answered = set.Value, true
		case fault.KindOf(set.Err) == fault.Database:
			answered = true
		default:
			r.left.Add(set.Err, user)
		}
	}
	return sets, answered
}

// evaluateFor evaluates a user's rules. After the end of the context, nobody reads the results.
func (r *reading) evaluateFor(ctx context.Context, user mxid.UserID, rules *match.Rules) {
	for _, i := range r.rules.At(user) {
		if m := r.members[i]; ctx.Err() == nil {
			r.results[i] = rules.Evaluate(r.event, match.Facts{User: user, DisplayName: m.DisplayName, Power: m.Power, Room: r.room})
		}
	}
}
