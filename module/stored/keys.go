// Package stored defines the names and values of the module's keys on Redis; its API may
// change at any time. The stores and pushctl use it, and a host's own store may do so to
// share their data.
//
//	account_data:{@user:server}:m.push_rules   string, the user's push rules event
//	pushers:{@user:server}                     hash, the user's pushers
//	unread:{@user:server}                      list, the user's unread notifications; see package fold
//	pushkey:{DIGEST}                           string, the entry of a pushkey: whose pushers of it are visible
//
// With delivery, where NNN is the number of a shard:
//
//	delivery:{@user:server}                    hash, what a user has to send: 350 B and the text for each notification, 150 B a pusher, 600 B if it was cut
//	delivery:{@user:server}:sent:PUSHER        string, for a day: the counts that a pusher got last, or its last mail: 200 B a room
//	delivery:{NNN}:gates                       sorted set, the gates with users in a shard of the index: 150 B each
//	delivery:{NNN}:due:GATE                    sorted set, a gate's users with something to send: 110 B each
//	delivery:{NNN}:after:GATE                  sorted set, the ones of them that fail at the gate: 110 B each
//	delivery:gateways                          hash, push gateways that operators delay: 80 B each
//	delivery:format                            string, the form and the number of shards
//
// Each key begins with the host's prefix, if any. The part in braces is the hash tag:
// in a cluster, all keys of a user share a slot, and so do all keys of a shard.
//
// Hosts cache values and compare only their ends, or the revision of a hash. So an edit
// by hand must remove the revision, or use pushctl: hosts miss a changed value of the
// same length with the same revision.
//
// # Form
//
// Each value names its form, the version of its layout. This package reads one form of
// each kind of value. Events, hashes and entries name the form in the member "form" of
// their revision. The form described here is form 1, which has no such member. Later
// versions of form 1 may add members to events and to the pushers in a hash, because
// hosts keep unknown members there. The form of all keys of delivery is in
// delivery:format.
//
// Values of another form give a [fault.OtherVersionError]: only the version that
// wrote them changes or removes them.
package stored

import (
	"strconv"
	"strings"

	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/pusher"
)

// Keys builds and parses keys with a prefix. The zero value has no prefix.
type Keys struct {
	Prefix string // without braces
}

const (
	rulesPrefix   = "account_data:{"
	rulesSuffix   = "}:m.push_rules"
	pushersPrefix = "pushers:{"
	unreadPrefix  = "unread:{"
	pushkeyPrefix = "pushkey:{"
	tagSuffix     = "}"
)

// Rules is the key of a user's push rules event.
func (k Keys) Rules(user mxid.UserID) string {
	return k.Prefix + rulesPrefix + string(user) + rulesSuffix
}

// Pushers is the key of the hash with a user's pushers.
func (k Keys) Pushers(user mxid.UserID) string {
	return k.Prefix + pushersPrefix + string(user) + tagSuffix
}

// Unread is the key of the list with a user's unread notifications.
func (k Keys) Unread(user mxid.UserID) string {
	return k.Prefix + unreadPrefix + string(user) + tagSuffix
}

// Pushkey is the key of the [Entry] of a pushkey. It has a digest, because the pushkey is a
// credential.
func (k Keys) Pushkey(digest pusher.Digest) string {
	return k.Prefix + pushkeyPrefix + string(digest) + tagSuffix
}

// KeyKind is the kind of a key.
type KeyKind int

// The kinds of keys.
const (
	ForeignKey      KeyKind = iota // another program's
	MalformedKey                   // begins like the module's keys, but is not one
	OtherVersionKey                // of another version
	RulesKey                       // see [Keys.Rules]
	PushersKey                     // see [Keys.Pushers]
	UnreadKey                      // see [Keys.Unread]
	PushkeyKey                     // see [Keys.Pushkey]

	UserLogKey         // see [Keys.UserLog]
	SentKey            // see [Keys.Sent]
	ShardGatesKey      // see [Keys.ShardGates]
	ShardDueKey        // see [Keys.ShardDue]
	ShardFailingKey    // see [Keys.ShardFailing]
	DeliverySummaryKey // see [Keys.DeliverySummary]
	DeliveryFormatKey  // see [Keys.DeliveryFormat]
)

