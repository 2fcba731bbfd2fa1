package rulestore

import (
	"context"
	"strings"

	"github.com/pushfx/pushfx/module/commit"
	"github.com/pushfx/pushfx/module/mxid"
)

// Replace stores an event in the place of exactly the old one, nil for none;
// done is false where something else is stored. It is for what [Store.Update]
// cannot do: to replace an event that cannot be read, and to bring back one that
// was stored once, in whatever form, with all that is in it.
//
// The event gets a stamp of its own with a version above those of both, so that
// no request that was made for either takes effect any more and syncs notice. One
// that cannot be read, and has no place for a stamp, is stored as it is.
//
// Errors: [module.Unavailable], after which it may be stored or not.
func (s *Store) Replace(ctx context.Context, user mxid.UserID, old *string, text string) (done bool, err error) {
	next, unreadable := readEvent(text, s.cache)
	onto := next.last
	if unreadable != nil {
		onto = lastStamp(text)
	}
	if old != nil {
		if before := lastStamp(*old); before.Version > onto.Version {
			onto = before
		}
	}
	return s.events.Swap(ctx, user, onto, func(stamp commit.Stamp) []any {
		args := []any{text, s.channel, message(user, stamp.Version)}
		if unreadable == nil {
			args[0] = next.with(string(stamp.AppendJSON(nil)))
		}
		if old != nil {
			args = append(args, *old)
		}
		return args
	})
}

// lastStamp returns the stamp at the end of an event, readable or not, the zero
// one where there is none.
func lastStamp(text string) commit.Stamp {
	at := strings.LastIndex(text, `"`+stampMember+`":`)
	if at < 0 {
		return commit.Stamp{}
	}
	return commit.ReadStamp(strings.TrimSuffix(text[at+len(stampMember)+3:], closing))
}
