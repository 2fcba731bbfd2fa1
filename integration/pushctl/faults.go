package main

import (
	"github.com/redis/go-redis/v9"

	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/pusher"
	"github.com/pushfx/pushfx/module/pushrule"
)

// faultKind is a way in which what is stored is not as the module promises. The
// texts are for operators.
type faultKind string

// The kinds, beside those of package pushrule.
const (
	unreadableEvent   faultKind = "unreadable push rules"
	emptyEvent        faultKind = "push rules without content"
	unreadablePushers faultKind = "unreadable pushers"
	pusherNoClaim     faultKind = "pusher without a claim"
	pusherUnknown     faultKind = "pusher unknown to the index"
	pusherTooMany     faultKind = "pusher that a later claim removes"
	unreadableClaims  faultKind = "unreadable claims"
	claimGivenUp      faultKind = "claim without a pusher"
	unsettledPushkeys faultKind = "pushkeys not settled in time"
	wrongType         faultKind = "key of another type"
	misplacedKey      faultKind = "key on a node without its slot"
	unknownKey        faultKind = "unknown key"
)

// How repair goes about a kind of fault.
const (
	byRepair  = "repair"
	byReset   = "repair -reset-damaged"
	byHand    = "by hand"
	byCluster = "redis-cli --cluster fix"
)

// faultKinds lists all kinds, in the order of reports, with what remedies them.
func faultKinds() []struct {
	kind   faultKind
	remedy string
} {
	return []struct {
		kind   faultKind
		remedy string
	}{
		{unreadableEvent, byReset},
		{emptyEvent, byRepair},
		{faultKind(pushrule.TwinRules), byRepair},
		{faultKind(pushrule.MasterNotFirst), byRepair},
		{faultKind(pushrule.LegacyRule), byRepair},
		{faultKind(pushrule.ForeignDefault), "-default-rules"},
		{faultKind(pushrule.StaleDefaults), byRepair},
		{unreadablePushers, byReset},
		{pusherNoClaim, byRepair},
		{pusherUnknown, byRepair},
		{pusherTooMany, byRepair},
		{unreadableClaims, byRepair},
		{claimGivenUp, byRepair},
		{unsettledPushkeys, byRepair},
		{wrongType, byHand},
		{misplacedKey, byCluster},
		{unknownKey, byHand},
	}
}

// finding is a fault that was found.
type finding struct {
	kind   faultKind
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
}

// isSame reports whether both are the same fault, found twice.
func (f finding) isSame(g finding) bool {
	return f.kind == g.kind && f.name == g.name && f.detail == g.detail && f.key == g.key
}

// tally counts what was looked at.
type tally struct {
	Keys    int64 `json:"keys"`
	Events  int64 `json:"users_with_push_rules"`
	Rules   int64 `json:"rules"`
	Hashes  int64 `json:"users_with_a_pusher_hash"`
	Pushers int64 `json:"pushers"`
	Claims  int64 `json:"pushkeys_in_the_index"`
}

func (t *tally) add(u tally) {
	t.Keys += u.Keys
	t.Events += u.Events
	t.Rules += u.Rules
	t.Hashes += u.Hashes
	t.Pushers += u.Pushers
	t.Claims += u.Claims
}

// findings are what a look came to. The doubtful ones are about several keys,
// which cannot be read in one moment, so that a second look decides.
type findings struct {
	tally
	sure, doubtful []finding
}
