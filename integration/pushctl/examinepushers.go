package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

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
	pusherOutdated    = kind{"pusher outdated by a later claim", byRepair}
	unreadableClaims  = kind{"unreadable claims", byRepair}
	claimAbandoned    = kind{"claim without a pusher", byRepair}
	pendingPushkeys   = kind{"pushkeys pending for too long", byRepair}
)

type userHash struct {
	value
	stored.Hash
}

type keyClaims struct {
	value
	pusher.Claims
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
		x.claims = append(x.claims, keyClaims{v, entry.Claims})
		return
	}
	x.problems = append(x.problems, problem{
		kind: unreadableClaims, subject: v.owner(), detail: err.Error(),
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
	texts, err := b.readClaims(ctx, digests)
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

// examinePusher checks that the index has the pusher's own claim to its pushkey. Text has all claims to the pushkey,
// read after the pusher.
func (b *backend) examinePusher(x *examination, node *redis.Client, v value, p pusher.Pusher, text string) {
	claim := pusher.Owner{User: v.User, Claim: p.Claim.Number}
	entry, damaged := stored.ReadEntry(text)
	if text != "" && damaged == nil && slices.Contains(entry.Claims.Owners(), claim) || fault.IsOtherVersion(damaged) {
		return
	}
	x.unconfirmed = append(x.unconfirmed, problem{
		kind: pusherUnindexed, subject: v.owner(), detail: fmt.Sprintf("pushkey %s, claim %d", p.Digest(), claim.Claim), key: v.name, node: node,
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

// examineClaims looks for claims without a pusher, and for pushers that a later claim should
// have removed.
func (b *backend) examineClaims(ctx context.Context, node *redis.Client, x *examination) error {
	pending, err := b.readPending(ctx, x.claims)
	if err != nil {
		return err
	}
	var users []mxid.UserID
	for _, c := range x.claims {
		users = append(users, c.Users()...)
	}
	lists := b.pushers.LoadMany(ctx, users)
	for user, loaded := range lists {
		if loaded.Err != nil && user.Validate() == nil && !isUnreadable(loaded.Err) {
			if err := b.skip(ctx, "pushers", b.keys.Pushers(user), loaded.Err); err != nil {
				return fmt.Errorf("read pushers: %w", err)
			}
		}
	}
	for _, c := range x.claims {
		if !pending[c.Digest] {
			b.examinePushkey(x, node, c, lists)
		}
	}
	return nil
}

// examinePushkey compares the claims to a pushkey with the pushers of that key, which were read after the claims.
func (b *backend) examinePushkey(x *examination, node *redis.Client, c keyClaims, lists map[mxid.UserID]module.Result[pusher.List]) {
	existing := map[mxid.UserID]pusher.Pusher{}
	for _, user := range c.Users() {
		list := lists[user].Value
		for _, p := range list.All() {
			if p.Digest() == c.Digest {
				existing[user] = p
			}
		}
	}
	problems := service.ProblemsOfPushkey(c.Claims, existing, x.now)
	for _, claim := range problems.Abandoned {
		// It is unknown which claims an unreadable pusher has.
		if lists[claim.User].Err != nil && claim.User.Validate() == nil {
			continue
		}
		x.unconfirmed = append(x.unconfirmed, problem{
			kind: claimAbandoned, subject: c.owner(), detail: detailOf(claim), key: c.name, node: node,
			repair: func(ctx context.Context) error { return b.repairs.Release(ctx, c.Digest, []pusher.Owner{claim}) },
		})
	}
	for _, claim := range problems.TooMany {
		x.unconfirmed = append(x.unconfirmed, problem{
			kind: pusherOutdated, subject: string(claim.User), detail: c.owner() + ", " + detailOf(claim), key: c.name, node: node,
			repair: func(ctx context.Context) error {
				return b.index.MarkPending(ctx, module.PendingPushkey{Key: c.Digest, Claim: c.Newest()})
			},
		})
	}
}

// readPending returns the pushkeys of several users that are still marked for hosts to reconcile.
func (b *backend) readPending(ctx context.Context, claims []keyClaims) (map[pusher.Digest]bool, error) {
	answers := map[pusher.Digest]*redis.FloatCmd{}
	_, _ = b.client.Pipelined(ctx, func(p redis.Pipeliner) error { // each reply has its own error
		for _, c := range claims {
			if len(c.Users()) > 1 {
				answers[c.Digest] = p.ZScore(ctx, b.keys.Pending(), string(c.Digest))
			}
		}
		return nil
	})
	pending := map[pusher.Digest]bool{}
	for digest, answer := range answers {
		if err := answer.Err(); err != nil && !errors.Is(err, redis.Nil) {
			if err := b.skip(ctx, "pending pushkeys", b.keys.Pending(), err); err != nil {
				return nil, fmt.Errorf("read pending pushkeys: %w", err)
			}
			pending[digest] = true // perhaps
			continue
		}
		pending[digest] = answer.Err() == nil
	}
	return pending, nil
}

// overdue is the age at which a pending pushkey is a problem. Hosts reconcile pushkeys every half minute, and remove
// claims without a pusher after ten minutes.
const overdue = 15 * time.Minute

// overduePushkeys returns a problem if no host reconciles pushkeys.
func (b *backend) overduePushkeys(ctx context.Context) ([]problem, error) {
	late, err := b.index.Pending(ctx, b.now().Add(-overdue), 1<<20)
	if err != nil || len(late) == 0 {
		return nil, b.skip(ctx, "pending pushkeys", b.keys.Pending(), err)
	}
	return []problem{{
		kind: pendingPushkeys, subject: b.keys.Pending(), detail: fmt.Sprintf("%d, the oldest of %s", len(late), timeOf(late[0].Claim)),
		repair: b.reconcilePushkeys,
	}}, nil
}

// reconcilePushkeys reconciles pushkeys as a host does, until no pushkey is overdue or their number no longer falls.
// Pushkeys with data of another version stay pending.
func (b *backend) reconcilePushkeys(ctx context.Context) error {
	for before := 1 << 20; ; {
		if err := b.host.ReconcilePushkeys(ctx); err != nil && !fault.IsOtherVersion(err) {
			return err
		}
		late, err := b.index.Pending(ctx, b.now().Add(-overdue), 1<<20)
		if err != nil || len(late) == 0 || len(late) == before {
			return err
		}
		before = len(late)
	}
}
