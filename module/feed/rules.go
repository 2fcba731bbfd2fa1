package feed

import (
	"context"
	"errors"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/match"
	"github.com/pushfx/pushfx/module/mxid"
)

// userRules are a user's rules of a version. The compiled rules are nil if only a sync has
// read them; [match.Cache] bounds their memory.
type userRules struct {
	version  int64
	compiled *match.Entry
}

func (userRules) bytes() int { return 0 }

var errNoResult = errors.New("no result for a user")

// Rules sets the rules of each member without rules: from the cache, or else from load, which
// gets the users that are missing, and is [module.HostService.Rulesets]. It returns how many
// it found in the cache, and the errors of load. Rules are as new as pushers are, see
// [Feed.Pushers], but lost messages are noticed within [Config.Recheck].
func (f *Feed) Rules(
	ctx context.Context, members []match.Member, load func(context.Context, []mxid.UserID) map[mxid.UserID]module.Result[module.Content],
) (hits int, failed map[mxid.UserID]error) {
	users, at := make([]mxid.UserID, 0, len(members)), make([]int, 0, len(members))
	for i, m := range members {
		if m.Rules == nil {
			users, at = append(users, m.User), append(at, i)
		}
	}
	missing := f.rules.get(users, func(i int, r userRules) bool {
		if r.compiled == nil {
			return false
		}
		members[at[i]].Rules = r.compiled.Rules()
		return members[at[i]].Rules != nil
	})
	failed = loadMissing(ctx, users, missing, load, func(m mark[userRules], c module.Content) {
		entry, rules := f.compiled.Entry(users[m.at], c.Rules)
		members[at[m.at]].Rules = rules
		f.keepRules(users[m.at], m, userRules{c.Version, entry})
	})
	return len(users) - len(missing), failed
}

// keepRules keeps rules that were read. If another version was kept, the message of the
// change is lost, or on its way.
func (f *Feed) keepRules(user mxid.UserID, m mark[userRules], read userRules) {
	if f.rules.keep(user, m, read) && !m.entry.isMark() && m.entry.value.version != read.version {
		f.missed(user, read.version)
	}
}

// loadMissing reads the missing users from the store, and calls use for each result. It
// returns the errors.
func loadMissing[S, V any](
	ctx context.Context, users []mxid.UserID, missing []mark[V],
	load func(context.Context, []mxid.UserID) map[mxid.UserID]module.Result[S], use func(mark[V], S),
) (failed map[mxid.UserID]error) {
	if len(missing) == 0 {
		return nil
	}
	toLoad := make([]mxid.UserID, len(missing))
	for i, m := range missing {
		toLoad[i] = users[m.at]
	}
	loaded := load(ctx, toLoad)
	failed = map[mxid.UserID]error{}
	for i, m := range missing {
		result, found := loaded[toLoad[i]]
		switch {
		case !found:
			failed[toLoad[i]] = module.Unavailable(errNoResult)
		case result.Err != nil:
			failed[toLoad[i]] = result.Err
		default:
			use(m, result.Value)
		}
	}
	return failed
}
