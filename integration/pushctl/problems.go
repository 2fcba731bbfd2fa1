package main

import (
	"github.com/redis/go-redis/v9"

	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/pusher"
	"github.com/pushfx/pushfx/module/pushrule"
)

// problemKind is a way in which what is stored is not as the module promises. The
// texts are for operators.
type problemKind string

// The kinds, beside those of package pushrule.
const (
	unreadableEvent   problemKind = "unreadable push rules"
	emptyEvent        problemKind = "push rules without content"
	unreadablePushers problemKind = "unreadable pushers"
	pusherUnknown     problemKind = "pusher unknown to the index"
	pusherTooMany     problemKind = "pusher that a later claim removes"
	unreadableClaims  problemKind = "unreadable claims"
	claimGivenUp      problemKind = "claim without a pusher"
	unsettledPushkeys problemKind = "pushkeys not settled in time"
	unreadableFormat  problemKind = "delivery of another form"
	unreadableEntry   problemKind = "unreadable events to be delivered"
	unreadableGateway problemKind = "unreadable state of a push gateway"
	unreadableHeld    problemKind = "unreadable record of a pusher in trouble"
	wrongType         problemKind = "key of another type"
	misplacedKey      problemKind = "key on a node without its slot"
	unknownKey        problemKind = "unknown key"
)

// What remedies a kind of problem.
const (
	byRepair  = "repair"
	byReset   = "repair -reset-damaged"
	byHand    = "by hand"
	byHost    = "the host that owns it skips it"
	byCluster = "redis-cli --cluster fix"
)

// problemKinds lists all kinds, in the order of reports, with what remedies them.
func problemKinds() []struct {
	kind   problemKind
	remedy string
} {
	return []struct {
		kind   problemKind
		remedy string
	}{
		{unreadableEvent, byReset},
		{emptyEvent, byRepair},
		{problemKind(pushrule.DuplicateRules), byRepair},
		{problemKind(pushrule.MasterNotFirst), byRepair},
		{problemKind(pushrule.LegacyRule), byRepair},
		{problemKind(pushrule.ForeignDefault), "-default-rules"},
		{problemKind(pushrule.StaleDefaults), byRepair},
		{unreadablePushers, byReset},
		{pusherUnknown, byRepair},
		{pusherTooMany, byRepair},
		{unreadableClaims, byRepair},
		{claimGivenUp, byRepair},
		{unsettledPushkeys, byRepair},
		{unreadableFormat, byHand},
		{unreadableEntry, byHost},
		{unreadableGateway, byHand},
		{unreadableHeld, byReset},
		{wrongType, byHand},
		{misplacedKey, byCluster},
		{unknownKey, byHand},
	}
}

// problem is one that was found.
type problem struct {
	kind   problemKind
	name   string // the user, or the key of what belongs to none
	detail string // what tells it from others of the name; no secrets

	key  string
	node *redis.Client // where the key was found

	// What a repair needs, as it was read.
	user   mxid.UserID
	text   string
	hash   userHash
	pusher pusher.Pusher
	digest pusher.Digest
	claim  pusher.Owner
	shard  int
	held   string // the name of a record, whose bytes are text
}

// identity tells a problem from others: two with the same are one, found twice.
type identity struct {
	kind              problemKind
	name, detail, key string
}

func (p problem) identity() identity { return identity{p.kind, p.name, p.detail, p.key} }

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