// OfDelivery reports whether a key belongs to delivery. [Keys.DeliveryFormat] has the form
// of these keys.
func (k KeyKind) OfDelivery() bool { return k >= UserLogKey && k <= DeliveryFormatKey }

// OfShard reports whether a key belongs to a shard of delivery's index.
func (k KeyKind) OfShard() bool { return k >= ShardGatesKey && k <= ShardFailingKey }

// Key is a parsed key.
type Key struct {
	Kind   KeyKind
	User   mxid.UserID   // for [RulesKey], [PushersKey], [UnreadKey], [UserLogKey] and [SentKey]
	Digest pusher.Digest // for [PushkeyKey]
	Shard  int           // for the keys of a shard
	Name   string        // for [SentKey] the pusher, for [ShardDueKey] and [ShardFailingKey] the gate
}

// Parse parses a key.
func (k Keys) Parse(name string) Key {
	rest, isBelow := strings.CutPrefix(name, k.Prefix)
	if !isBelow {
		return Key{}
	}
	if user, found := cutUser(rest, rulesPrefix, rulesSuffix); found {
		return Key{Kind: RulesKey, User: user}
	}
	if user, found := cutUser(rest, pushersPrefix, tagSuffix); found {
		return Key{Kind: PushersKey, User: user}
	}
	if user, found := cutUser(rest, unreadPrefix, tagSuffix); found {
		return Key{Kind: UnreadKey, User: user}
	}
	if text, found := cut(rest, pushkeyPrefix, tagSuffix); found && pusher.Digest(text).Validate() == nil {
		return Key{Kind: PushkeyKey, Digest: pusher.Digest(text)}
	}
	if key, found := parseDelivery(rest); found {
		return key
	}
	if strings.HasPrefix(rest, "pushkeys:") {
		return Key{Kind: OtherVersionKey}
	}
	if isMalformed(rest) {
		return Key{Kind: MalformedKey}
	}
	return Key{}
}

func cutUser(name, prefix, suffix string) (mxid.UserID, bool) {
	text, found := cut(name, prefix, suffix)
	user := mxid.UserID(text)
	return user, found && user.Validate() == nil
}

func cut(name, prefix, suffix string) (string, bool) {
	name, starts := strings.CutPrefix(name, prefix)
	name, ends := strings.CutSuffix(name, suffix)
	return name, starts && ends
}

func isMalformed(name string) bool {
	for _, prefix := range []string{"pushers:", "unread:", "pushkey:", deliveryPrefix} {
		if strings.HasPrefix(name, prefix) {
			return true
		}
	}
	return strings.HasPrefix(name, "account_data:") && strings.Contains(name, "m.push_rules")
}

// Pattern returns the MATCH pattern for a SCAN of the keys. Without a prefix it is empty:
// any key may be one of the module's.
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

// Channel is the channel of a [Message] for each change of push rules.
func (k Keys) Channel() string { return k.Prefix + "push_rules_changed" }

// PusherChannel is the channel of a [Message] or [RepeatedMessage] for each change of pushers.
func (k Keys) PusherChannel() string { return k.Prefix + "pushers_changed" }

// Message returns the message "VERSION USER" about a change of a user's data.
func Message(user mxid.UserID, version int64) string {
	return strconv.FormatInt(version, 10) + " " + string(user)
}

// ReadMessage reads a message. Found is false for other texts.
func ReadMessage(message string) (user mxid.UserID, version int64, found bool) {
	number, name, _ := strings.Cut(message, " ")
	version, err := strconv.ParseInt(number, 10, 64)
	user = mxid.UserID(name)
	return user, version, err == nil && version > 0 && version < textVersionBit && user.Validate() == nil
}

// repeated begins the message of pushers that were set again.
const repeated = "repeated "

// RepeatedMessage returns the message "repeated VERSION USER": pushers were set again, and
// only their claims and times have changed.
func RepeatedMessage(user mxid.UserID, version int64) string {
	return repeated + Message(user, version)
}

// ReadPusherMessage reads a [Message] or [RepeatedMessage]. Found is false for other texts.
func ReadPusherMessage(message string) (user mxid.UserID, isRepeated, found bool) {
	message, isRepeated = strings.CutPrefix(message, repeated)
	user, _, found = ReadMessage(message)
	return user, isRepeated, found
}
