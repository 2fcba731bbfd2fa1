package service

import (
	"context"
	"maps"
	"slices"
	"sync/atomic"
	"time"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/fault"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/observe"
	"github.com/pushfx/pushfx/module/pusher"
	"github.com/pushfx/pushfx/module/retry"
)

// pushkeys changes the entries of pushkeys, and judges pushers by them.
type pushkeys struct {
	module.Stores
	changes  Changes
	observer observe.Observer

	reported *atomic.Int64 // when an entry that cannot be read was last reported, in Unix seconds
}

// now returns the time by the stores' clock.
func (k pushkeys) now() time.Time {
	if k.Now == nil {
		return time.Now()
	}
	return k.Now()
}

// claim changes the entry of a pusher that a user is about to store, and refuses an import of
// a pushkey that another user has taken. The number of the set is above after, unless it is an
// import. The lost users had the pushkey before.
func (k pushkeys) claim(
	ctx context.Context, user mxid.UserID, p pusher.Pusher, others pusher.Others, after int64,
) (number int64, entry pusher.Entry, lost []mxid.UserID, err error) {
	at := max(k.now().UnixMicro(), after+1)
	entry, err = k.Pushkeys.Update(ctx, p.Digest(), func(e *pusher.Entry) error {
		if others == pusher.Imported && e.IsTakenFrom(user) {
			return pusher.ErrTaken
		}
		before := *e
		number = e.Claim(user, others, at)
		e.Address = p.Kind.IsAddress()
		lost = before.Lost(*e)
		return nil
	})
	if err != nil {
		return 0, pusher.Entry{}, nil, err
	}
	for _, loser := range lost {
		k.changes.PushersChanged(loser)
	}
	return number, entry, lost, nil
}

// removeHidden removes the pushers of a pushkey that users have lost, as well as it can: the
// entry hides what stays.
func (k pushkeys) removeHidden(ctx context.Context, users []mxid.UserID, key pusher.Key, entry pusher.Entry) {
	ctx = retry.LeaveSilent(ctx)
	for _, user := range users {
		var removed []pusher.Pusher
		err := k.Pushers.Update(ctx, user, func(list *pusher.List) error {
			removed = list.Remove(func(p pusher.Pusher) bool { return p.Key == key && !entry.Shows(user, p.Claim) })
			return nil
		})
		if err == nil && len(removed) > 0 {
			k.report(observe.PusherTaken, user, pusher.Pusher{Key: key})
		}
	}
}

// leave changes the entry of a pusher that is gone; see [pusher.Entry.Leave].
func (k pushkeys) leave(ctx context.Context, user mxid.UserID, gone pusher.Pusher) error {
	_, err := k.Pushkeys.Update(ctx, gone.Digest(), func(e *pusher.Entry) error {
		e.Leave(user, gone.Claim, k.now().UnixMicro())
		return nil
	})
	return err
}

// forget removes a user's name from the entry of a pushkey.
func (k pushkeys) forget(ctx context.Context, user mxid.UserID, key pusher.Digest) error {
	_, err := k.Pushkeys.Update(ctx, key, func(e *pusher.Entry) error {
		e.Forget(user)
		return nil
	})
	return err
}

// judge removes pushers that are not visible from lists, see [pusher.Entry.Shows]. A pusher
// whose entry cannot be read stays: two faults have to meet before it is another user's.
// AllShow is false if a pushkey was taken since a pusher was set, even by the same user.
func (k pushkeys) judge(ctx context.Context, all map[mxid.UserID]module.Result[pusher.List]) (allShow bool) {
	users, keys := slices.Collect(maps.Keys(all)), make([]pusher.Digest, 0, len(all))
	for _, user := range users {
		list := all[user].Value
		for _, p := range list.All() {
			keys = append(keys, p.Digest())
		}
	}
	if len(keys) == 0 || k.Pushkeys == nil {
		return true
	}
	entries := k.Pushkeys.LoadMany(retry.LeaveSilent(ctx), keys)
	var unread error
	allShow = true
	for _, user := range users {
		list := all[user].Value
		hidden := list.Remove(func(p pusher.Pusher) bool {
			entry := entries[keys[0]]
			keys = keys[1:]
			if entry.Err != nil {
				unread = entry.Err
				return false
			}
			allShow = allShow && p.Claim >= entry.Value.Taken
			return !entry.Value.Shows(user, p.Claim)
		})
		if len(hidden) > 0 {
			all[user] = module.Result[pusher.List]{Value: list, Err: all[user].Err}
		}
	}
	if unread != nil && ctx.Err() == nil {
		k.reportUnread(unread)
	}
	return allShow
}

// reportUnread reports an entry that could not be read, once in half a minute.
func (k pushkeys) reportUnread(err error) {
	now, last := time.Now().Unix(), k.reported.Load()
	if now-last >= 30 && k.reported.CompareAndSwap(last, now) {
		k.observer.Report(observe.PushkeysUnread, err)
	}
}

// isUnreadable reports whether stored data is damaged. Data in the form of another
// version is not damaged.
func isUnreadable(err error) bool {
	return fault.KindOf(err) == fault.Database && !fault.IsOtherVersion(err)
}

// RemovedPusher is the error of [observe.PusherTaken], [observe.PusherLoggedOut] and, for a mail
// that came back, [observe.PusherRemoved].
type RemovedPusher struct {
	User   mxid.UserID
	Key    pusher.Key // do not log its pushkey
	Device string     // empty if it is not the reason
}

// Error names the user and not the pushkey.
func (r *RemovedPusher) Error() string { return "a pusher of " + string(r.User) }

func (k pushkeys) report(problem observe.Problem, user mxid.UserID, removed ...pusher.Pusher) {
	for _, p := range removed {
		k.observer.Report(problem, &RemovedPusher{user, p.Key, p.Device})
	}
}
