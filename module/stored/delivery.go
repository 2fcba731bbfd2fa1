package stored

import (
	"crypto/sha256"
	"fmt"
	"strconv"
	"strings"
)

// The parts of the keys of delivery around the number of a shard.
const (
	shardStart     = "delivery:{"
	logEnd         = "}:log"
	stateEnd       = "}:state"
	heldEnd        = "}:held"
	seenEnd        = "}:seen"
	instructEnd    = "}:instructions"
	deliveryHosts  = "delivery:hosts"
	deliveryGates  = "delivery:gateways"
	deliveryFormat = "delivery:format"
)

// ShardLog is the key of the stream with what was handed over to a shard and is
// not delivered yet.
func (k Keys) ShardLog(shard int) string { return k.shard(shard, logEnd) }

// ShardState is the key of the hash with the owner of a shard and its last
// checkpoint; see [StateOwner].
func (k Keys) ShardState(shard int) string { return k.shard(shard, stateEnd) }

// ShardHeld is the key of the hash with what is kept of the single pushers of a
// shard that are in trouble, by their digests.
func (k Keys) ShardHeld(shard int) string { return k.shard(shard, heldEnd) }

// ShardSeen is the key of the sorted set with what was read of a shard's log not
// long ago: keys of entries, as [SeenMember], by when the first one of a key was
// added.
func (k Keys) ShardSeen(shard int) string { return k.shard(shard, seenEnd) }

// ShardInstructions is the key of the hash with what operators want the owner of a
// shard to do; see [InstructionField]. It expires when nobody waits for it any
// more.
func (k Keys) ShardInstructions(shard int) string { return k.shard(shard, instructEnd) }

// DeliveryHosts is the key of the sorted set with the hosts that deliver, and
// until when they are believed to live, in milliseconds.
func (k Keys) DeliveryHosts() string { return k.Prefix + deliveryHosts }

// DeliveryGateways is the key of the hash with the push gateways that hosts have
// told each other not to be open, and those that an operator holds: a
// [GatewayRecord] for each, by its name. That is the scheme, host and port of
// pushers' URLs, in lower case: "https://push.example.org:443".
func (k Keys) DeliveryGateways() string { return k.Prefix + deliveryGates }

// DeliveryFormat is the key of the string with the form of what delivery stores,
// and the number of shards; see [DeliveryFormatText].
func (k Keys) DeliveryFormat() string { return k.Prefix + deliveryFormat }

// DeliveryChannel is where hosts publish the shards to whose logs they add, as
// decimal numbers.
func (k Keys) DeliveryChannel() string { return k.Prefix + "delivery_appended" }

// shard names a key. All keys of a shard have one slot.
func (k Keys) shard(shard int, end string) string {
	return k.Prefix + shardStart + fmt.Sprintf("%03d", shard) + end
}

// The fields of an entry of a log.
const (
	LogKey    = "k" // as [SeenMember]
	LogWindow = "w" // in milliseconds: in which another entry of the key is none
	LogData   = "d"
)

// The fields of [Keys.ShardState]. Times are in milliseconds by the clock of
// Redis.
const (
	StateOwner    = "owner"    // the host; missing when the shard was given back
	StateEpoch    = "epoch"    // grows with each taking
	StateEnds     = "ends"     // when the lease does
	StateLasts    = "lasts"    // how long it was taken for
	StateNumber   = "number"   // of the last checkpoint of this owner
	StateFinished = "finished" // what is done of entries of which something is left to do
	StateEvicted  = "evicted"  // how many entries the log has lost, as too many waited
)

// The fields of [Keys.ShardInstructions] begin so, and end in an id. An answer
// takes the place of its instruction.
const (
	InstructionField = "instruction:"
	AnswerField      = "answer:"
)

// GatewayRecord is a value of [Keys.DeliveryGateways]. Times are in milliseconds
// since 1970 by the clock of Redis.
//
// An operator holds a gateway by setting its record to one with the State "held",
// and opens one, whatever its state, by removing its record. Hosts read them all
// every second, remove those that have expired, and leave those with an Expires of
// 0 alone.
type GatewayRecord struct {
	State   string // "closed", "waiting" or "held"
	Expires int64  // when it counts no more; 0 for one that is held
	Since   int64
	Until   int64 // before which nothing is sent, if it is waiting; or else 0
	Status  int   // of the gateway's last answer; 0 for none
}

// Text is what is stored.
func (r GatewayRecord) Text() string {
	return fmt.Sprintf("%d %s %d %d %d", r.Expires, r.State, r.Since, r.Until, r.Status)
}

// ReadGateway reads a [GatewayRecord]. Found is false for what is none.
func ReadGateway(text string) (r GatewayRecord, found bool) {
	_, err := fmt.Sscanf(text, "%d %s %d %d %d", &r.Expires, &r.State, &r.Since, &r.Until, &r.Status)
	return r, err == nil && r.Text() == text
}

// SeenMember is the member of [Keys.ShardSeen] for the key of an entry.
func SeenMember(key string) string {
	sum := sha256.Sum256([]byte(key))
	return string(sum[:16])
}

// deliveryForm is the form of what delivery stores. Hosts of different forms do
// not work on one Redis.
const deliveryForm = 1

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
	logEnd: ShardLogKey, stateEnd: ShardStateKey, heldEnd: ShardHeldKey, seenEnd: ShardSeenKey,
	instructEnd: ShardInstructionsKey,
}

// parseDelivery tells which key of delivery it is, without the prefix.
func parseDelivery(name string) (Key, bool) {
	switch name {
	case deliveryHosts:
		return Key{Kind: DeliveryHostsKey}, true
	case deliveryGates:
		return Key{Kind: DeliveryGatewaysKey}, true
	case deliveryFormat:
		return Key{Kind: DeliveryFormatKey}, true
	}
	rest, isShard := strings.CutPrefix(name, shardStart)
	at := strings.IndexByte(rest, '}')
	if !isShard || at < 0 {
		return Key{}, false
	}
	kind, known := shardKinds[rest[at:]]
	shard, err := strconv.Atoi(rest[:at])
	if !known || err != nil || shard < 0 || fmt.Sprintf("%03d", shard) != rest[:at] {
		return Key{}, false
	}
	return Key{Kind: kind, Shard: shard}, true
}

// ReadPosition reads the position of an entry in the log of a shard: the
// milliseconds since 1970 when it was added, by the clock of Redis, and a number
// that tells it from others of the same millisecond.
func ReadPosition(position string) (milliseconds, number int64, err error) {
	first, second, _ := strings.Cut(position, "-")
	if milliseconds, err = strconv.ParseInt(first, 10, 64); err == nil {
		number, err = strconv.ParseInt(second, 10, 64)
	}
	if err != nil {
		err = fmt.Errorf("%q is no position: %w", position, err)
	}
	return milliseconds, number, err
}
