package stored

import (
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"strconv"
	"strings"

	"github.com/pushfx/pushfx/module/fault"
)

const (
	shardPrefix      = "delivery:{"
	gatesSuffix      = "}:gates"
	firstSuffix      = "}:first"
	textsSuffix      = "}:texts"
	troubleSuffix    = "}:trouble"
	bytesSuffix      = "}:bytes"
	summarySuffix    = "}:summary"
	dueMark          = "}:due:"
	moreMark         = "}:more:"
	seenMark         = "}:seen:"
	sentMark         = "}:sent:"
	asideMark        = "}:aside:"
	deliveryGateways = "delivery:gateways"
	deliveryFormat   = "delivery:format"
)

// ShardGates is the key of the sorted set of the gates with backlogs in a shard. The score
// is a time in microseconds, at or before the earliest time in the gate's [Keys.Due].
func (k Keys) ShardGates(shard int) string { return k.shard(shard, gatesSuffix) }

// Due is the key of the sorted set of a gate's backlogs in a shard. The score is a time in
// microseconds by the clock of Redis: an even score is the end of a host's claim, an odd
// score is when an unclaimed backlog is due.
func (k Keys) Due(shard int, gate string) string { return k.shard(shard, dueMark+gate) }

// ShardFirst is the key of the hash with the oldest notification of each backlog of a
// shard, as a [FirstEntry].
func (k Keys) ShardFirst(shard int) string { return k.shard(shard, firstSuffix) }

// More is the key of the list of a backlog's other notifications, each a [BacklogEntry],
// oldest first.
func (k Keys) More(shard int, target string) string { return k.shard(shard, moreMark+target) }

// ShardTexts is the key of the hash with the texts of a shard's notifications, by
// [TextField].
func (k Keys) ShardTexts(shard int) string { return k.shard(shard, textsSuffix) }

// TextField returns the field of a notification's text in [Keys.ShardTexts].
func TextField(target, id string) string { return target + id }

// ReadTextField is the inverse of [TextField].
func ReadTextField(field string) (target, id string) {
	at := max(0, len(field)-entryID)
	return field[:at], field[at:]
}

// Aside is the new name of a shard's key whose Redis type is wrong: a host renames such
// a key.
func (k Keys) Aside(shard int, name string) string { return k.shard(shard, asideMark+name) }

// ShardTrouble is the key of the hash of backlogs whose delivery failed.
func (k Keys) ShardTrouble(shard int) string { return k.shard(shard, troubleSuffix) }

// ShardBytes is the key of the hash with the bytes of waiting texts. A field is a user
// or, for events with many recipients, a room. The fields [FanOutEntries] and
// [FanOutBytes] have the number and the bytes of all texts of such events.
func (k Keys) ShardBytes(shard int) string { return k.shard(shard, bytesSuffix) }

// ShardSummary is the key of the string that summarizes a shard with many backlogs. It
// expires.
func (k Keys) ShardSummary(shard int) string { return k.shard(shard, summarySuffix) }

// Fields of [Keys.ShardBytes].
const (
	FanOutEntries = "fanout-n"
	FanOutBytes   = "fanout--"
)

// Sent is the key of the string with the counts that a pusher got last. It expires.
func (k Keys) Sent(shard int, target string) string { return k.shard(shard, sentMark+target) }

// Seen is the key of the string that records a batch added to a shard. It expires. The
// key has a digest of the batch.
func (k Keys) Seen(shard int, batch string) string {
	sum := sha256.Sum256([]byte(batch))
	return k.shard(shard, seenMark+base64.RawURLEncoding.EncodeToString(sum[:12]))
}

// DeliveryGateways is the key of the hash of push gateways that operators delay. A
// field is the scheme, host and port of pushers' URLs, like
// "https://push.example.org:443"; its value is the start of the delay in milliseconds
// since 1970.
func (k Keys) DeliveryGateways() string { return k.Prefix + deliveryGateways }

// DeliveryFormat is the key of the string with a [DeliveryFormatText].
func (k Keys) DeliveryFormat() string { return k.Prefix + deliveryFormat }

// All keys of a shard share a slot.
func (k Keys) shard(shard int, suffix string) string {
	return k.Prefix + shardPrefix + fmt.Sprintf("%03d", shard) + suffix
}

// BacklogEntry is a notification in a backlog. Its text is under [Keys.ShardTexts].
type BacklogEntry struct {
	Priority byte   // 'h', 'l' or 'c'
	ID       string // 16 bytes
	Room     string // 8 bytes
	User     string // 8 bytes
	Bytes    int    // of its text, for the user's limit
	Added    int64  // in seconds, by the clock of Redis
	Meta     string
}

