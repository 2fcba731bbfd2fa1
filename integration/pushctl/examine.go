package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/pushfx/pushfx/module/fault"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/pushrule"
	"github.com/pushfx/pushfx/module/redisclient"
	"github.com/pushfx/pushfx/module/stored"
)

type examination struct {
	tally
	problems    []problem
	unconfirmed []problem // see [unconfirmed]
	now         time.Time // by the clock of Redis

	hashes []userHash
}

type tally struct {
	Keys    int64 `json:"keys"`
	Events  int64 `json:"users_with_push_rules"`
	Rules   int64 `json:"rules"`
	Hashes  int64 `json:"users_with_a_pusher_hash"`
	Pushers int64 `json:"pushers"`
	Claims  int64 `json:"pushkeys_in_the_index"`
	Unread  int64 `json:"users_with_unread_counts"`
	Waiting int64 `json:"waiting_notifications"`
	Failing int64 `json:"failing_pushers"`
	Entries int64 `json:"entries_in_the_index_of_users"`
	Listed  int64 `json:"-"` // entries of users with something to send
}

func (t *tally) add(u tally) {
	t.Keys += u.Keys
	t.Events += u.Events
	t.Rules += u.Rules
	t.Hashes += u.Hashes
	t.Pushers += u.Pushers
	t.Claims += u.Claims
	t.Unread += u.Unread
	t.Waiting += u.Waiting
	t.Failing += u.Failing
	t.Entries += u.Entries
	t.Listed += u.Listed
}

// examine reads keys of a node and looks for problems.
func (b *backend) examine(ctx context.Context, node *redis.Client, names []string) (*examination, error) {
	ctx, cancel := context.WithTimeout(ctx, replyTimeout)
	defer cancel()
	x := &examination{tally: tally{Keys: int64(len(names))}, now: b.now()}
	for _, name := range names {
		if b.keys.Parse(name).Kind == stored.MalformedKey { // other keys may be the host's, with the same prefix
			x.problems = append(x.problems, problem{kind: unknownKey, subject: shownKey(name)})
		}
	}
	values, err := b.readExpiring(ctx, node, names)
	if err != nil {
		return nil, err
	}
	for _, v := range values {
		b.examineValue(x, node, v)
	}
	return x, b.examinePushers(ctx, node, x)
}

var (
	wrongType    = kind{"key of the wrong type", byHand}
	misplacedKey = kind{"key on a node without its slot", byCluster}
	unknownKey   = kind{"unknown key", byHand}
	otherVersion = kind{"data of another version", byHand}
)

// shownKey returns a key without the text after "pushkey:", which may be a pushkey.
func shownKey(name string) string {
	if before, _, found := strings.Cut(name, "pushkey:"); found {
		return printable(before) + "pushkey:..."
	}
	return printable(name)
}

// examineValue looks for problems within one value.
func (b *backend) examineValue(x *examination, node *redis.Client, v value) {
	switch {
	case v.state == isAbsent || v.state == isUnread:
	case v.state == isOtherType:
		x.problems = append(x.problems, problem{kind: wrongType, subject: v.name})
	case v.state == isElsewhere:
		x.unconfirmed = append(x.unconfirmed, problem{
			kind: misplacedKey, subject: v.name, detail: node.Options().Addr,
			recheck: func(ctx context.Context) (bool, error) { return b.isMisplaced(ctx, node, v.name) },
		})
	case v.Kind == stored.RulesKey:
		x.Events++
		b.examineEvent(x, v)
	case v.Kind == stored.PushersKey:
		x.Hashes++
		b.examineHash(x, v)
	case v.Kind == stored.UnreadKey:
		x.Unread++
		b.examineUnread(x, v)
	default:
		x.Claims++
		b.examineEntry(x, v)
	}
}

// isMisplaced reports whether a node holds a key that another node serves without it, and no move is under way that
// will take it there.
func (b *backend) isMisplaced(ctx context.Context, node *redis.Client, key string) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, replyTimeout)
	defer cancel()
	slot := redisclient.SlotOf(key)
	keys, err := node.ClusterGetKeysInSlot(ctx, slot, 1<<16).Result()
	if err != nil {
		return false, fmt.Errorf("CLUSTER GETKEYSINSLOT: %w", err)
	}
	if _, isMoved := redis.IsMovedError(node.Type(ctx, key).Err()); !isMoved || !slices.Contains(keys, key) {
		return false, nil
	}
	owner, err := b.nodeOf(ctx, key)
	if err != nil {
		return false, err
	}
	nodes, err := owner.ClusterNodes(ctx).Result()
	if err != nil {
		return false, fmt.Errorf("CLUSTER NODES: %w", err)
	}
	if !strings.Contains(nodes, fmt.Sprintf("[%d->-", slot)) {
		return true, nil // its source knows of a move, or there is none
	}
	served, err := b.client.Exists(ctx, key).Result()
	_, isMoved := redis.IsMovedError(err)
	if _, isAsk := redis.IsAskError(err); isAsk || isMoved {
		return true, nil // the target of the move has been replaced
	}
	return served == 0, err
}

// The problems of push rules; [ruleProblem] returns further ones.
var (
	unreadableEvent = kind{"unreadable push rules", byReset}
	emptyEvent      = kind{"push rules without content", byRepair}
)

// ruleProblem converts a problem of package pushrule.
func ruleProblem(p pushrule.Problem) kind {
	switch p {
	case pushrule.ForeignDefault:
		return kind{string(p), byRules}
	case pushrule.FeatureOff:
		return kind{string(p), byRefresh}
	}
	return kind{string(p), byRepair}
}

func (b *backend) examineEvent(x *examination, v value) {
	e, err := stored.ReadEvent(v.text)
	switch {
	case fault.IsOtherVersion(err):
		x.addOtherVersion(v, err)
		return
	case err != nil:
		x.problems = append(x.problems, problem{
			kind: unreadableEvent, subject: v.owner(), detail: err.Error(), damaged: &record{user: v.User, event: &v.text},
			repair: func(ctx context.Context) error {
				return orChanged(b.rules.Replace(ctx, v.User, &v.text, eventOf(b.defaults.For(v.User))))
			},
		})
	case !e.Found:
		x.problems = append(x.problems, problem{
			kind: emptyEvent, subject: v.owner(),
			repair: func(ctx context.Context) error { return b.host.EnsureDefaults(ctx, v.User) },
		})
	default:
		x.Rules += int64(e.Rules.Len())
		x.problems = append(x.problems, b.examineRules(v, e.Rules)...)
	}
	b.examineExpiry(x, v)
}

// addOtherVersion adds the problem of a value that another version of the module stored. This version must not change
// or remove the value.
func (x *examination) addOtherVersion(v value, err error) {
	p := problem{kind: otherVersion, subject: v.name, detail: err.Error()}
	var other *fault.OtherVersionError
	if errors.As(err, &other) {
		p.detail = fmt.Sprintf("form %q", other.Form)
	}
	x.problems = append(x.problems, p)
}

// examineRules returns the problems of a rule set. All have the same repair, which repairs the whole set.
func (b *backend) examineRules(v value, rules pushrule.Ruleset) (all []problem) {
	for _, found := range rules.Problems(b.defaults.For(v.User)) {
		repaired := rules
		all = append(all, problem{
			kind: ruleProblem(found), subject: v.owner(), refusal: repaired.Repair(b.defaults.For(v.User)),
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

// eventOf returns the stored event with these rules, without a revision.
func eventOf(rules pushrule.Ruleset) string {
	e := stored.Event{Rules: rules, Found: true}
	return e.Text(stored.Revision{})
}
