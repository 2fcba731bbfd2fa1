package stored

import (
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/pushfx/pushfx/module/fault"
	"github.com/pushfx/pushfx/module/mxid"
)

const (
	deliveryPrefix  = "delivery:{"
	gatesSuffix     = "}:gates"
	dueMark         = "}:due:"
	failingMark     = "}:after:"
	sentMark        = "}:sent:"
	deliveryFormat  = "delivery:format"
	deliverySummary = "delivery:summary"
)

// UserLog is the key of the hash with what a user has to send. The field [LogField] has a
// [LogHead], the field [IDsField] the ids of the latest notifications, also of those that were
// sent, a pusher's field has a [PusherState], its field [KeptField] a [Kept] if it was cut, the
// field [EntryField] of a number has a [LogEntry], and the field [TextField] of a number has the
// notification's text, if any.
// Scripts write the fields. The key expires when no pusher has anything to send.
func (k Keys) UserLog(user mxid.UserID) string {
	return k.Prefix + deliveryPrefix + string(user) + tagSuffix
}

// Sent is the key of the string with the counts that a pusher got last, or with the rooms and
// events of its last mail. It expires.
func (k Keys) Sent(user mxid.UserID, pusher string) string {
	return k.Prefix + deliveryPrefix + string(user) + sentMark + pusher
}

// ShardGates is the key of the sorted set of the gates with users in a shard of the index.
// The score is a time in microseconds, at or before the earliest time in the gate's
// [Keys.ShardDue] and [Keys.ShardFailing].
func (k Keys) ShardGates(shard int) string { return k.shard(shard, gatesSuffix) }

// ShardDue is the key of the sorted set of a gate's users in a shard of the index. The score
// is when to look at the user's log, in microseconds by the clock of Redis.
func (k Keys) ShardDue(shard int, gate string) string { return k.shard(shard, dueMark+gate) }

// ShardFailing is like [Keys.ShardDue], for users that fail at the gate.
func (k Keys) ShardFailing(shard int, gate string) string { return k.shard(shard, failingMark+gate) }

// DeliveryFormat is the key of the string with a [DeliveryFormatText].
func (k Keys) DeliveryFormat() string { return k.Prefix + deliveryFormat }

// DeliverySummary is the key of the string with the nonce of the host that summarizes the
// queue for all hosts. It expires.
func (k Keys) DeliverySummary() string { return k.Prefix + deliverySummary }

// All keys of a shard share a slot.
func (k Keys) shard(shard int, suffix string) string {
	return k.Prefix + deliveryPrefix + fmt.Sprintf("%03d", shard) + suffix
}

// Fields that a user's log has once; see [Keys.UserLog].
const (
	LogField = "#log"
	IDsField = "#ids"

	entryMark = "#"
	textMark  = "="
	keptMark  = "+"
)

// EntryField is the field of a notification's [LogEntry].
func EntryField(number int64) string { return entryMark + strconv.FormatInt(number, 10) }

// TextField is the field of a notification's text.
func TextField(number int64) string { return textMark + strconv.FormatInt(number, 10) }

// KeptField is the field of a pusher's [Kept].
func KeptField(pusher string) string { return keptMark + pusher }

// ReadEntryField is the inverse of [EntryField].
func ReadEntryField(field string) (number int64, found bool) {
	text, found := strings.CutPrefix(field, entryMark)
	number, err := strconv.ParseInt(text, 10, 64)
	return number, found && err == nil
}

// IsPusherField reports whether a field of a user's log has a [PusherState].
func IsPusherField(field string) bool {
	return !strings.ContainsAny(field[:min(1, len(field))], entryMark+textMark+keptMark)
}

// IsKeptField reports whether a field of a user's log has a [Kept].
func IsKeptField(field string) bool { return strings.HasPrefix(field, keptMark) }

// LogHead is what scripts know of a user's log: "CUTS NEXT COUNT BYTES STATES LASTISCOUNTS
// GATES".
type LogHead struct {
	Cuts         int64    // changes when pushers are cut
	Next         int64    // the number of the next notification to be appended
	Count        int      // notifications
	Bytes        int      // of their texts
	States       int      // pushers with something to send
	LastIsCounts bool     // the notification before Next is there, and has counts only
	Failing      []string // digests of the gates at which the user fails; see [GateDigest]
}

