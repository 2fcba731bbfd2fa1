package feed

import (
	"context"
	"errors"
	"time"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/pusher"
)

// pushersAge is the age at which cached pushers are read again, so that [module.Accounts] are
// asked again: if a host's call at a logout fails, no change of pushers tells of it. It is
// as long as a logged-out device may get notifications then, and a first pusher none.
const pushersAge = 30 * time.Second

var errNoResult = errors.New("no result for a user")

// Pushers returns the pushers of users, in their order: from the cache or else from load,
// which gets the users that are missing, and is [module.HostService.Pushers]. Users without
// pushers are cached, too; errors are not.
//
// A change by this host is seen by each call that begins after the change has returned; a
// change by another host within milliseconds. The cache is empty while changes are not
// watched: before [Feed.Run], after a disconnection (which can take 5 seconds to notice),
// and if the store is no [module.PusherWatcher]. Since a message can be lost, a list is read
// again after [Config.Recheck], and after 30 seconds at the latest.
func (f *Feed) Pushers(
	ctx context.Context, users []mxid.UserID, load func(context.Context, []mxid.UserID) map[mxid.UserID]module.Result[pusher.List],
) []module.Result[pusher.List] {
	f.wantPushers()
	lists := make([]module.Result[pusher.List], len(users))
	missing := f.pushers.get(lookup[pusher.List]{
		n:    len(users),
		user: func(i int) (mxid.UserID, bool) { return users[i], true },
		found: func(i int, list pusher.List) bool {
			lists[i].Value = list
			return true
		},
	})
	if len(missing) == 0 {
		return lists
	}
	toLoad := make([]mxid.UserID, len(missing))
	for i, m := range missing {
		toLoad[i] = m.user
	}
	loaded := load(ctx, toLoad)
	for _, m := range missing {
		list, found := loaded[m.user]
		switch {
		case !found:
			list.Err = module.Unavailable(errNoResult)
		case list.Err == nil:
			f.pushers.keep(m, list.Value)
		}
		lists[m.at] = list
	}
	return lists
}

// pusherBytes is about as much memory as a list takes, at most.
func pusherBytes(list pusher.List) int {
	const ofPusher = 256 // without the bytes of its members
	size := list.Size()
	return size.Pushers*ofPusher + size.Bytes
}
