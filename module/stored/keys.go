// Package stored has the names of the keys in Redis and the form of their values; its
// API may change at any time. All code that reads or writes them uses this package: the
// module's own stores, pushctl, and a host's own store that shares data with them.
//
//	account_data:{@user:server}:m.push_rules   string, the user's push rules event
//	pushers:{@user:server}                     hash, the user's pushers
//	pushkey:{DIGEST}                           string, which users claim a pushkey
//	pushkeys:pending                         sorted set, pushkeys to be settled, by their last claim
//
// and, where the host includes delivery, of which NNN is the number of a shard:
//
//	delivery:{NNN}:due                         sorted set, the backlogs of a shard: 70 B each
//	delivery:{NNN}:backlog:TARGET              list, notifications of a pusher: 250 B each, at most 120
//	delivery:{NNN}:texts:TARGET                hash, what those tell: 100 B and the text, of each; 256 KiB a user
//	delivery:{NNN}:trouble                     hash, backlogs that could not be delivered: 250 B each
//	delivery:{NNN}:bytes                       hash, bytes of waiting texts: 60 B a user
//	delivery:{NNN}:seen:DIGEST                 string, what was handed over in the last 15 minutes: 150 B each
//	delivery:gateways                          hash, push gateways that operators hold: 80 B each
//	delivery:format                            string, the form and the number of shards
//
// Before each stands the prefix of the host, if it has one. What is in braces is
// the hash tag: in a cluster all keys of a user share a slot, and all of a shard.
//
// Hosts keep values in memory and ask Redis only for their ends, or for the revision of
// a hash. Who changes a value by hand takes its revision out with it, or takes pushctl:
// a value of the same length with the same revision is the same to them.
//
// # Form
//
// What is stored has form 1. No value holds that number. A later form that hosts of form 1
// can read and write may add members to the event and to the pushers in a hash. A form
// that they cannot read gets keys of its own.
package stored

import (
	"strconv"
	"strings"

	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/pusher"
)

// Keys names the keys that begin with a prefix, and tells what a key is. The zero
// Keys is that of no prefix.
type Keys struct {
	Prefix string // without braces
}

// The parts of the keys around the user or digest.
const (
	rulesStart   = "account_data:{"
	rulesEnd     = "}:m.push_rules"
	stagedMark   = ":next:"
	pushersStart = "pushers:{"
	claimsStart  = "pushkey:{"
	tagEnd       = "}"
	pending      = "pushkeys:pending"
)

// Rules is the key of a user's push rules event.
func (k Keys) Rules(user mxid.UserID) string { return k.Prefix + rulesStart + string(user) + rulesEnd }

// Staged is the key under which a large event arrives before it takes the place
// of the one that is stored at key. It expires if it does not. The token tells it
// from others.
func Staged(key, token string) string { return key + stagedMark + token }

// Pushers is the key of the hash with a user's pushers.
func (k Keys) Pushers(user mxid.UserID) string {
	return k.Prefix + pushersStart + string(user) + tagEnd
}

// Claims is the key of the claims to a pushkey. The pushkey is a credential, so
// that its digest names it.
func (k Keys) Claims(digest pusher.Digest) string {
	return k.Prefix + claimsStart + string(digest) + tagEnd
}

// Pending is the key of the pending pushkeys.
func (k Keys) Pending() string { return k.Prefix + pending }

// KeyKind is what a key holds.
type KeyKind int

// The kinds of keys.
const (
	ForeignKey   KeyKind = iota // somebody else's
	MalformedKey                // named like one of the module's, which it is not
	RulesKey                    // see [Keys.Rules]
	StagedKey                   // see [Staged]
	PushersKey                  // see [Keys.Pushers]
	ClaimsKey                   // see [Keys.Claims]
	PendingKey                  // see [Keys.Pending]

	ShardDueKey         // see [Keys.ShardDue]
	ShardTroubleKey     // see [Keys.ShardTrouble]
	ShardBytesKey       // see [Keys.ShardBytes]
	BacklogKey          // see [Keys.Backlog]
	TextsKey            // see [Keys.Texts]
	SeenKey             // see [Keys.Seen]
	OldDeliveryKey      // of a form of delivery that is not read
	DeliveryGatewaysKey // see [Keys.DeliveryGateways]
	DeliveryFormatKey   // see [Keys.DeliveryFormat]
)

// Key is what the name of a key says.
type Key struct {
	Kind   KeyKind
	User   mxid.UserID   // of [RulesKey], [StagedKey] and [PushersKey]
	Digest pusher.Digest // of [ClaimsKey]
	Shard  int           // of the keys of a shard
	Target string        // of [BacklogKey] and [TextsKey], the backlog
}

// Parse tells what a key is.
func (k Keys) Parse(name string) Key {
	rest, isBelow := strings.CutPrefix(name, k.Prefix)
	if !isBelow {
		return Key{}
	}
	if rest == pending {
		return Key{Kind: PendingKey}
	}
	if user, found := cutUser(rest, rulesStart, rulesEnd); found {
		return Key{Kind: RulesKey, User: user}
	}
	if user, found := cutUser(rest, pushersStart, tagEnd); found {
		return Key{Kind: PushersKey, User: user}
	}
	if text, found := cut(rest, claimsStart, tagEnd); found && pusher.Digest(text).Validate() == nil {
		return Key{Kind: ClaimsKey, Digest: pusher.Digest(text)}
	}
	if at := strings.LastIndex(rest, stagedMark); at >= 0 {
		if user, found := cutUser(rest[:at], rulesStart, rulesEnd); found {
			return Key{Kind: StagedKey, User: user}
		}
	}
	if key, found := parseDelivery(rest); found {
		return key
	}
	if isLike(rest) {
		return Key{Kind: MalformedKey}
	}
	return Key{}
}

func cutUser(name, start, end string) (mxid.UserID, bool) {
	text, found := cut(name, start, end)
	user := mxid.UserID(text)
	return user, found && user.Validate() == nil
}

func cut(name, start, end string) (string, bool) {
	name, starts := strings.CutPrefix(name, start)
	name, ends := strings.CutSuffix(name, end)
	return name, starts && ends
}

// isLike reports whether a name begins as those of the module do.
func isLike(name string) bool {
	for _, start := range []string{"pushers:", "pushkey:", "pushkeys:", shardStart} {
		if strings.HasPrefix(name, start) {
			return true
		}
	}
	return strings.HasPrefix(name, "account_data:") && strings.Contains(name, "m.push_rules")
}

// Pattern is the MATCH pattern of SCAN for the keys that begin with the prefix;
// it is empty, for all keys, without one.
func (k Keys) Pattern() string {
	if k.Prefix == "" {
		return ""
	}
	var pattern strings.Builder
	for _, b := range []byte(k.Prefix) {
		if strings.IndexByte(`*?[]\^-`, b) >= 0 {
			pattern.WriteByte('\\')
		}
		pattern.WriteByte(b)
	}
	return pattern.String() + "*"
}

// Channel is where hosts publish every change of push rules, as a [Message].
func (k Keys) Channel() string { return k.Prefix + "push_rules_changed" }

// Message is what is published of a change, "VERSION USER".
func Message(user mxid.UserID, version int64) string {
	return strconv.FormatInt(version, 10) + " " + string(user)
}

// ReadMessage reads a message. Anything else is not found.
func ReadMessage(message string) (user mxid.UserID, version int64, found bool) {
	number, name, _ := strings.Cut(message, " ")
	version, err := strconv.ParseInt(number, 10, 64)
	user = mxid.UserID(name)
	return user, version, err == nil && version > 0 && version < isForeign && user.Validate() == nil
}
