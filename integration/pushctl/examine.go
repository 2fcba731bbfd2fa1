package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/pusher"
	"github.com/pushfx/pushfx/module/stored"
)

// examination is what was found under some keys of a node. The doubtful problems
// are about several keys, which cannot be read in one moment: they count if they
// are still there a while later.
type examination struct {
	tally
	sure, doubtful []problem
	now            time.Time // by the clock of Redis

	hashes []userHash
	claims []keyClaims
}

type userHash struct {
	value
	stored.Hash
}

type keyClaims struct {
	value
	pusher.Claims
}

// examine reads keys that are on a node, and looks for problems.
func (b *backend) examine(ctx context.Context, node *redis.Client, names []string) (*examination, error) {
	x := &examination{tally: tally{Keys: int64(len(names))}, now: b.now()}
	for _, name := range names {
		if b.isUnknown(name) {
			x.sure = append(x.sure, problem{kind: unknownKey, name: shownKey(name), key: name})
		}
	}
	values, err := b.readValues(ctx, node, names)
	if err != nil {
		return nil, err
	}
	for _, v := range values {
		b.examineValue(x, node, v)
	}
	if err := b.examinePushers(ctx, node, x); err != nil {
		return nil, err
	}
	return x, b.examineClaims(ctx, node, x)
}

// isUnknown reports whether a key, though not the module's, looks like one or
// stands below its prefix. Without a prefix, the Redis may have any keys of the
// host's.
func (b *backend) isUnknown(name string) bool {
	kind := b.keys.Parse(name).Kind
	return kind == stored.MalformedKey || kind == stored.ForeignKey && b.keys.Prefix != ""
}

// shownKey is a key as it may be shown: what comes after "pushkey:" may be one.
func shownKey(name string) string {
	if before, _, found := strings.Cut(name, "pushkey:"); found {
		return printable(before) + "pushkey:..."
	}
	return printable(name)
}

// examineValue looks for the problems of a value by itself.
func (b *backend) examineValue(x *examination, node *redis.Client, v value) {
	p := problem{name: v.owner(), key: v.name, node: node, user: v.User, digest: v.Digest, text: v.text}
	switch {
	case v.state == isAbsent:
	case v.state == isOtherType:
		p.kind = wrongType
		x.sure = append(x.sure, p)
	case v.state == isElsewhere:
		p.kind, p.detail = misplacedKey, node.Options().Addr
		x.doubtful = append(x.doubtful, p)
	case v.Kind == stored.RulesKey:
		x.Events++
		b.examineEvent(x, p)
	case v.Kind == stored.PushersKey:
		x.Hashes++
		x.addHash(v, p)
	default:
		x.Claims++
		x.addClaims(v, p)
	}
}

func (b *backend) examineEvent(x *examination, p problem) {
	e, err := stored.ReadEvent(p.text)
	switch {
	case err != nil:
		p.kind, p.detail = unreadableEvent, err.Error()
		x.sure = append(x.sure, p)
	case !e.Found:
		p.kind = emptyEvent
		x.sure = append(x.sure, p)
	default:
		x.Rules += int64(e.Rules.Len())
		for _, flaw := range b.defaults.problems(p.user, e.Rules) {
			p.kind = problemKind(flaw)
			x.sure = append(x.sure, p)
		}
	}
}

func (x *examination) addHash(v value, p problem) {
	h := userHash{v, stored.ReadHash(v.fields)}
	x.Pushers += int64(h.Pushers.Len())
	x.hashes = append(x.hashes, h)
	if len(h.Unreadable) > 0 {
		p.kind, p.detail, p.hash = unreadablePushers, fmt.Sprintf("%d: %v", len(h.Unreadable), h.Err), h
		x.sure = append(x.sure, p)
	}
}

func (x *examination) addClaims(v value, p problem) {
	entry, err := stored.ReadEntry(v.text)
	if err != nil {
		p.kind, p.detail = unreadableClaims, err.Error()
		x.sure = append(x.sure, p)
		return
	}
	x.claims = append(x.claims, keyClaims{v, entry.Claims})
}

// examinePushers looks whether the index knows the pushers.
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
		for _, held := range h.Pushers.All() {
			p, found := problemOf(h.User, held, texts[held.Digest()])
			if found {
				p.key, p.node = h.name, node
				x.doubtful = append(x.doubtful, p)
			}
		}
	}
	return nil
}

