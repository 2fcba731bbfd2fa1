package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/pusher"
	"github.com/pushfx/pushfx/module/pushrule"
	"github.com/pushfx/pushfx/module/stored"
	"github.com/pushfx/pushfx/pusherstore"
)

// examiner looks at keys for faults. It only reads.
type examiner struct {
	*backend
	defaults defaultTable
}

func newExaminer(b *backend) *examiner { return &examiner{b, newDefaultTable(b.defaults)} }

// look looks at keys that are on a node.
func (x *examiner) look(ctx context.Context, node *redis.Client, keys []string) (findings, error) {
	ctx, cancel := context.WithTimeout(ctx, replyLimit)
	defer cancel()
	sorted := x.sort(keys)
	found := findings{tally: tally{Keys: int64(len(keys))}}
	for _, name := range sorted.unknown {
		found.sure = append(found.sure, finding{kind: unknownKey, name: shownKey(name), key: name})
	}
	l := &looking{examiner: x, node: node, findings: found}
	if err := l.read(ctx, sorted); err != nil {
		return findings{}, err
	}
	if err := l.lookAtHashes(ctx); err != nil {
		return findings{}, err
	}
	err := l.lookAtClaims(ctx)
	return l.findings, err
}

// sortedKeys are keys by what they are.
type sortedKeys struct{ events, hashes, claims, unknown []string }

// known is how many hold data of users.
func (s sortedKeys) known() int { return len(s.events) + len(s.hashes) + len(s.claims) }

// sort sorts keys. Below a prefix there should be none but the module's; without
// one, the Redis may have any keys of the host's.
func (b *backend) sort(keys []string) (s sortedKeys) {
	for _, name := range keys {
		switch b.keys.Parse(name).Kind {
		case stored.RulesKey:
			s.events = append(s.events, name)
		case stored.PushersKey:
			s.hashes = append(s.hashes, name)
		case stored.ClaimsKey:
			s.claims = append(s.claims, name)
		case stored.MalformedKey:
			s.unknown = append(s.unknown, name)
		case stored.ForeignKey:
			if b.keys.Prefix != "" {
				s.unknown = append(s.unknown, name)
			}
		case stored.StagedKey, stored.UnsettledKey:
		}
	}
	return s
}

// shownKey is a key as it may be shown: what comes after "pushkey:" may be one.
func shownKey(name string) string {
	if before, _, found := strings.Cut(name, "pushkey:"); found {
		return printable(before) + "pushkey:..."
	}
	return printable(name)
}

// looking is a look under way.
type looking struct {
	*examiner
	node *redis.Client
	findings
	hashes []userHash
	claims []keyClaims
}

type userHash struct {
	user   mxid.UserID
	key    string
	fields map[string]string
	pusherstore.Hash
}

type keyClaims struct {
	digest pusher.Digest
	key    string
	pusher.Claims
}

// read reads the keys from the node.
func (l *looking) read(ctx context.Context, keys sortedKeys) error {
	texts, hashes := readValues(ctx, l.node, slices.Concat(keys.events, keys.claims), keys.hashes)
	for i, v := range texts {
		there, err := l.isThere(v.key, v.err)
		switch {
		case err != nil:
			return err
		case !there:
		case i < len(keys.events):
			l.lookAtEvent(v.key, v.text)
		default:
			l.readClaims(v.key, v.text)
		}
	}
	for _, v := range hashes {
		there, err := l.isThere(v.key, v.err)
		if err != nil {
			return err
		}
		if there {
			l.readHash(v.key, v.fields)
		}
	}
	return nil
}

// isThere tells what an answer means that is none: the key is gone, or it is a
// fault.
func (l *looking) isThere(key string, err error) (bool, error) {
	f := finding{name: l.nameOf(key), key: key, node: l.node}
	_, isMoved := redis.IsMovedError(err)
	_, isAsk := redis.IsAskError(err)
	switch {
	case err == nil:
		return true, nil
	case errors.Is(err, redis.Nil):
		return false, nil
	case redis.HasErrorPrefix(err, "WRONGTYPE"):
		f.kind = wrongType
		l.sure = append(l.sure, f)
		return false, nil
	case isMoved || isAsk:
		f.kind, f.detail = misplacedKey, l.node.Options().Addr
		l.doubtful = append(l.doubtful, f)
		return false, nil
	}
	return false, fmt.Errorf("read from %s: %w", l.addressOf(l.node), err)
}

