package feed

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/internal/bounded"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/pusher"
)

// sessionAge is the age at which cached pushers are read again, so that [module.Accounts] are
// asked again: if a host's call at a logout fails, no change of pushers tells of it. It is
// as long as a logged-out device may get notifications then.
const sessionAge = 30 * time.Second

var errNoPushers = errors.New("no result for a user's pushers")

// Pushers returns the pushers of users, in their order: from the cache or else from load,
// which gets the users that are missing, and is [module.HostService.Pushers]. Users without
// pushers are cached, too; errors are not.
//
// A change by this host is seen by each call that begins after the change has returned; a
// change by another host within milliseconds. The cache is empty while changes are not
// watched: before [Feed.Run], after a disconnection (which can take 5 seconds to notice),
// and if the store is no [module.PusherWatcher]. Since a message can be lost, a list is read
// again after [Config.Recheck], and a list with pushers after at most 30 seconds.
func (f *Feed) Pushers(
	ctx context.Context, users []mxid.UserID, load func(context.Context, []mxid.UserID) map[mxid.UserID]module.Result[pusher.List],
) []module.Result[pusher.List] {
	f.pushers.want()
	began := time.Now()
	lists := make([]module.Result[pusher.List], len(users))
	missing := f.pushers.cache.fill(users, lists, began)
	if len(missing) == 0 {
		return lists
	}
	toLoad := make([]mxid.UserID, len(missing))
	for i, m := range missing {
		toLoad[i] = users[m.at]
	}
	loaded := load(ctx, toLoad)
	for i, m := range missing {
		list, found := loaded[toLoad[i]]
		if !found {
			list.Err = module.Unavailable(errNoPushers)
		}
		lists[m.at] = list
	}
	f.pushers.cache.keep(users, lists, missing, began)
	return lists
}

// pusherCache caches lists of pushers while changes are watched. A message about a user
// and a change by this host drop the user's entry, and the begin and the end of a watch
// drop all. A load fills only the entry that was there when it began: so each filled entry
// is as new as the last message.
type pusherCache struct {
	maxAge time.Duration

	mu       sync.Mutex
	watching bool
	users    bounded.Map[mxid.UserID, *cachedPusherList]
}

type cachedPusherList struct {
	list   pusher.List
	loaded time.Time // when the load began; zero until a load has ended
}

// bytes is about as much memory as an entry takes with its user id, at most.
func (e *cachedPusherList) bytes(user mxid.UserID) int {
	const (
		ofEntry  = 192 // in the map, and apart from it
		ofPusher = 256 // without the bytes of its members
	)
	size := e.list.Size()
	return ofEntry + len(user) + size.Pushers*ofPusher + size.Bytes
}

// missingList is a list to load.
type missingList struct {
	at    int               // index of the user
	entry *cachedPusherList // nil if the list cannot be cached
}

func (e *cachedPusherList) isFresh(now time.Time, maxAge time.Duration) bool {
	if e.list.Len() > 0 {
		maxAge = min(maxAge, sessionAge)
	}
	return !e.loaded.IsZero() && now.Sub(e.loaded) < maxAge
}

// fill sets the cached lists, and returns the missing ones.
func (c *pusherCache) fill(users []mxid.UserID, lists []module.Result[pusher.List], now time.Time) (missing []missingList) {
	at := 0
	for some := range slices.Chunk(users, fillStep) {
		c.mu.Lock()
		for _, user := range some {
			entry := c.entry(user)
			if entry != nil && entry.isFresh(now, c.maxAge) {
				lists[at].Value = entry.list
			} else {
				missing = append(missing, missingList{at, entry})
			}
			at++
		}
		c.mu.Unlock()
	}
	return missing
}

// entry returns the user's entry, a new one if there is none, or nil while changes are not
// watched. The caller holds the lock.
func (c *pusherCache) entry(user mxid.UserID) *cachedPusherList {
	if !c.watching {
		return nil
	}
	entry, found := c.users.Get(user)
	if !found {
		entry = &cachedPusherList{}
		c.users.Put(user, entry, entry.bytes(user))
	}
	return entry
}

// keep caches loaded lists, unless a change has dropped the entry since the load began.
func (c *pusherCache) keep(users []mxid.UserID, lists []module.Result[pusher.List], missing []missingList, began time.Time) {
	for some := range slices.Chunk(missing, fillStep) {
		c.mu.Lock()
		for _, m := range some {
			user, list := users[m.at], lists[m.at]
			entry, found := c.users.Get(user)
			if !found || entry != m.entry || list.Err != nil {
				continue
			}
			entry.list, entry.loaded = list.Value, began
			c.users.Put(user, entry, entry.bytes(user))
		}
		c.mu.Unlock()
	}
}

// drop drops a user's entry.
func (c *pusherCache) drop(user mxid.UserID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.users.Delete(user)
}

// setWatching drops all entries. It reports whether changes were watched before.
func (c *pusherCache) setWatching(watching bool) (before bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	before, c.watching = c.watching, watching
	c.users = bounded.Map[mxid.UserID, *cachedPusherList]{Limit: c.users.Limit}
	return before
}

func (c *pusherCache) isWatching() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.watching
}
