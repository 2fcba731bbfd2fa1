package module

import (
	"context"
	"strings"
	"time"

	"github.com/pushfx/pushfx/module/fault"
	"github.com/pushfx/pushfx/module/match"
	"github.com/pushfx/pushfx/module/mxid"
)

// This file has the interfaces of delivery, which sends notifications of new events to
// push gateways. A host without delivery needs none of them.

// Notifier sends notifications of new events to push gateways. Package delivery has
// the module's implementation; a host may wrap or replace it.
type Notifier interface {
	// Decide evaluates push rules for members of the event's room, and stores nothing. A
	// member without Rules gets the stored ones. Hosts may use the result for their own
	// counts, too. The members and events to pass are listed in module/delivery/README.md,
	// "Whom to give to Decide".
	//
	// Errors: [fault.InvalidParam] for an event that is not a JSON object, for a user that
	// is not a user id, and for a room without joined members, except at an invite;
	// [Unavailable].
	Decide(ctx context.Context, event Event, members []match.Member) (Decisions, error)

	// Notify stores the notifications of an event, as durably as configured. When it
	// returns nil, a running host will send them. After an error or a crash, call it again:
	// for 15 minutes (delivery.Config.DedupWindow), Notify ignores an event and part that
	// it already has. A host that notifies the members in several calls gives each call
	// another part; otherwise part is empty.
	//
	// Errors: [fault.InvalidParam] for an event without event_id or room_id, or
	// that is too large; [Unavailable].
	Notify(ctx context.Context, event Event, part string, decisions Decisions) error

	// UpdateBadges sends unread counts without an event, for example after a read
	// receipt. They are sent some seconds later, once for several calls, and not to a
	// pusher that got the same counts last. When it returns nil, a running host will send
	// them.
	UpdateBadges(ctx context.Context, users ...mxid.UserID) error
}

// IsPermanent reports whether an error of [Notifier.Decide] or [Notifier.Notify] is a fault
// of the event, so that the host drops it. After any other error the host calls both again.
func IsPermanent(err error) bool { return fault.KindOf(err) == fault.InvalidParam }

// Event is a new event, with the names that notifications have.
type Event struct {
	JSON string // as clients see it, with event_id and room_id

	RoomName   string // empty if the room has none
	RoomAlias  string
	SenderName string     // the sender's display name in the room
	Room       match.Room // MemberCount is required; some rules need Power

	// Position and Thread are the event's; see [Place]. Without them, the notification is
	// sent even if an [UnreadService] counts the event as read.
	Position int64
	Thread   string

	// Expires is when notifications of the event become useless. If it is zero, the
	// configuration decides, or the event itself for calls.
	Expires time.Time
}

// Decision is the result of a user's push rules for an event.
type Decision struct {
	User   mxid.UserID
	Result match.Result

	// RoomName is the name that this user sees, for a room without a name: clients name
	// it after the other members. If it is empty, Event.RoomName is used.
	RoomName string
}

// Decisions are the decisions for members of a room. [Notifier.Notify] ignores
// decisions with a Result that does not notify.
type Decisions []Decision

// Unread returns unread counts and read events. It is optional: without it notifications
// have no counts, and read events are notified. The module calls it right before sending,
// in batches.
type Unread interface {
	// Counts returns a result for each user. A user with an error, or without a result,
	// gets notifications without counts.
	Counts(ctx context.Context, users []mxid.UserID) map[mxid.UserID]Result[Counts]

	// AreRead returns true for each event that needs no notification any more: the user
	// has read it or left the room, or it was redacted. Nil means false for all. It must
	// use read marks and not counts: a lost count must not lose a notification.
	AreRead(ctx context.Context, events []UserEvent) []bool
}

// Counts are the numbers that a badge shows.
type Counts struct {
	Unread      int // sent also if it is 0, which clears the badge
	MissedCalls int // sent if it is above 0
}

