package module

import (
	"context"
	"time"

	"github.com/pushfx/pushfx/module/fault"
	"github.com/pushfx/pushfx/module/match"
	"github.com/pushfx/pushfx/module/mxid"
)

// These are the seams of delivery: what brings the notifications of new events to
// push gateways. A host without delivery needs none of them.

// Notifier brings notifications of new events to the push gateways of those whose
// rules ask for it. Package delivery has the module's own; a host may wrap or
// replace it.
type Notifier interface {
	// Decide evaluates an event for members of its room, who need no Rules: those
	// of a member without any are read, or known already. It stores nothing. Use
	// what it returns for the host's own counts, too. Which members and events a
	// host gives to it is a checklist in module/delivery/README.md, "Whom to give to
	// Decide".
	Decide(ctx context.Context, event Event, members []match.Member) (Decisions, error)

	// Notify hands an event that was decided over. When it returns nil, whatever
	// host lives will send what is to be sent, as durably as the host's
	// configuration asks for. It may be repeated, and has to be after an error or
	// a crash: an event and part that was handed over in the last 15 minutes is
	// not again. Part tells parts of one event's members from each other; it is
	// empty for who notifies all of them in one call.
	//
	// Errors: [fault.InvalidParam] for an event without event_id or room_id, or
	// that is too large; [Unavailable].
	Notify(ctx context.Context, event Event, part string, decisions Decisions) error

	// UpdateBadges sends users' unread counts alone, to pushers that are not known
	// to have been sent the same last: some seconds later, and once for many calls.
	// For after a read receipt. When it returns nil, whatever host lives will send
	// them.
	UpdateBadges(ctx context.Context, users ...mxid.UserID) error
}

// Event is a new event with what notifications of it tell.
type Event struct {
	JSON string // as clients see it, with event_id and room_id

	RoomName   string // empty if the room has none
	RoomAlias  string
	SenderName string // the sender's display name in the room
	Room       match.Room

	// Expires is when a notification of it is of no use any more; the zero time is
	// as the configuration says. Call events have their own, if it is zero.
	Expires time.Time
}

// Decision is what a user's push rules say about an event.
type Decision struct {
	User   mxid.UserID
	Result match.Result

	// RoomName is the name of the room as this user sees it, for a room without one,
	// which clients name after its other members. Empty is that of the event.
	RoomName string
}

// Decisions are those of the members of a room, for [Notifier.Notify]. It needs
// only those whose Result says to notify.
type Decisions []Decision

// Unread is what a host knows of what users have read. It is optional: without it
// notifications have no counts, and none is dropped since it was read. It is asked
// right before sending, in batches.
type Unread interface {
	// Counts returns users' counts, with a result for each. A user about whom it
	// fails, or who is not in it, is sent no counts.
	Counts(ctx context.Context, users []mxid.UserID) map[mxid.UserID]Result[Counts]

	// AreRead returns for each event whether the user has read it, or is not to be
	// notified of it any more since it was redacted or they have left the room;
	// nil is none.
	AreRead(ctx context.Context, events []UserEvent) []bool
}

// Counts are what a badge shows.
type Counts struct {
	Unread      int // sent also if it is 0, which clears the badge
	MissedCalls int // sent if it is above 0
}

// UserEvent is an event of a room, and a user.
type UserEvent struct {
	User    mxid.UserID
	RoomID  string
	EventID string
}

// Attention is what a host knows of where its users look. It is optional: without
// it notifications are sent at once, though the user reads at a desktop.
type Attention interface {
	// Hold returns for how long to hold back a notification for each of the devices,
	// since its user looks elsewhere: 0 is not at all, and nil is that for each.
	// Those that the user has read by then are not sent, if there is [Unread]. It is
	// asked right before sending, in batches, once for each notification, and again
	// when its host has died. None is held back for longer than five minutes, and
	// calls never are.
	Delay(ctx context.Context, devices []UserDevice) []time.Duration
}

// UserDevice is a device of a user, as it was named with the pusher that it set;
// it is empty if it was not.
type UserDevice struct {
	User   mxid.UserID
	Device string
}

// Gateway sends one notification to one push gateway. The module's own posts it by
// HTTP, and connects to public addresses only. It is optional.
type Gateway interface {
	// Post sends the body, a JSON object, to a pusher's URL. It returns what was
	// answered, or an error if nothing was. It returns when ctx ends.
	Post(ctx context.Context, url string, body []byte) (GatewayAnswer, error)
}

// GatewayAnswer is how a push gateway answers.
type GatewayAnswer struct {
	Status     int           // of HTTP
	Rejected   []string      // pushkeys, of a 2xx
	RetryAfter time.Duration // how long to wait before the next request; 0 if it does not say
}

