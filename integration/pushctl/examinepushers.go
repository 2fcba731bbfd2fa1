package main

import (
	"context"
	"fmt"
	"maps"

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
	pusherTaken       = kind{"pusher that another user has taken", byRepair}
)

type userHash struct {
	value
	stored.Hash
}

func (b *backend) examineHash(x *examination, v value) {
	h := userHash{v, stored.ReadHash(v.fields)}
	if fault.IsOtherVersion(h.Err) {
		x.addOtherVersion(v.name, h.Err)
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
	_, err := stored.ReadEntry(v.text)
	if fault.IsOtherVersion(err) {
		x.addOtherVersion(v.name, err)
		return
	}
	b.examineExpiry(x, v)
	if err == nil {
		return
	}
	x.problems = append(x.problems, problem{
		kind: unreadablePushkey, subject: v.owner(), detail: err.Error(),
		repair: func(ctx context.Context) error { return orChanged(b.index.Reset(ctx, v.Digest, v.text)) },
	})
}

// examinePushers looks for pushers that do not agree with the entries of their pushkeys.
func (b *backend) examinePushers(ctx context.Context, x *examination) error {
	hashes := make([]stored.Hash, len(x.hashes))
	for i, h := range x.hashes {
		hashes[i] = h.Hash
	}
	entries, err := b.readEntries(ctx, hashes...)
	if err != nil {
		return err
	}
	for _, h := range x.hashes {
		for _, p := range h.Pushers.All() {
			entry, isRead := entries[p.Digest()]
			if !isRead {
				continue // an own problem
			}
			if found, is := b.examinePusher(h.User, p, entry.Entry); is {
				found.subject, found.part = h.owner(), fmt.Sprintf("pushkey %s, claim %d", p.Digest(), p.Claim)
				found.detail = found.part
				x.suspect(h.name, found)
			}
		}
	}
	return nil
}

// examinePusher compares a pusher with the entry of its pushkey, which was read after it.
func (b *backend) examinePusher(user mxid.UserID, p pusher.Pusher, entry pusher.Entry) (found problem, is bool) {
	switch {
	case service.IsMissing(user, p, entry):
		return problem{kind: pusherUnindexed, repair: func(ctx context.Context) error { return b.repairs.Record(ctx, user, p) }}, true
	case !entry.Shows(user, p.Claim):
		return problem{kind: pusherTaken, repair: func(ctx context.Context) error {
			return b.pushers.Update(ctx, user, func(list *pusher.List) error {
				list.Remove(func(q pusher.Pusher) bool { return q.Key == p.Key && q.Claim == p.Claim })
				return nil
			})
		}}, true
	}
	return problem{}, false
}