// nameOf is how the owner of a key is called: the user, or the digest of a
// pushkey, which tells nothing of it.
func (b *backend) nameOf(name string) string {
	key := b.keys.Parse(name)
	if key.Kind == stored.ClaimsKey {
		return "pushkey " + string(key.Digest)
	}
	return string(key.User)
}

func (l *looking) lookAtEvent(key, text string) {
	user := l.keys.Parse(key).User
	l.Events++
	f := finding{name: string(user), key: key, node: l.node, user: user, text: text}
	e, err := l.events.Read(text)
	switch {
	case err != nil:
		f.kind, f.detail = unreadableEvent, err.Error()
		l.sure = append(l.sure, f)
		return
	case !e.Found:
		f.kind = emptyEvent
		l.sure = append(l.sure, f)
		return
	}
	l.Rules += int64(e.Rules.Len())
	for _, flaw := range l.defaults.flaws(user, e.Rules) {
		f.kind = faultKind(flaw)
		l.sure = append(l.sure, f)
	}
}

func (l *looking) readHash(key string, fields map[string]string) {
	if len(fields) == 0 {
		return // gone meanwhile
	}
	user := l.keys.Parse(key).User
	h := userHash{user, key, fields, pusherstore.ReadHash(fields)}
	l.Hashes++
	l.Pushers += int64(h.Pushers.Len())
	if len(h.Unreadable) > 0 {
		l.sure = append(l.sure, finding{
			kind: unreadablePushers, name: string(user), detail: fmt.Sprintf("%d: %v", len(h.Unreadable), h.Cause),
			key: key, node: l.node, user: user, hash: h,
		})
	}
	l.hashes = append(l.hashes, h)
}

func (l *looking) readClaims(key, text string) {
	digest := l.keys.Parse(key).Digest
	l.Claims++
	claims, err := pusherstore.ReadClaims(text)
	if err != nil {
		l.sure = append(l.sure, finding{
			kind: unreadableClaims, name: l.nameOf(key), detail: err.Error(), key: key, node: l.node, digest: digest, text: text,
		})
		return
	}
	l.claims = append(l.claims, keyClaims{digest, key, claims})
}

// lookAtHashes looks whether the index knows of the pushers.
func (l *looking) lookAtHashes(ctx context.Context) error {
	var digests []pusher.Digest
	for _, h := range l.hashes {
		for _, p := range h.Pushers.All() {
			digests = append(digests, p.Digest())
		}
	}
	texts, err := l.loadClaims(ctx, digests)
	if err != nil {
		return err
	}
	for _, h := range l.hashes {
		for _, p := range h.Pushers.All() {
			l.lookAtPusher(h, p, texts[p.Digest()])
		}
	}
	return nil
}

// lookAtPusher looks whether claims that were read later have that of a pusher.
func (l *looking) lookAtPusher(h userHash, p pusher.Pusher, text string) {
	digest, claim := p.Digest(), pusher.Owner{User: h.user, Claim: p.Claim.Number}
	f := finding{
		name: string(h.user), detail: fmt.Sprintf("pushkey %s, claim %d", digest, claim.Claim), key: h.key, node: l.node,
		user: h.user, pusher: p, digest: digest, claim: claim,
	}
	if claim.Claim == 0 {
		f.kind = pusherNoClaim
		l.doubtful = append(l.doubtful, f)
		return
	}
	var claims pusher.Claims
	if text != "" {
		var err error
		if claims, err = pusherstore.ReadClaims(text); err != nil {
			f.text = text // of claims that cannot be read
		}
	}
	if !slices.Contains(claims.Owners(), claim) {
		f.kind = pusherUnknown
		l.doubtful = append(l.doubtful, f)
	}
}