// UserEvent is an event in a room of a user.
type UserEvent struct {
	User    mxid.UserID
	RoomID  string
	EventID string

	Position int64  // see [Event]; 0 if it had none
	Thread   string // see [Event]; empty if it had none
}

// Attention delays notifications of users that are active on another device. It is
// optional.
type Attention interface {
	// Delay returns how long to delay a notification for each device; nil is no delay for
	// all. The module calls it right before sending, in batches, once for each
	// notification, and again after a host has died. With [Unread], notifications that
	// the user reads during the delay are dropped. A delay lasts at most five minutes;
	// calls are never delayed.
	Delay(ctx context.Context, devices []UserDevice) []time.Duration
}

// UserDevice is the device that set a pusher. Device is empty if it is unknown.
type UserDevice struct {
	User   mxid.UserID
	Device string
}

// Gateway sends one notification to one push gateway. It is optional: the module's
// default uses HTTP, and connects to public addresses only.
type Gateway interface {
	// Post sends the body, a JSON object, to a pusher's URL. It returns the answer, or an
	// error if there was none. It returns when ctx ends.
	Post(ctx context.Context, url string, body []byte) (GatewayAnswer, error)
}

// GatewayAnswer is the answer of a push gateway.
type GatewayAnswer struct {
	Status     int           // of HTTP
	Rejected   []string      // pushkeys, of a 2xx
	RetryAfter time.Duration // the header Retry-After; 0 without it
}

// DeliveryQueue stores notifications until they are delivered. Each pusher with
// notifications has a backlog, oldest first, with a due time. A host claims a due backlog
// before it sends. A claim that is not renewed lapses, and then any host can claim the
// backlog again. Package queuetest has the contract as tests for any implementation.
//
// An SQL queue has a row for each notification, and one for each backlog with due, token
// and trouble. Claim selects rows WHERE due <= now() FOR UPDATE SKIP LOCKED and sets a
// token. Other statements have WHERE token = ?.
//
// The queue has one clock, independent of the hosts' clocks. It does not interpret the
// Text and Meta of notifications and the Text of Trouble. Backlogs are distributed over
// shards, and each call for one shard is atomic. A gate names the push gateway of a
// backlog. A shard lists its backlogs by gate, so that a host can leave out all
// backlogs of a failing gateway.
//
// Errors: [ErrFenced] if a claim has lapsed or another host has it; [Unavailable] if
// the queue cannot be reached in time. After Unavailable, every method may be repeated.
type DeliveryQueue interface {
	// Open checks that the queue has this number of shards and a format that the
	// implementation can read. The first host that opens a queue fixes the number.
	Open(ctx context.Context, shards int) error

	// Enqueue adds notifications to backlogs, as durably as the queue is configured, and
	// returns a result for each batch. After an error, some batches may have been added.
	Enqueue(ctx context.Context, batches []DeliveryBatch) []Result[Enqueued]

	// Claim claims due backlogs, about in the order of their due times. A single call may
	// pass over some gates; a few calls together reach all.
	Claim(ctx context.Context, look Look) (Claimed, error)

	// Read returns at most limit notifications of a claimed backlog, the oldest first.
	Read(ctx context.Context, c Claim, limit int) ([]Notification, error)

	// Complete removes a notification, one of the first 16 of a claimed backlog, and
	// replaces the backlog's trouble. It returns how many notifications are left. An
	// unknown id is no error. A backlog without notifications ends, and its claim, too.
	// Unless sent is empty, the method Sent returns it from then on.
	Complete(ctx context.Context, c Claim, id string, trouble Trouble, sent string) (left int, err error)

	// Sent returns the text that Complete last stored for a pusher, with or without a
	// backlog. The text is empty before Complete, after Drop, and at the latest 30 days
	// after Complete.
	Sent(ctx context.Context, t Target) (string, error)

	// Postpone ends a claim: the backlog is due after the delay, and listed by this gate.
	// Unless trouble is nil, Postpone replaces the backlog's trouble.
	Postpone(ctx context.Context, c Claim, gate string, delay time.Duration, trouble *Trouble) error

	// Renew extends a claim, and returns the claim that replaces c.
	Renew(ctx context.Context, c Claim, by time.Duration) (Claim, error)

	// Drop removes all of a claimed backlog, and returns how many notifications it had.
	Drop(ctx context.Context, c Claim) (dropped int, err error)

	// Backlogs calls visit for the backlogs of a shard until visit returns false. It may
	// miss or repeat backlogs that change during the call. It is for tools.
	Backlogs(ctx context.Context, shard int, visit func(Backlog) bool) error

	// HeldGateways returns the names of the gateways that operators hold. Hosts send
	// them no notifications.
	HeldGateways(ctx context.Context) ([]string, error)

	// Summary describes all backlogs, claimed or not, for metrics. Its cost is bounded:
	// with many backlogs, it is an estimate and up to 15 seconds old. It fails if a part
	// of the queue cannot be read. IsAlone reports whether a backlog's trouble concerns
	// its own pusher only, not the whole gateway.
	Summary(ctx context.Context, isAlone func(Trouble) bool) (QueueSummary, error)
}