// problemOf returns the problem of a pusher whose claim is not among those that
// were read later.
func problemOf(user mxid.UserID, held pusher.Pusher, text string) (p problem, found bool) {
	digest, claim := held.Digest(), pusher.Owner{User: user, Claim: held.Claim.Number}
	p = problem{
		name: string(user), detail: fmt.Sprintf("pushkey %s, claim %d", digest, claim.Claim),
		user: user, pusher: held, digest: digest, claim: claim,
	}
	var claims pusher.Claims
	if text != "" {
		entry, err := stored.ReadEntry(text)
		if claims = entry.Claims; err != nil {
			p.text = text // of claims that cannot be read
		}
	}
	p.kind = pusherUnknown
	return p, !slices.Contains(claims.Owners(), claim)
}

// examineClaims looks for claims that no pusher has, and for pushers that a later
// claim should have removed.
func (b *backend) examineClaims(ctx context.Context, node *redis.Client, x *examination) error {
	settling, err := b.readUnsettled(ctx, x.claims)
	if err != nil {
		return err
	}
	var users []mxid.UserID
	for _, c := range x.claims {
		users = append(users, c.Users()...)
	}
	lists := b.pushers.LoadMany(ctx, users)
	for user, loaded := range lists {
		if loaded.Err != nil && user.Validate() == nil && !isDamaged(loaded.Err) {
			return fmt.Errorf("read pushers: %w", loaded.Err)
		}
	}
	for _, c := range x.claims {
		if !settling[c.Digest] {
			x.examinePushkey(node, c, lists)
		}
	}
	return nil
}

// examinePushkey compares the claims to a pushkey with the pushers that were read
// later.
func (x *examination) examinePushkey(node *redis.Client, c keyClaims, lists map[mxid.UserID]module.Result[pusher.List]) {
	held := map[mxid.UserID]pusher.Pusher{}
	for _, user := range c.Users() {
		list := lists[user].Value
		for _, p := range list.All() {
			if p.Digest() == c.Digest {
				held[user] = p
			}
		}
	}
	problems := module.ProblemsOfPushkey(c.Claims, held, x.now)
	for _, claim := range problems.GivenUp {
		// Of pushers that cannot be read nobody knows which claims they have.
		if lists[claim.User].Err != nil && claim.User.Validate() == nil {
			continue
		}
		x.doubtful = append(x.doubtful, problem{
			kind: claimGivenUp, name: c.owner(), detail: detailOf(claim), key: c.name, node: node, digest: c.Digest, claim: claim,
		})
	}
	for _, claim := range problems.TooMany {
		x.doubtful = append(x.doubtful, problem{
			kind: pusherTooMany, name: string(claim.User), detail: c.owner() + ", " + detailOf(claim), key: c.name, node: node,
			digest: c.Digest, claim: pusher.Owner{User: claim.User, Claim: c.Newest()},
		})
	}
}

// readUnsettled tells which of the pushkeys that several users claim are to be
// settled still.
func (b *backend) readUnsettled(ctx context.Context, claims []keyClaims) (map[pusher.Digest]bool, error) {
	var shared []string
	for _, c := range claims {
		if len(c.Users()) > 1 {
			shared = append(shared, string(c.Digest))
		}
	}
	settling := map[pusher.Digest]bool{}
	if len(shared) == 0 {
		return settling, nil
	}
	answers := make([]*redis.FloatCmd, len(shared))
	_, _ = b.client.Pipelined(ctx, func(p redis.Pipeliner) error {
		for i, digest := range shared {
			answers[i] = p.ZScore(ctx, b.keys.Unsettled(), digest)
		}
		return nil
	})
	for i, answer := range answers {
		if err := answer.Err(); err != nil && !errors.Is(err, redis.Nil) {
			return nil, fmt.Errorf("read what is to be settled: %w", err)
		}
		settling[pusher.Digest(shared[i])] = answer.Err() == nil
	}
	return settling, nil
}

// detailOf names a claim.
func detailOf(c pusher.Owner) string {
	return printable(string(c.User)) + ", claim " + strconv.FormatInt(c.Claim, 10)
}
