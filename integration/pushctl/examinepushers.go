package main

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/redis/go-redis/v9"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/fault"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/pusher"
	"github.com/pushfx/pushfx/module/service"
	"github.com/pushfx/pushfx/module/stored"
)

// The problems of pushers and of the index of pushkeys.
var (
	unreadablePushers = kind{"unreadable pushers", byReset}
	pusherUnindexed   = kind{"pusher missing in the index", byRepair}
	unreadablePushkey = kind{"unreadable entry of a pushkey", byRepair}
	holderUnused      = kind{"pushkey held without a pusher", byRepair}
)

type userHash struct {
	value
	stored.Hash
}

type keyEntry struct {
	value
	pusher.Entry
}

func (b *backend) examineHash(x *examination, v value) {
	h := userHash{v, stored.ReadHash(v.fields)}
	if fault.IsOtherVersion(h.Err) {
		x.addOtherVersion(v, h.Err)
		return
	}
	b.examineExpiry(x, v)
	x.Pushers += int64(h.Pushers.Len())
	x.hashes = append(x.hashes, h)
	if len(h.Unreadable) == 0 {
		return
	}
	x.problems = append(x.problems, problem{
		kind: unreadablePushers, subject: v.owner(), detail: fmt.Sprintf("%d: %v", len(h.Unreadable), h.Err),
		damaged: &record{user: v.User, fields: v.fields},
		repair: func(ctx context.Context) error {
			readable := maps.Clone(v.fields)
			for _, field := range h.Unreadable {
				delete(readable, field)
			}
			return orChanged(b.pushers.Replace(ctx, v.User, v.fields, readable))
		},
	})
}

func (b *backend) examineEntry(x *examination, v value) {
	entry, err := stored.ReadEntry(v.text)
	if fault.IsOtherVersion(err) {
		x.addOtherVersion(v, err)
		return
	}
	b.examineExpiry(x, v)
	if err == nil {
		x.entries = append(x.entries, keyEntry{v, entry.Entry})
		return
	}
	x.problems = append(x.problems, problem{
		kind: unreadablePushkey, subject: v.owner(), detail: err.Error(),
		repair: func(ctx context.Context) error { return orChanged(b.index.Reset(ctx, v.Digest, v.text)) },
	})
}

// examinePushers looks for pushers that are missing in the index.
func (b *backend) examinePushers(ctx context.Context, node *redis.Client, x *examination) error {
	var digests []pusher.Digest
	for _, h := range x.hashes {
		for _, p := range h.Pushers.All() {
			digests = append(digests, p.Digest())
		}
	}
	texts, err := b.readEntries(ctx, digests)
	if err != nil {
		return err
	}
	for _, h := range x.hashes {
		for _, p := range h.Pushers.All() {
			if text, isRead := texts[p.Digest()]; isRead {
				b.examinePusher(x, node, h.value, p, text)
			}
		}
	}
	return nil
}

// examinePusher checks that the entry of the pushkey knows the pusher's user. Text has the entry, read after the pusher.
func (b *backend) examinePusher(x *examination, node *redis.Client, v value, p pusher.Pusher, text string) {
	entry, damaged := stored.ReadEntry(text)
	if text != "" && damaged == nil && entry.Knows(v.User) || fault.IsOtherVersion(damaged) {
		return
	}
	x.unconfirmed = append(x.unconfirmed, problem{
		kind: pusherUnindexed, subject: v.owner(), detail: fmt.Sprintf("pushkey %s, claim %d", p.Digest(), p.Claim), key: v.name, node: node,
		repair: func(ctx context.Context) error {
			if text != "" && damaged != nil {
				if _, err := b.index.Reset(ctx, p.Digest(), text); err != nil {
					return err
				}
			}
			return b.repairs.Record(ctx, v.User, p)
		},
	})
}

// examineEntries looks for users of pushkeys who have no pusher.
func (b *backend) examineEntries(ctx context.Context, node *redis.Client, x *examination) error {
	var users []mxid.UserID
	for _, e := range x.entries {
		for _, h := range slices.Concat(e.Holders, e.Losers) {
			users = append(users, h.User)
		}
	}
	lists := b.pushers.LoadMany(ctx, users)
	for user, loaded := range lists {
		if loaded.Err != nil && user.Validate() == nil && !isUnreadable(loaded.Err) {
			if err := b.skip(ctx, "pushers", b.keys.Pushers(user), loaded.Err); err != nil {
				return fmt.Errorf("read pushers: %w", err)
			}
		}
	}
	for _, e := range x.entries {
		b.examineHolders(x, node, e, lists)
	}
	return nil
}

// examineHolders compares the users of a pushkey with their pushers, which were read after the entry.
func (b *backend) examineHolders(x *examination, node *redis.Client, e keyEntry, lists map[mxid.UserID]module.Result[pusher.List]) {
	if e.IsOver() {
		return // it expires
	}
	hasPusher := func(user mxid.UserID) bool {
		list := lists[user].Value
		return lists[user].Err != nil && user.Validate() == nil || // it is unknown which pushers the user has
			slices.ContainsFunc(list.All(), func(p pusher.Pusher) bool { return p.Digest() == e.Digest })
	}
	for _, unused := range service.Unused(e.Entry, hasPusher, x.now) {
		x.unconfirmed = append(x.unconfirmed, problem{
			kind: holderUnused, subject: e.owner(), detail: detailOf(unused), key: e.name, node: node,
			repair: func(ctx context.Context) error { return b.repairs.Release(ctx, e.Digest, []pusher.Holder{unused}) },
		})
	}
}