// QueueSummary is the result of [DeliveryQueue.Summary].
type QueueSummary struct {
	Notifications int // a [FanOut] backlog has one for each event

	// Oldest is for how long at least three users have had notifications waiting at the
	// same gate, for the gate with the longest wait; 0 if there is none. In FanOut
	// backlogs, one notification is enough. Backlogs for which isAlone returns true do not
	// count.
	Oldest time.Duration

	// Gates has the number of notifications by gate, without FanOut backlogs. It has at
	// least the 32 gates with the most users.
	Gates map[string]int

	// Refused is the error of a queue that has refused writes for 15 seconds, otherwise nil.
	Refused error
}

// Target names a backlog.
type Target struct {
	Shard int
	Name  string // [A-Za-z0-9_-], at most 64 bytes
}

// Priority decides which notifications a long backlog drops first.
type Priority byte

// The priorities, the most important first.
const (
	HighPriority Priority = 'h'
	LowPriority  Priority = 'l'

	// CountsOnly is for counts without an event. Apart from the one in flight, a backlog
	// has at most one, as its last notification.
	CountsOnly Priority = 'c'
)

// Notification is an entry of a backlog.
type Notification struct {
	ID       string // 16 bytes of [A-Za-z0-9_-]; a backlog has each once
	Priority Priority
	Room     string // 8 bytes; identifies the room within a backlog
	Meta     string // small, always stored, without a byte 0
	Text     string // may be large, at most MaxText bytes; see DeliveryBatch.MaxUserBytes
}

// DeliveryBatch has notifications for backlogs of one shard; see
// [DeliveryQueue.Enqueue].
type DeliveryBatch struct {
	Shard int

	// Key names the batch. For the duration of Window, the queue ignores batches with the
	// same key.
	Key    string
	Window time.Duration

	// Room is 8 bytes that name the room of an event. It is empty for notifications without
	// a room, which need no order. While the room's [FanOut] backlog has notifications, the
	// shard accepts only two kinds of batches for the room: the ones that add to this
	// backlog, and the ones that expand it.
	Room string

	// MaxRoomBytes bounds the bytes of the texts in the room's FanOut backlog, and
	// MaxShardBytes those in all FanOut backlogs of the shard. If the room has no FanOut
	// backlog yet, the bound of the shard is twice MaxShardBytes.
	MaxRoomBytes, MaxShardBytes int

	// Of is the claim of a FanOut backlog, for a batch that expands its first
	// notification: a part of the event's recipients gets the notification. Recipients are
	// numbered; the part begins at From and ends before To. The queue checks the claim and
	// From, and ignores Key and Room.
	Of       Claim
	From, To int

	// Lease is how long the claims of Additions last.
	Lease time.Duration

	// MaxBacklog bounds the notifications of a backlog; the queue may exceed it by a
	// fifth. A backlog of up to ten times MaxBacklog keeps all notifications younger than
	// KeepFor, even beyond MaxBacklog.
	MaxBacklog int
	KeepFor    time.Duration

	MaxUserBytes int // bounds a user's texts, besides the first of each backlog; the queue stores no text beyond

	Additions []Addition // of different targets, at most MaxAdditions
}