// The forms of a [LogHead] and a [PusherState] in Lua, for scripts.
const (
	LogHeadPattern     = `'^(%d+) (%d+) (%d+) (%d+) (%d+) (%d) (%S*)$'`
	LogHeadFormat      = `'%d %d %d %d %d %d %s'`
	PusherStatePattern = `'^(%d+) (%S+) (%d+) (%S+) (.*)$'` // the last one is the generation and the trouble
)

var headForm = regexp.MustCompile(`^(\d+) (\d+) (\d+) (\d+) (\d+) ([01]) (\S*)$`)

// ReadLogHead reads the head of a log. Found is false for other texts.
func ReadLogHead(text string) (h LogHead, found bool) {
	parts := headForm.FindStringSubmatch(text)
	if parts == nil {
		return h, false
	}
	var n [5]int64
	for i := range n {
		var err error
		if n[i], err = strconv.ParseInt(parts[i+1], 10, 64); err != nil {
			return h, false
		}
	}
	return LogHead{
		Cuts: n[0], Next: n[1], Count: int(n[2]), Bytes: int(n[3]), States: int(n[4]),
		LastIsCounts: parts[6] == "1", Failing: readList(parts[7]),
	}, true
}

// readList reads a list in which a comma precedes each name.
func readList(text string) []string {
	if text == "" {
		return nil
	}
	return strings.Split(text[1:], ",")
}

// LogEntry is a notification in a user's log, without its text.
type LogEntry struct {
	Priority byte   // 'h', 'l' or 'c'
	ID       string // 8 bytes
	Room     string // 8 bytes
	Added    int64  // in milliseconds, by the clock of Redis
	Meta     string
}

const (
	entryID   = 8
	entryRoom = 8
	entryHead = 1 + entryID + entryRoom
)

// Head returns the stored entry up to its time. Ok is false if a part has the wrong length.
func (e LogEntry) Head() (head string, ok bool) {
	return string(e.Priority) + e.ID + e.Room, len(e.ID) == entryID && len(e.Room) == entryRoom
}

// ReadLogEntry reads an entry. Found is false for other texts.
func ReadLogEntry(text string) (e LogEntry, found bool) {
	if len(text) < entryHead || strings.IndexByte("hlc", text[0]) < 0 {
		return e, false
	}
	e.Priority, e.ID, e.Room = text[0], text[1:1+entryID], text[1+entryID:entryHead]
	added, meta, found := strings.Cut(text[entryHead:], " ")
	ms, err := strconv.ParseInt(added, 10, 64)
	e.Added, e.Meta = ms, meta
	return e, found && err == nil
}

// PusherState is what a pusher has to send: "UNTIL NONCE NUMBER GATE GENERATION TROUBLE".
type PusherState struct {
	Until      int64  // when it is due, or its claim lapses, in microseconds by the clock of Redis
	Nonce      string // of its claim, or begins with "-" for none
	Number     int64  // of the notification that it sends next
	Gate       string // see [GateDigest]
	Generation int64  // of the pusher, at the trouble
	Trouble    string
}

// IsClaimed reports whether a host has claimed the pusher.
func (s PusherState) IsClaimed() bool { return !strings.HasPrefix(s.Nonce, "-") }

// ReadPusherState reads a state. Found is false for other texts.
func ReadPusherState(text string) (s PusherState, found bool) {
	parts := strings.SplitN(text, " ", 6)
	if len(parts) < 6 {
		return s, false
	}
	var errs [3]error
	s.Until, errs[0] = strconv.ParseInt(parts[0], 10, 64)
	s.Number, errs[1] = strconv.ParseInt(parts[2], 10, 64)
	s.Generation, errs[2] = strconv.ParseInt(parts[4], 10, 64)
	s.Nonce, s.Gate, s.Trouble = parts[1], parts[3], parts[5]
	return s, errs == [3]error{}
}

// Kept is what a pusher that was cut has before it: some notifications below a place, and all of
// them from the place on. Its text is "PLACE DISTANCE...", the distances below the place. A
// pusher without it, or that is at the place or behind it, has all notifications before it.
type Kept struct {
	Place   int64
	Numbers []int64 // below Place, in their order
}

