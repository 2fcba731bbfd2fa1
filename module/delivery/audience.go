package delivery

import (
	"context"
	"slices"
	"sync"

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
type audience struct {
	feed      *feed.Feed
	host      module.HostService
	partition partition.Func // of the stores
	observer  observe.Observer
}

func (a *audience) decide(ctx context.Context, e module.Event, members []match.Member) (module.Decisions, error) {
	event, err := match.ReadEvent(e.JSON)
	if err != nil {
		return nil, fault.Wrap(fault.InvalidParam, "The event is not a JSON object.", err)
	}
	if err := checkRoom(e, members); err != nil {
		return nil, err
	}
	members = slices.Clone(members)
	failed := a.fill(ctx, members)
	if failed != nil {
		members = slices.DeleteFunc(members, func(m match.Member) bool { return m.Rules == nil })
	}
	results, err := match.EvaluateAll(ctx, event, e.Room, members)
	if err != nil {
		return nil, module.Unavailable(err)
	}
	subject, membership := memberEvent(e.JSON)
	decisions := make(module.Decisions, len(members))
	for i, result := range results {
		user := members[i].User
		decisions[i] = module.Decision{User: user, Result: result, Invite: membership == "invite" && user == subject}
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

// fill gives rules to each member without rules. A user with unreadable stored rules gets no
// rules, and no notification. The error is a [module.LeftError].
func (a *audience) fill(ctx context.Context, members []match.Member) error {
	missing := 0
	for i := range members {
		if members[i].Rules == nil {
			missing++
		}
	}
	hits, failed := a.feed.Rules(ctx, members, a.load)
	a.observer.Count(observe.RulesKept, "", hits)
	a.observer.Count(observe.RulesRead, "", missing-hits)
	var left partition.Left
	for user, failure := range failed {
		if fault.KindOf(failure) != fault.Database {
			left.Add(failure, user)
		}
	}
	return left.Err()
}

// rulesAtOnce divides a lookup of rules.
var rulesAtOnce = partition.Size{Chunk: 500, AtOnce: 2}

// load reads rules. It does not wait for a partition that does not answer.
func (a *audience) load(ctx context.Context, users []mxid.UserID) map[mxid.UserID]module.Result[module.Content] {
	var mu sync.Mutex
	loaded := make(map[mxid.UserID]module.Result[module.Content], len(users))
	for _, user := range partition.Do(ctx, a.partition, users, rulesAtOnce, func(ctx context.Context, chunk []mxid.UserID) (answered bool) {
		rules := a.host.Rulesets(ctx, chunk)
		mu.Lock()
		defer mu.Unlock()
		for user, r := range rules {
			loaded[user] = r
			answered = answered || r.Err == nil || fault.KindOf(r.Err) == fault.Database
		}
		return answered
	}) {
		loaded[user] = module.Result[module.Content]{Err: module.Unavailable(retry.ErrSilent)}
	}
	return loaded
}
