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

// examiner looks for problems in the values of keys.
type examiner struct {
	*backend
	other      error             // not nil if another version of the module wrote the queue, whose keys this version does not know
	shards     int               // of the queue's index; 0: not known
	gateNames  map[string]string // of the index, by digest
	lacksIndex bool              // a part of the queue's index cannot be read
}

// examination is what an examiner finds in keys of a node.
type examination struct {
	tally
	node        *redis.Client
	problems    []problem
	unconfirmed []problem // see [unconfirmed]
	now         time.Time // by the clock of Redis

	hashes []userHash
	logs   []value // of pushers
}

// add adds a problem that only a person can repair.
func (x *examination) add(k kind, subject, detail string) {
	x.problems = append(x.problems, problem{kind: k, subject: subject, detail: detail})
}

// suspect adds a problem that a second examination of the key must confirm.
func (x *examination) suspect(key string, p problem) {
	p.key = key
	x.unconfirmed = append(x.unconfirmed, p)
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
func (e *examiner) examine(ctx context.Context, node *redis.Client, names []string) (*examination, error) {
	x := &examination{tally: tally{Keys: int64(len(names))}, node: node, now: e.now()}
	var known []string
	for _, name := range names {
		switch kind := e.keys.Parse(name).Kind; {
		case kind == stored.MalformedKey: // other keys may be the host's, with the same prefix
			x.add(unknownKey, shownKey(name), "")
		case kind == stored.DeliveryFormatKey && e.other != nil:
			x.addOtherVersion(name, e.other)
		case kind == stored.OtherVersionKey || kind.OfDelivery() && e.other != nil:
			x.add(otherVersion, name, "")
		default:
			known = append(known, name)
		}
	}
	values, err := e.readValues(ctx, node, known)
	if err != nil {
		return nil, err
	}
	for _, v := range values {
		if err := e.examineValue(ctx, x, v); err != nil {
			return nil, err
		}
	}
	if err := e.examinePushers(ctx, x); err != nil {
		return nil, err
	}
	return x, e.examineListings(ctx, x)
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
func (e *examiner) examineValue(ctx context.Context, x *examination, v value) error {
	switch {
	case v.state == isAbsent || v.state == isUnread:
	case v.state == isOtherType && v.Kind.OfDelivery():
		x.add(wrongType, v.name, "DEL removes it")
	case v.state == isOtherType:
		x.add(wrongType, v.name, "")
	case v.state == isElsewhere:
		is, err := e.isMisplaced(ctx, x.node, v.name)
		if is {
			x.suspect(v.name, problem{kind: misplacedKey, subject: v.name, detail: x.node.Options().Addr})
		}
		return e.skip(ctx, "values", v.name, err)
	case v.Kind == stored.RulesKey:
		x.Events++
		e.examineEvent(x, v)
	case v.Kind == stored.PushersKey:
		x.Hashes++
		e.examineHash(x, v)
	case v.Kind == stored.UnreadKey:
		x.Unread++
		e.examineUnread(x, v)
	case v.Kind == stored.PushkeyKey:
		x.Claims++
		e.examineEntry(x, v)
	case v.Kind == stored.UserLogKey:
		return e.examineLog(ctx, x, v)
	default:
		e.examineIndex(x, v)
	}
	return nil
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
		x.addOtherVersion(v.name, err)
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
func (x *examination) addOtherVersion(key string, err error) {
	detail := err.Error()
	var other *fault.OtherVersionError
	if errors.As(err, &other) {
		detail = fmt.Sprintf("form %q", other.Form)
	}
	x.add(otherVersion, key, detail)
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

// expiringKey is the problem of a key that Redis will remove with its data.
var expiringKey = kind{"key that expires", byRepair}

// examineExpiry reports a value that expires and should not. A host may have emptied the value between the commands that
// read it and its expiry.
func (b *backend) examineExpiry(x *examination, v value) {
	if v.expiry < 0 || v.mayExpire() {
		return
	}
	x.suspect(v.name, problem{
		kind: expiringKey, subject: v.name, detail: "at " + timeOf(x.now.Add(v.expiry).UnixMicro()),
		repair: func(ctx context.Context) error {
			ctx, cancel := context.WithTimeout(ctx, replyTimeout)
			defer cancel()
			return b.client.Persist(ctx, v.name).Err()
		},
	})
}

// mayExpire reports whether the module lets a value expire: hashes without pushers, most entries of pushkeys, and the
// summary of the queue.
func (v *value) mayExpire() bool {
	switch v.Kind {
	case stored.PushersKey:
		h := stored.ReadHash(v.fields)
		return h.Err == nil && h.Pushers.Len() == 0
	case stored.PushkeyKey:
		entry, err := stored.ReadEntry(v.text)
		return err == nil && !entry.Lasts()
	}
	return v.Kind == stored.DeliverySummaryKey
}
