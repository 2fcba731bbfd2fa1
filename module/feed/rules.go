package feed

import (
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

// Rules are the push rules of members who have none of their own, for one event. Each user's
// are safe for use by one goroutine.
type Rules struct {
	// Entries are the kept rules of the members, in their order, nil if there are none. They
	// may be evicted.
	Entries []*match.Entry

	feed    *Feed
	members []match.Member
	missing map[mxid.UserID]*missingRules
	users   []mxid.UserID // those with missing rules, in order
}

type missingRules struct {
	mark  mark[userRules]
	at    []int // indexes of the members
	bytes int   // of the rules that were evicted, or 0
}

// Rules looks up the rules of each member without rules. They are as new as pushers are, see
// [Feed.Pushers], but lost messages are noticed within [Config.Recheck].
func (f *Feed) Rules(members []match.Member) *Rules {
	r := &Rules{Entries: make([]*match.Entry, len(members)), feed: f, members: members}
	for _, m := range f.rules.get(lookup[userRules]{
		n:    len(members),
		user: func(i int) (mxid.UserID, bool) { return members[i].User, members[i].Rules == nil },
		found: func(i int, rules userRules) bool {
			r.Entries[i] = rules.compiled
			return rules.compiled != nil
		},
	}) {
		r.miss(m, m.at, 0)
	}
	return r
}

func (r *Rules) miss(m mark[userRules], at, bytes int) {
	if r.missing == nil {
		r.missing = map[mxid.UserID]*missingRules{}
	}
	if r.missing[m.user] == nil {
		r.missing[m.user] = &missingRules{mark: m, bytes: bytes}
		r.users = append(r.users, m.user)
	}
	of := r.missing[m.user]
	of.at = append(of.at, at)
}

// Evicted takes the indexes of the members whose Entries were evicted, see
// [match.EvaluateCached]. Their rules are missing.
func (r *Rules) Evicted(at []int) {
	if len(at) == 0 {
		return
	}
	for _, m := range r.feed.rules.get(lookup[userRules]{
		n:     len(at),
		user:  func(i int) (mxid.UserID, bool) { return r.members[at[i]].User, true },
		found: func(int, userRules) bool { return false },
	}) {
		r.miss(m, at[m.at], r.Entries[at[m.at]].Size())
	}
}

// Missing returns the users whose rules are missing. Those whose rules are known to have more
// than most bytes are large.
func (r *Rules) Missing(most int) (users, large []mxid.UserID) {
	for _, user := range r.users {
		if r.missing[user].bytes > most {
			large = append(large, user)
		} else {
			users = append(users, user)
		}
	}
	return users, large
}

// Again looks up the rules of a missing user once more. It returns nil if they are still
// missing.
func (r *Rules) Again(user mxid.UserID) (rules *match.Rules) {
	for _, m := range r.feed.rules.get(lookup[userRules]{
		n:    1,
		user: func(int) (mxid.UserID, bool) { return user, true },
		found: func(_ int, kept userRules) bool {
			if kept.compiled != nil {
				rules = kept.compiled.Rules()
			}
			return rules != nil
		},
	}) {
		r.missing[user].mark = m
	}
	return rules
}

// Keep compiles and keeps rules of a missing user, which were read since the last look-up.
func (r *Rules) Keep(user mxid.UserID, c module.Content) *match.Rules {
	entry, rules := r.feed.compiled.Entry(user, c.Rules)
	r.feed.keepRules(r.missing[user].mark, userRules{c.Version, entry})
	return rules
}

// At returns the indexes of the members that are a missing user.
func (r *Rules) At(user mxid.UserID) []int { return r.missing[user].at }

// keepRules keeps rules that were read. If another version was kept, the message of the
// change is lost, or on its way.
func (f *Feed) keepRules(m mark[userRules], read userRules) {
	if f.rules.keep(m, read) && !m.entry.isMark() && m.entry.value.version != read.version {
		f.missed(m.user, read.version)
	}
}
