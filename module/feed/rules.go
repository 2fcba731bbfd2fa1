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
	wanted := 0
	for i := range members {
		if members[i].Rules == nil {
			wanted++
		}
	}
	missing := f.rules.get(lookup[userRules]{
		n:    len(members),
		user: func(i int) (mxid.UserID, bool) { return members[i].User, members[i].Rules == nil },
		found: func(i int, r userRules) bool {
			if r.compiled != nil {
				members[i].Rules = r.compiled.Rules()
			}
			return members[i].Rules != nil
		},
	})
	failed = loadMissing(ctx, missing, load, func(m mark[userRules], c module.Content) {
		entry, rules := f.compiled.Entry(m.user, c.Rules)
		members[m.at].Rules = rules
		f.keepRules(m, userRules{c.Version, entry})
	})
	return wanted - len(missing), failed
}

// keepRules keeps rules that were read. If another version was kept, the message of the
// change is lost, or on its way.
func (f *Feed) keepRules(m mark[userRules], read userRules) {
	if f.rules.keep(m, read) && !m.entry.isMark() && m.entry.value.version != read.version {
		f.missed(m.user, read.version)
	}
}

// loadMissing reads the missing users from the store, and calls use for each result. It
// returns the errors.
func loadMissing[S, V any](
	ctx context.Context, missing []mark[V],
	load func(context.Context, []mxid.UserID) map[mxid.UserID]module.Result[S], use func(mark[V], S),
) (failed map[mxid.UserID]error) {
	if len(missing) == 0 {
		return nil
	}
	toLoad := make([]mxid.UserID, len(missing))
	for i, m := range missing {
		toLoad[i] = m.user
	}
	loaded := load(ctx, toLoad)
	failed = map[mxid.UserID]error{}
	for _, m := range missing {
		result, found := loaded[m.user]
		switch {
		case !found:
			failed[m.user] = module.Unavailable(errNoResult)
		case result.Err != nil:
			failed[m.user] = result.Err
		default:
			use(m, result.Value)
		}
	}
	return failed
}