// loadClaims reads the claims of many pushkeys. Those that are not there, or of
// another type, are empty.
func (b *backend) loadClaims(ctx context.Context, digests []pusher.Digest) (map[pusher.Digest]string, error) {
	texts := make(map[pusher.Digest]string, len(digests))
	for part := range slices.Chunk(digests, pageSize) {
		answers := make([]*redis.StringCmd, len(part))
		_, _ = b.client.Pipelined(ctx, func(p redis.Pipeliner) error {
			for i, digest := range part {
				answers[i] = p.Get(ctx, b.keys.Claims(digest))
			}
			return nil
		})
		for i, digest := range part {
			if err := answers[i].Err(); err != nil && !errors.Is(err, redis.Nil) && !redis.HasErrorPrefix(err, "WRONGTYPE") {
				return nil, fmt.Errorf("read claims: %w", err)
			}
			texts[digest] = answers[i].Val()
		}
	}
	return texts, nil
}

// lookAtClaims looks at the pushers of those who claim pushkeys.
func (l *looking) lookAtClaims(ctx context.Context) error {
	settling, err := l.loadUnsettled(ctx)
	if err != nil {
		return err
	}
	var users []mxid.UserID
	for _, c := range l.claims {
		users = append(users, c.Users()...)
	}
	lists := l.pushers.LoadMany(ctx, users)
	for _, c := range l.claims {
		held := map[mxid.UserID]pusher.Pusher{}
		for _, user := range c.Users() {
			loaded := lists[user]
			if loaded.Err != nil && user.Validate() == nil && !isDamaged(loaded.Err) {
				return fmt.Errorf("read pushers: %w", loaded.Err)
			}
			for _, p := range loaded.Value.All() {
				if p.Digest() == c.digest {
					held[user] = p
				}
			}
		}
		if !settling[c.digest] {
			l.lookAtKey(c, held, lists)
		}
	}
	return nil
}

// loadUnsettled tells which of the keys that several users claim are to be
// settled still.
func (l *looking) loadUnsettled(ctx context.Context) (map[pusher.Digest]bool, error) {
	var shared []pusher.Digest
	for _, c := range l.claims {
		if len(c.Users()) > 1 {
			shared = append(shared, c.digest)
		}
	}
	settling := map[pusher.Digest]bool{}
	if len(shared) == 0 {
		return settling, nil
	}
	answers := make([]*redis.FloatCmd, len(shared))
	_, _ = l.client.Pipelined(ctx, func(p redis.Pipeliner) error {
		for i, digest := range shared {
			answers[i] = p.ZScore(ctx, l.keys.Unsettled(), string(digest))
		}
		return nil
	})
	for i, digest := range shared {
		if err := answers[i].Err(); err != nil && !errors.Is(err, redis.Nil) {
			return nil, fmt.Errorf("read what is to be settled: %w", err)
		}
		settling[digest] = answers[i].Err() == nil
	}
	return settling, nil
}

// detailOf names a claim.
func detailOf(c pusher.Owner) string {
	return printable(string(c.User)) + ", claim " + strconv.FormatInt(c.Claim, 10)
}

// defaultTable is the default rules of all users. Most sets are just these, so
// that they are told without taking them apart.
type defaultTable struct {
	pushrule.Defaults
	before string // the set of the user who is placeholder
}

// placeholder is a user id that stands nowhere else in the default rules.
const placeholder = "@placeholder.pushctl:placeholder.invalid"

func newDefaultTable(d pushrule.Defaults) defaultTable {
	set := d.For(placeholder)
	return defaultTable{d, set.JSON()}
}

// flaws returns the flaws of a user's set.
func (d defaultTable) flaws(user mxid.UserID, rules pushrule.Ruleset) []pushrule.Flaw {
	if d.isDefault(user, rules) {
		return nil
	}
	return rules.Flaws(d.For(user))
}

// isDefault reports whether a set is quickly told to be just the default rules.
func (d defaultTable) isDefault(user mxid.UserID, rules pushrule.Ruleset) bool {
	return !strings.ContainsAny(string(user), `"\`) && rules.JSON() == strings.ReplaceAll(d.before, placeholder, string(user))
}
