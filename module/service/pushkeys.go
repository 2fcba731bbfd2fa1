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

// claim makes a user a holder of a pushkey, the only one with [pusher.RemoveOthers]. It
// refuses too many holders, and an import of a pushkey that another user has taken.
func (k pushkeys) claim(
	ctx context.Context, user mxid.UserID, key pusher.Key, others pusher.Others, policy pusher.Policy,
) (number int64, err error) {
	at := k.now().UnixMicro()
	var lost []mxid.UserID
	_, err = k.Pushkeys.Update(ctx, key.Digest(), func(e *pusher.Entry) error {
		before := *e
		if others == pusher.Imported && e.IsTakenFrom(user) {
			return pusher.ErrTaken
		}
		number = e.Claim(user, others, at)
		lost = before.Lost(*e)
		return policy.CheckSharing(before, *e)
	})
	if err != nil {
		return 0, err
	}
	for _, loser := range lost {
		k.changes.PushersChanged(loser)
		k.report(observe.PusherTaken, loser, pusher.Pusher{Key: key})
	}
	return number, nil
}

// release changes the entry of a pusher that its user is about to remove: leave makes the
// user no longer a holder. If the pushkey has no other holder, the pushers that other losers
// have left go, and the caller forgets the losers when the user's pusher is gone, too.
// Otherwise left is empty.
func (k pushkeys) release(ctx context.Context, user mxid.UserID, p pusher.Pusher, leave func(*pusher.Entry)) (left []pusher.Holder, err error) {
	entry, err := k.Pushkeys.Update(ctx, p.Digest(), func(e *pusher.Entry) error {
		leave(e)
		return nil
	})
	if err != nil || len(entry.Holders) > 0 {
		return nil, err
	}
	for _, loser := range entry.Losers {
		if loser.User == user {
			continue
		}
		err := k.Pushers.Update(ctx, loser.User, func(list *pusher.List) error {
			list.Remove(func(q pusher.Pusher) bool { return q.Key == p.Key && q.Claim <= loser.Number })
			return nil
		})
		if err != nil {
			return nil, err
		}
		left = entry.Losers
	}
	return left, nil
}

// releaseAndForget releases the claim of a pusher that is gone.
func (k pushkeys) releaseAndForget(ctx context.Context, user mxid.UserID, p pusher.Pusher) error {
	left, err := k.release(ctx, user, p, releasing(user, p))
	if err == nil {
		err = k.forget(ctx, p.Digest(), left)
	}
	return err
}

// restore makes the user of a pusher a holder again, whose pusher has stayed after a release.
// An error is left out: without it the pusher is visible, too, until another user takes it.
func (k pushkeys) restore(ctx context.Context, user mxid.UserID, p pusher.Pusher) {
	_, _ = k.Pushkeys.Update(ctx, p.Digest(), func(e *pusher.Entry) error {
		e.Restore(pusher.Holder{User: user, Number: p.Claim})
		return nil
	})
}

// forget removes losers, whose pushers are gone, from an entry without holders.
func (k pushkeys) forget(ctx context.Context, key pusher.Digest, losers []pusher.Holder) error {
	if len(losers) == 0 {
		return nil
	}
	_, err := k.Pushkeys.Update(ctx, key, func(e *pusher.Entry) error {
		if len(e.Holders) == 0 {
			e.Forget(losers)
		}
		return nil
	})
	return err
}

// judgeWait bounds the wait for entries: a lost master must not delay the users of others.
const judgeWait = time.Second

// judge removes pushers that are not visible from lists, see [pusher.Entry.Shows]. A pusher
// whose entry cannot be read stays: two faults have to meet before it is another user's.
func (k pushkeys) judge(ctx context.Context, all map[mxid.UserID]module.Result[pusher.List]) {
	users, keys := slices.Collect(maps.Keys(all)), make([]pusher.Digest, 0, len(all))
	for _, user := range users {
		list := all[user].Value
		for _, p := range list.All() {
			keys = append(keys, p.Digest())
		}
	}
	if len(keys) == 0 || k.Pushkeys == nil {
		return
	}
	waiting, cancel := context.WithTimeout(ctx, judgeWait)
	defer cancel()
	entries := k.Pushkeys.LoadMany(waiting, keys)
	var unread error
	for _, user := range users {
		list := all[user].Value
		hidden := list.Remove(func(p pusher.Pusher) bool {
			entry := entries[keys[0]]
			keys = keys[1:]
			if entry.Err != nil {
				unread = entry.Err
			}
			return entry.Err == nil && !entry.Value.Shows(user, p.Claim)
		})
		if len(hidden) > 0 {
			all[user] = module.Result[pusher.List]{Value: list, Err: all[user].Err}
		}
	}
	if unread != nil && ctx.Err() == nil {
		k.reportUnread(unread)
	}
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