// The bounds of a batch. Each queue accepts batches within them, and may refuse others.
const (
	MaxAdditions = 1000    // of a [DeliveryBatch]
	MaxText      = 999_999 // bytes of the text of a [Notification]
)

// Addition is a notification for a backlog.
type Addition struct {
	Target       string // its name
	Gate         string // of the pusher, at most 999 bytes; becomes the backlog's gate, unless a host has claimed the backlog
	User         string // 8 bytes; identifies the user for MaxUserBytes
	Notification Notification

	Claim  bool          // claim the backlog, if it is empty
	Delay  time.Duration // until the backlog is due, if it is empty and not claimed
	Urgent bool          // makes a postponed backlog due at once

	// Generation is the pusher's. If the backlog is postponed, and has [Trouble] of an earlier
	// generation, the queue drops the trouble, and the backlog is due.
	Generation int64
}

// Trouble describes the last attempts to send a backlog. The zero value is none.
type Trouble struct {
	Generation int64 // of the pusher; the queue reads it, see [Addition]
	Text       string
}

// FanOut is the prefix of the names of backlogs for events with many recipients. A shard
// has such a backlog for each room; its name ends in [DeliveryBatch.Room]. The User of its
// notifications is the room, too. The gate FanOut lists these backlogs.
const FanOut = "fanout-"

// IsFanOut reports whether a backlog is for events with many recipients.
func (t Target) IsFanOut() bool { return strings.HasPrefix(t.Name, FanOut) }

// Enqueued is the result for a batch.
type Enqueued struct {
	// Again: the queue has ignored the batch, because it already has a batch with this
	// key. Behind: the batch was not added, because the room's [FanOut] backlog has
	// notifications. Full: the batch was not added, because the FanOut backlog would
	// exceed its bounds.
	Again, Behind, Full bool

	// Claims has the claim of each addition, by index, or the zero Claim.
	Claims []Claim

	Coalesced int // notifications dropped from backlogs that were too long
	Due       int // the shard's due backlogs at the gates of Additions; only for batches with Of
}

// Claim is the right to send a backlog's notifications, until it lapses.
type Claim struct {
	Target Target
	Gate   string // the gate that lists the backlog
	Token  int64  // 0 is no claim

	// First is the ID of the backlog's first notification when it was claimed, or empty.
	// It is a hint: a queue that fetches the text by this ID must check that the
	// notification is still the first.
	First string
}

// Look says what [DeliveryQueue.Claim] may claim.
type Look struct {
	Shards []int // all if it is nil
	Limit  int   // backlogs
	Lease  time.Duration

	// Gate returns how many backlogs of a gate to claim at most; 0 leaves the gate out.
	// IsClosed says that the gateway fails or throttles, so that the host only probes it.
	Gate func(name string) (most int, isClosed bool)
}

// Claimed is the result of [DeliveryQueue.Claim]. Backlogs at closed gates have to wait, so
// they count neither for More nor for Oldest.
type Claimed struct {
	Backlogs []Backlog
	More     []int         // shards in which more backlogs may be due
	Oldest   time.Duration // how long ago the earliest was due, or a failing shard was last read
}

// Backlog is a backlog without the texts of its notifications.
type Backlog struct {
	Claim   Claim // its Token is 0 if no host has claimed the backlog
	Waiting int   // notifications; only from [DeliveryQueue.Backlogs]
	First   Notification
	Trouble Trouble
	From    int       // of a [FanOut] backlog: the position in its first notification
	Due     time.Time // or, of a claimed backlog, when the claim lapses
}

// ErrFenced says that the claim has lapsed, and another host may have the backlog.
var ErrFenced = fault.New(fault.Unavailable, "The server cannot reach its storage, try again later.")