const (
	entryID    = 16
	entryRoom  = 8
	entryUser  = 8
	entryBytes = 6
	entryAdded = 10
	entryHead  = 1 + entryID + entryRoom + entryUser
)

// Head returns the stored entry up to its byte count. Ok is false if a part has the
// wrong length.
func (e BacklogEntry) Head() (head string, ok bool) {
	head = string(e.Priority) + e.ID + e.Room + e.User
	return head, len(e.ID) == entryID && len(e.Room) == entryRoom && len(e.User) == entryUser
}

// ReadBacklogEntry reads a stored entry. Found is false for other texts.
func ReadBacklogEntry(text string) (e BacklogEntry, found bool) {
	if len(text) < entryHead+entryBytes+entryAdded || strings.IndexByte("hlc", text[0]) < 0 {
		return BacklogEntry{}, false
	}
	cut := func(n int) (part string) {
		part, text = text[:n], text[n:]
		return part
	}
	e.Priority, e.ID, e.Room, e.User = cut(1)[0], cut(entryID), cut(entryRoom), cut(entryUser)
	count, err := strconv.ParseUint(cut(entryBytes), 10, 31)
	added, failed := strconv.ParseInt(cut(entryAdded), 10, 64)
	e.Bytes, e.Added, e.Meta = int(count), added, text
	return e, err == nil && failed == nil
}

// MaxGate is the longest gate in bytes.
const MaxGate = 999

const gateLength = 3 // digits

// FirstEntry returns the stored form of a backlog's gate and its oldest entry.
func FirstEntry(gate, entry string) string {
	return fmt.Sprintf("%0*d", gateLength, len(gate)) + gate + entry
}

// ReadFirstEntry is the inverse of [FirstEntry]. Found is false for other texts.
func ReadFirstEntry(text string) (gate, entry string, found bool) {
	if len(text) < gateLength {
		return "", "", false
	}
	n, err := strconv.ParseUint(text[:gateLength], 10, 31)
	text = text[gateLength:]
	if err != nil || len(text) < int(n) {
		return "", "", false
	}
	return text[:n], text[n:], true
}

// deliveryForm is the version of delivery's stored form. Hosts of different forms
// cannot share a Redis.
const deliveryForm = 4

// DeliveryFormatText returns delivery's form and number of shards.
func DeliveryFormatText(shards int) string { return fmt.Sprintf("%d %d", deliveryForm, shards) }

// ReadDeliveryFormat reads the number of shards. The error for another form is a
// [fault.OtherVersionError].
func ReadDeliveryFormat(text string) (shards int, err error) {
	if _, err := fmt.Sscanf(text, strconv.Itoa(deliveryForm)+" %d", &shards); err != nil || text != DeliveryFormatText(shards) {
		return 0, &fault.OtherVersionError{Data: "a delivery queue", Form: shortened(text)}
	}
	return shards, nil
}

var shardKinds = map[string]KeyKind{
	gatesSuffix: ShardGatesKey, firstSuffix: ShardFirstKey, textsSuffix: ShardTextsKey, troubleSuffix: ShardTroubleKey,
	bytesSuffix: ShardBytesKey, summarySuffix: ShardSummaryKey,
}

var targetKinds = map[string]KeyKind{dueMark: DueKey, moreMark: MoreKey, seenMark: SeenKey, sentMark: SentKey, asideMark: AsideKey}

func parseDelivery(name string) (Key, bool) {
	switch name {
	case deliveryGateways:
		return Key{Kind: DeliveryGatewaysKey}, true
	case deliveryFormat:
		return Key{Kind: DeliveryFormatKey}, true
	case "delivery:hosts":
		return Key{Kind: OtherVersionKey}, true
	}
	rest, isShard := strings.CutPrefix(name, shardPrefix)
	at := strings.IndexByte(rest, '}')
	if !isShard || at < 0 {
		return Key{}, false
	}
	shard, err := strconv.Atoi(rest[:at])
	if err != nil || shard < 0 || fmt.Sprintf("%03d", shard) != rest[:at] {
		return Key{}, false
	}
	if kind, known := shardKinds[rest[at:]]; known {
		return Key{Kind: kind, Shard: shard}, true
	}
	for mark, kind := range targetKinds {
		if target, found := strings.CutPrefix(rest[at:], mark); found && target != "" {
			return Key{Kind: kind, Shard: shard, Target: target}, true
		}
	}
	return Key{Kind: OtherVersionKey}, true
}