// DeliveryQueue keeps notifications until they are delivered: a backlog for each
// pusher that has any, oldest notification first, and when each backlog is due.
// A host that is about to send claims a backlog for a while; a claim that is not
// renewed lapses, and the backlog is due again for any host. Package queuetest
// holds the contract as tests that any implementation can run.
//
// The queue has one clock, whatever the hosts' clocks say. It interprets neither
// texts nor meta nor trouble. Backlogs are spread over shards, and a call for one
// shard takes effect as a whole or not at all.
//
// Errors: [ErrFenced] where a claim has lapsed or is another's; [Unavailable] when
// the queue cannot be reached, or not in time. Every method may be repeated after
// one.
type DeliveryQueue interface {
	// Open checks that the queue is of the number of shards, which is fixed by the
	// host that opens it first, and that this implementation can read it.
	Open(ctx context.Context, shards int) error

	// Enqueue adds notifications to backlogs, as durably as the queue is configured,
	// with a result for each batch. After an error, some batches may have been added.
	Enqueue(ctx context.Context, batches []DeliveryBatch) []Result[Enqueued]

	// Claim claims backlogs that are due, the longest due first, at most as many.
	Claim(ctx context.Context, most int, lease time.Duration) (Claimed, error)

	// Read returns the oldest notifications of a claimed backlog.
	Read(ctx context.Context, c Claim, most int) ([]Notification, error)

	// Complete removes a notification that is one of the first two of a claimed
	// backlog, and replaces the trouble. It returns how many are left. An id that is
	// not there is no error. A backlog without notifications ends, with its claim.
	Complete(ctx context.Context, c Claim, id, trouble string) (left int, err error)

	// Postpone ends a claim, and has the backlog due after delay. It replaces the
	// trouble, unless it is nil.
	Postpone(ctx context.Context, c Claim, delay time.Duration, trouble *string) error

	// Renew has a claim lapse later by the duration. The claim that it returns
	// takes the place of c.
	Renew(ctx context.Context, c Claim, by time.Duration) (Claim, error)

	// Drop ends a claimed backlog with all its notifications, and returns how many
	// these were.
	Drop(ctx context.Context, c Claim) (dropped int, err error)

	// Backlogs calls visit for the backlogs of a shard until it returns false. Those
	// that change meanwhile may be missing or come twice. It is for tools.
	Backlogs(ctx context.Context, shard int, visit func(Backlog) bool) error

	// HeldGateways returns the gateways, by name, that operators want nothing sent to.
	HeldGateways(ctx context.Context) ([]string, error)
}

// Target names a backlog.
type Target struct {
	Shard int
	Name  string // [A-Za-z0-9_-], at most 64 bytes
}

// Priority says which notifications of a backlog that is too long go first.
type Priority byte

// The priorities, the most important first.
const (
	HighPriority Priority = 'h'
	LowPriority  Priority = 'l'

	// CountsOnly is for counts without an event. A backlog has one at most that is
	// not under way, and only as its last notification.
	CountsOnly Priority = 'c'
)

// Notification is a notification of a backlog.
type Notification struct {
	ID       string // 16 bytes of [A-Za-z0-9_-]; a backlog has each once
	Priority Priority
	Room     string // 8 bytes; tells rooms of one backlog from each other
	Meta     string // small, kept in any case, without a byte 0
	Text     string // what may be large
}

// DeliveryBatch is what [DeliveryQueue.Enqueue] adds to backlogs of one shard.
type DeliveryBatch struct {
	Shard int

	// Key names the batch. Another one of the key in the window is not added.
	Key    string
	Window time.Duration

	// Of is the claim of the backlog [FanOut] from whose first notification the
	// batch is made, the zero Claim if it is none. Then From and To are how much of
	// that was made before, and will have been after the batch; both are checked,
	// and the Key is not.
	Of       Claim
	From, To int

	// Lease is for how long those backlogs are claimed that the batch begins, if
	// their Addition asks for it.
	Lease time.Duration

	MaxBacklog   int // notifications of a backlog; somewhat more may be kept for a while
	MaxUserBytes int // texts of a user that wait behind others; above it they are left out

	Additions []Addition // of different targets
}

// Addition is a notification to be added to a backlog.
type Addition struct {
	Target       string // its name
	User         string // a digest of the user whose bytes are counted, 8 bytes
	Notification Notification

	Claim  bool          // the backlog, if this begins it
	Delay  time.Duration // the backlog is due after it, if this begins it and does not claim it
	Urgent bool          // a backlog that is postponed is due at once

	// Generation is of the pusher. A backlog whose trouble begins with the decimal
	// number of an earlier one is due at once, as if it had no trouble.
	Generation int64
}

// FanOut is the name of the backlog of a shard that keeps what is to be added to
// others later. While a shard has it, batches that are not made from it are not
// added, unless they are for it.
const FanOut = "fanout"

// Enqueued is what became of a batch.
type Enqueued struct {
	// Again is set if it was added before, Behind if it was not added because of a
	// backlog [FanOut], and Full if that has no room.
	Again, Behind, Full bool

	// Claims are those of the additions whose backlogs are claimed, by their place;
	// the zero Claim for others.
	Claims []Claim

	Coalesced int // notifications that were dropped, where a backlog was too long
	Due       int // backlogs of the shard that are due and not claimed; only with Of
}

// Claim is the right to send a backlog's notifications, until it lapses.
type Claim struct {
	Target Target
	Token  int64 // 0 is no claim
}

// Claimed is what [DeliveryQueue.Claim] has claimed.
type Claimed struct {
	Backlogs []Backlog
	More     bool          // there may be more that are due
	Oldest   time.Duration // for how long the backlog had been due that was due the longest
}

// Backlog is a backlog without the texts of its notifications.
type Backlog struct {
	Claim   Claim // the zero Token if nobody has claimed it
	Waiting int   // notifications
	First   Notification
	Trouble string    // what was kept of the last attempts; see [DeliveryQueue.Postpone]
	Due     time.Time // when it is to be tried, or when its claim lapses
}

// ErrFenced is for a host whose claim has lapsed, so that another may have it.
var ErrFenced = fault.New(fault.Unavailable, "The server cannot reach its storage, try again later.")
