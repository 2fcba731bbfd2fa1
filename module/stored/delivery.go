package stored

import (
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"strconv"
	"strings"
)

// The parts of the keys of delivery around the number of a shard.
const (
	shardStart     = "delivery:{"
	dueEnd         = "}:due"
	troubleEnd     = "}:trouble"
	bytesEnd       = "}:bytes"
	backlogMark    = "}:backlog:"
	textsMark      = "}:texts:"
	seenMark       = "}:seen:"
	deliveryGates  = "delivery:gateways"
	deliveryFormat = "delivery:format"
)

// ShardDue is the key of the sorted set with the backlogs of a shard. The score is
// a time in microseconds by the clock of Redis: an even one is when the claim of a
// host lapses, an odd one is when a backlog without a claim is due.
func (k Keys) ShardDue(shard int) string { return k.shard(shard, dueEnd) }

// ShardTrouble is the key of the hash with what hosts know of backlogs that they
// could not deliver.
func (k Keys) ShardTrouble(shard int) string { return k.shard(shard, troubleEnd) }

// ShardBytes is the key of the hash with how many bytes of texts wait, by user.
func (k Keys) ShardBytes(shard int) string { return k.shard(shard, bytesEnd) }

// Backlog is the key of the list with the notifications of a backlog, as
// [BacklogEntry], the oldest first.
func (k Keys) Backlog(shard int, target string) string { return k.shard(shard, backlogMark+target) }

// Texts is the key of the hash with the texts of a backlog's notifications, by
// their ids.
func (k Keys) Texts(shard int, target string) string { return k.shard(shard, textsMark+target) }

// Seen is the key of the string that says that a batch was added to a shard. It
// expires.
func (k Keys) Seen(shard int, batch string) string {
	sum := sha256.Sum256([]byte(batch))
	return k.shard(shard, seenMark+base64.RawURLEncoding.EncodeToString(sum[:12]))
}

// DeliveryGateways is the key of the hash with the push gateways that operators
// hold, by name, with since when, in milliseconds since 1970. The name is the
// scheme, host and port of pushers' URLs: "https://push.example.org:443".
func (k Keys) DeliveryGateways() string { return k.Prefix + deliveryGates }

// DeliveryFormat is the key of the string with the form of what delivery stores,
// and the number of shards; see [DeliveryFormatText].
func (k Keys) DeliveryFormat() string { return k.Prefix + deliveryFormat }

// shard names a key. All keys of a shard have one slot.
func (k Keys) shard(shard int, end string) string {
	return k.Prefix + shardStart + fmt.Sprintf("%03d", shard) + end
}

// BacklogEntry is a notification in the list of a backlog. Its text stands
// elsewhere; see [Keys.Texts].
type BacklogEntry struct {
	Priority byte   // 'h', 'l' or 'c'
	ID       string // 16 bytes
	Room     string // 8 bytes
	User     string // 8 bytes
	Bytes    int    // of the text, as far as they count for the user
	Meta     string
}

// The lengths of the parts of an entry, which stand in this order.
const (
	entryID    = 16
	entryRoom  = 8
	entryUser  = 8
	entryBytes = 6
	entryHead  = 1 + entryID + entryRoom + entryUser
)

// Head is the part of the stored entry before its bytes. Ok is false for one that
// cannot be stored.
func (e BacklogEntry) Head() (head string, ok bool) {
	head = string(e.Priority) + e.ID + e.Room + e.User
	return head, len(e.ID) == entryID && len(e.Room) == entryRoom && len(e.User) == entryUser
}

// ReadBacklogEntry reads an entry. Found is false for what is none.
func ReadBacklogEntry(text string) (e BacklogEntry, found bool) {
	if len(text) < entryHead+entryBytes || strings.IndexByte("hlc", text[0]) < 0 {
		return BacklogEntry{}, false
	}
	cut := func(n int) (part string) {
		part, text = text[:n], text[n:]
		return part
	}
	e.Priority, e.ID, e.Room, e.User = cut(1)[0], cut(entryID), cut(entryRoom), cut(entryUser)
	count, err := strconv.ParseUint(cut(entryBytes), 10, 31)
	e.Bytes, e.Meta = int(count), text
	return e, err == nil
}

// deliveryForm is the form of what delivery stores. Hosts of different forms do
// not work on one Redis.
const deliveryForm = 2

// DeliveryFormatText is what is stored for a number of shards.
func DeliveryFormatText(shards int) string { return fmt.Sprintf("%d %d", deliveryForm, shards) }

// ReadDeliveryFormat reads the number of shards. Found is false for what this
// version cannot read.
func ReadDeliveryFormat(text string) (shards int, found bool) {
	number, found := strings.CutPrefix(text, strconv.Itoa(deliveryForm)+" ")
	shards, err := strconv.Atoi(number)
	return shards, found && err == nil && text == DeliveryFormatText(shards)
}

// shardKinds are the kinds of a shard's keys, by their ends.
var shardKinds = map[string]KeyKind{
	dueEnd: ShardDueKey, troubleEnd: ShardTroubleKey, bytesEnd: ShardBytesKey,
	"}:log": OldDeliveryKey, "}:state": OldDeliveryKey, "}:held": OldDeliveryKey, "}:seen": OldDeliveryKey,
	"}:instructions": OldDeliveryKey,
}

// targetKinds are the kinds of keys that end in the name of a backlog or batch.
var targetKinds = map[string]KeyKind{backlogMark: BacklogKey, textsMark: TextsKey, seenMark: SeenKey}

// parseDelivery tells which key of delivery it is, without the prefix.
func parseDelivery(name string) (Key, bool) {
	switch name {
	case deliveryGates:
		return Key{Kind: DeliveryGatewaysKey}, true
	case deliveryFormat:
		return Key{Kind: DeliveryFormatKey}, true
	case "delivery:hosts":
		return Key{Kind: OldDeliveryKey}, true
	}
	rest, isShard := strings.CutPrefix(name, shardStart)
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
	return Key{}, false
}

// IsOldDeliveryFormat tells the text of a form that no host reads any more.
func IsOldDeliveryFormat(text string) bool { return strings.HasPrefix(text, "1 ") }