// Text returns the stored form.
func (k Kept) Text() string {
	text := strconv.AppendInt(nil, k.Place, 10)
	for _, n := range k.Numbers {
		text = strconv.AppendInt(append(text, ' '), k.Place-n, 10)
	}
	return string(text)
}

// ReadKept reads the stored form. Found is false for other texts.
func ReadKept(text string) (k Kept, found bool) {
	for i, word := range strings.Split(text, " ") {
		n, err := strconv.ParseInt(word, 10, 64)
		if err != nil {
			return Kept{}, false
		}
		if i == 0 {
			k.Place = n
		} else {
			k.Numbers = append(k.Numbers, k.Place-n)
		}
	}
	return k, true
}

// Has reports whether a pusher at a number has a notification before it.
func (k Kept) Has(at, number int64) bool {
	if number >= k.Place {
		return number >= at
	}
	_, found := slices.BinarySearch(k.Numbers, number)
	return found && number >= at
}

// From returns the first numbers that a pusher at a number has before it, at most limit, in a
// log that ends below next.
func (k Kept) From(at, next int64, limit int) (numbers []int64) {
	first, _ := slices.BinarySearch(k.Numbers, at)
	for _, n := range k.Numbers[first:] {
		if len(numbers) < limit {
			numbers = append(numbers, n)
		}
	}
	for n := max(at, k.Place); n < next && len(numbers) < limit; n++ {
		numbers = append(numbers, n)
	}
	return numbers
}

// Count returns how many numbers From returns without a limit.
func (k Kept) Count(at, next int64) int {
	first, _ := slices.BinarySearch(k.Numbers, at)
	return len(k.Numbers) - first + int(max(0, next-max(at, k.Place)))
}

// TroubleText returns the stored form of a trouble, the end of a [PusherState].
func TroubleText(generation int64, trouble string) string {
	return strconv.FormatInt(generation, 10) + " " + trouble
}

// ReadTroubleText is the inverse of [TroubleText].
func ReadTroubleText(text string) (generation int64, trouble string) {
	number, trouble, _ := strings.Cut(text, " ")
	generation, _ = strconv.ParseInt(number, 10, 64)
	return generation, trouble
}

// GateDigest names a gate in a user's log, in 8 bytes.
func GateDigest(gate string) string {
	sum := sha256.Sum256([]byte(gate))
	return base64.RawURLEncoding.EncodeToString(sum[:6])
}

// deliveryForm is the version of delivery's stored form. Hosts of different forms
// cannot share a Redis.
const deliveryForm = 5

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

func parseDelivery(name string) (Key, bool) {
	switch name {
	case deliveryFormat:
		return Key{Kind: DeliveryFormatKey}, true
	case deliverySummary:
		return Key{Kind: DeliverySummaryKey}, true
	}
	if user, found := cutUser(name, deliveryPrefix, tagSuffix); found {
		return Key{Kind: UserLogKey, User: user}, true
	}
	if at := strings.LastIndex(name, sentMark); at >= 0 && at+len(sentMark) < len(name) {
		if user, found := cutUser(name[:at+1], deliveryPrefix, tagSuffix); found {
			return Key{Kind: SentKey, User: user, Name: name[at+len(sentMark):]}, true
		}
	}
	rest, found := strings.CutPrefix(name, deliveryPrefix)
	at := strings.IndexByte(rest, '}')
	if !found || at < 0 {
		return Key{}, false
	}
	shard, err := strconv.Atoi(rest[:at])
	if err != nil || shard < 0 || fmt.Sprintf("%03d", shard) != rest[:at] {
		return Key{}, false
	}
	if rest[at:] == gatesSuffix {
		return Key{Kind: ShardGatesKey, Shard: shard}, true
	}
	for mark, kind := range map[string]KeyKind{dueMark: ShardDueKey, failingMark: ShardFailingKey} {
		if gate, found := strings.CutPrefix(rest[at:], mark); found && gate != "" {
			return Key{Kind: kind, Shard: shard, Name: gate}, true
		}
	}
	return Key{Kind: OtherVersionKey}, true
}
