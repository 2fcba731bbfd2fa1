package main

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/pusher"
	"github.com/pushfx/pushfx/module/pushrule"
	"github.com/pushfx/pushfx/module/stored"
)

// examination is what was found under some keys of a node. The doubtful problems
// are about several keys; see [doubts].
type examination struct {
	tally
	sure, doubtful []problem
	now            time.Time // by the clock of Redis

	hashes []userHash
	claims []keyClaims
}

// tally counts what was examined.
type tally struct {
	Keys    int64 `json:"keys"`
	Events  int64 `json:"users_with_push_rules"`
	Rules   int64 `json:"rules"`
	Hashes  int64 `json:"users_with_a_pusher_hash"`
	Pushers int64 `json:"pushers"`
	Claims  int64 `json:"pushkeys_in_the_index"`
	Entries int64 `json:"events_to_be_delivered"`
	Held    int64 `json:"pushers_in_trouble"`
}

func (t *tally) add(u tally) {
	t.Keys += u.Keys
	t.Events += u.Events
	t.Rules += u.Rules
	t.Hashes += u.Hashes
	t.Pushers += u.Pushers
	t.Claims += u.Claims
	t.Entries += u.Entries
	t.Held += u.Held
}

// examine reads keys that are on a node, and looks for problems.
func (b *backend) examine(ctx context.Context, node *redis.Client, names []string) (*examination, error) {
	ctx, cancel := context.WithTimeout(ctx, replyLimit)
	defer cancel()
	x := &examination{tally: tally{Keys: int64(len(names))}, now: b.now()}
	for _, name := range names {
		if b.isUnknown(name) {
			x.sure = append(x.sure, problem{kind: unknownKey, subject: shownKey(name)})
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

var (
	wrongType    = kind{"key of another type", byHand}
	misplacedKey = kind{"key on a node without its slot", byCluster}
	unknownKey   = kind{"unknown key", byHand}
)

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
	switch {
	case v.state == isAbsent:
	case v.state == isOtherType:
		x.sure = append(x.sure, problem{kind: wrongType, subject: v.owner()})
	case v.state == isElsewhere:
		x.doubtful = append(x.doubtful, problem{
			kind: misplacedKey, subject: v.owner(), detail: node.Options().Addr,
			isStill: func(ctx context.Context) (bool, error) { return isMisplaced(ctx, node, v.name) },
		})
	case v.Kind == stored.RulesKey:
		x.Events++
		b.examineEvent(x, v)
	case v.Kind == stored.PushersKey:
		x.Hashes++
		b.examineHash(x, v)
	default:
		x.Claims++
		b.examineEntry(x, v)
	}
}

// isMisplaced reports whether a node still holds a key of a slot that is neither
// its own nor on the way to it.
func isMisplaced(ctx context.Context, node *redis.Client, key string) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, replyLimit)
	defer cancel()
	moved := node.Type(ctx, key).Err()
	if _, isMoved := redis.IsMovedError(moved); !isMoved {
		return false, nil
	}
	slot, err := strconv.Atoi(strings.Fields(moved.Error())[1]) // MOVED SLOT ADDRESS
	if err != nil {
		return false, moved
	}
	nodes, err := node.ClusterNodes(ctx).Result()
	if err != nil {
		return false, fmt.Errorf("CLUSTER NODES: %w", err)
	}
	if strings.Contains(nodes, fmt.Sprintf("[%d-", slot)) {
		return false, nil // on its way
	}
	keys, err := node.ClusterGetKeysInSlot(ctx, slot, 1<<16).Result()
	if err != nil {
		return false, fmt.Errorf("CLUSTER GETKEYSINSLOT: %w", err)
	}
	return slices.Contains(keys, key), nil
}

// The problems of push rules. Package pushrule knows more; see [flawOf].
var (
	unreadableEvent = kind{"unreadable push rules", byReset}
	emptyEvent      = kind{"push rules without content", byRepair}
)

// flawOf is the kind of a problem that package pushrule knows.
func flawOf(p pushrule.Problem) kind {
	if p == pushrule.ForeignDefault {
		return kind{string(p), byRules}
	}
	return kind{string(p), byRepair}
}

func (b *backend) examineEvent(x *examination, v value) {
	e, err := stored.ReadEvent(v.text)
	switch {
	case err != nil:
		x.sure = append(x.sure, problem{
			kind: unreadableEvent, subject: v.owner(), detail: err.Error(), saved: &record{user: v.User, event: &v.text},
			repair: func(ctx context.Context) error {
				return ifDone(b.rules.Replace(ctx, v.User, &v.text, eventOf(b.defaults.For(v.User))))
			},
		})
	case !e.Found:
		x.sure = append(x.sure, problem{
			kind: emptyEvent, subject: v.owner(),
			repair: func(ctx context.Context) error { return b.host.EnsureDefaults(ctx, v.User) },
		})
	default:
		x.Rules += int64(e.Rules.Len())
		x.sure = append(x.sure, b.flawsOf(v, e.Rules)...)
	}
}

// flawsOf returns the problems of a set of rules. The first that is repaired repairs
// all.
func (b *backend) flawsOf(v value, rules pushrule.Ruleset) (all []problem) {
	for _, flaw := range rules.Problems(b.defaults.For(v.User)) {
		repaired := rules
		all = append(all, problem{
			kind: flawOf(flaw), subject: v.owner(), left: repaired.Repair(b.defaults.For(v.User)),
			repair: func(ctx context.Context) error { return b.repairRules(ctx, v.User) },
		})
	}
	return all
}

func (b *backend) repairRules(ctx context.Context, user mxid.UserID) error {
	_, err := b.rules.Update(ctx, user, func(rules *pushrule.Ruleset, found bool) error {
		if !found {
			return errChanged
		}
		return rules.Repair(b.defaults.For(user))
	})
	return err
}

// eventOf returns an event with rules as it is stored, without a revision.
func eventOf(rules pushrule.Ruleset) string {
	e := stored.Event{Rules: rules, Found: true}
	return e.Text(stored.Revision{})
}

// detailOf names a claim.
func detailOf(c pusher.Owner) string {
	return printable(string(c.User)) + ", claim " + strconv.FormatInt(c.Claim, 10)
}
