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
	// For after a read receipt. It is lost if the host dies in between.
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
	Hold(ctx context.Context, devices []UserDevice) []time.Duration
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
	Rejected   []string      // pushkeys, of a 200
	Malformed  bool          // a 200 whose body is no JSON object with a list "rejected", or none
	RetryAfter time.Duration // how long to wait before the next request; 0 if it does not say
}

// DeliveryQueue keeps what was handed over until it is delivered: a log for each
// of a fixed number of shards, and for each shard the state of the host that owns
// it. Users are in the shard that package delivery computes of their id. Package
// queuetest holds the contract as tests that any implementation can run.
//
// A shard has at most one owner: who holds its lease. Leases end by the clock of
// the queue, whatever the hosts' clocks say, and each taking of one has a greater
// epoch, which fences what former owners still try to write.
//
// Errors: [ErrFenced] where said; [Unavailable] when the queue cannot be reached,
// or not in time. Every method may be repeated after one.
type DeliveryQueue interface {
	// Open checks that the queue is of the number of shards, which is fixed by who
	// opens it first, and that this implementation can read it.
	Open(ctx context.Context, shards int) error

	// Append adds an entry to the logs of shards, as durably as the queue is
	// configured. An entry whose key was added to a shard in the window is not
	// again. After an error some of them may have been added.
	Append(ctx context.Context, key string, window time.Duration, entries map[int][]byte) error

	// Join says that a host is alive for a while, and returns all that are, this
	// one included, in the order of their names. It is for spreading shards over
	// hosts; safety does not depend on it. Leave takes a host back.
	Join(ctx context.Context, host string, lasts time.Duration) ([]string, error)
	Leave(ctx context.Context, host string) error

	// Acquire takes the leases of shards for a host where nobody holds them, and
	// renews those that it holds, with a result for each. A lease is held from
	// before the call for as long as it lasts; who asks again in this time keeps
	// its epoch. Release gives one back; it is no error if it is another's.
	Acquire(ctx context.Context, host string, lasts time.Duration, shards []int) map[int]Result[Lease]
	Release(ctx context.Context, host string, shard int, epoch int64) error

	// Restore returns what the last checkpoint of a shard kept.
	Restore(ctx context.Context, shard int) (Checkpointed, error)

	// Read returns up to limit entries of a shard's log after a position, the empty
	// one for all, in the order in which they were added.
	Read(ctx context.Context, shard int, after string, limit int) ([]LogEntry, error)

	// Checkpoint keeps the owner's progress in shards, of each all of it or nothing,
	// as durably as the queue is configured. It returns a result for each shard, nil
	// if it was kept. With an epoch that is not the last it changes nothing, and the
	// result is [ErrFenced]. A progress that has nothing but Done may be kept with any
	// epoch: entries are done whoever owns the shard. An owner makes one at a time for
	// a shard, all on one DeliveryQueue: one of which the answer got lost has no effect
	// after the next, but that its entries are dropped.
	Checkpoint(ctx context.Context, progress map[int]Progress) map[int]error

	// Instruct has the owners of shards do what operators want, by shard, and returns
	// an answer or an error for each. The queue does not interpret either. An owner
	// gets an instruction with its lease until it has answered; one that nobody has
	// answered when ctx ends is taken back, with [ErrNotAnswered]. Then it may still
	// have been done.
	Instruct(ctx context.Context, instructions map[int][]byte) map[int]Result[[]byte]

	// ShareGateways tells the other hosts how gateways have changed at this one, by
	// their names, and returns what is known of those that are not open, whoever
	// told it. What is told lapses after lasts, by the clock of the queue, unless it
	// is told again. An implementation may know of a limited number; hosts act on
	// their own for the others.
	ShareGateways(ctx context.Context, changes map[string]GatewayChange, lasts time.Duration) (map[string]SharedGateway, error)

	// Watch calls appended, for entries that any host adds, with their shard, until
	// ctx ends or some may have been missed. It calls watching, once, when it will
	// hear of every later one. It is a hint that saves time: a lease tells as well.
	Watch(ctx context.Context, watching func(), appended func(shard int)) error
}

// Lease is the ownership of a shard.
type Lease struct {
	Held  bool   // by the host that asked; else the rest says nothing
	Epoch int64  // grows with each taking
	Last  string // position of the last entry of the log, empty if it has none

	// Evicted is how many entries the log has dropped so far, the oldest ones,
	// since too many waited.
	Evicted int64

	// Instructions are those that wait for Progress.Answers, by their ids.
	Instructions map[string][]byte
}

// LogEntry is an entry in the log of a shard.
type LogEntry struct {
	Position string    // opaque; see [DeliveryQueue.Read]
	Added    time.Time // by the clock of the queue
	Data     string
}

// Progress is what an owner has achieved since its last checkpoint.
type Progress struct {
	Epoch int64 // of the owner's lease

	// Done are the positions of entries of which nothing is left to do in the log.
	// The queue drops them.
	Done []string

	// Finished is what is done of the other entries. The queue does not interpret it.
	// It replaces what was kept before; nil leaves that.
	Finished []byte

	// Held changes what is kept of single pushers, by their digests: nil removes
	// it.
	Held map[string][]byte

	// Answers are those to Lease.Instructions, by their ids. One to an instruction
	// that was answered, or taken back, is ignored.
	Answers map[string][]byte
}

// Checkpointed is what a shard's checkpoints have kept.
type Checkpointed struct {
	Finished []byte
	Held     map[string][]byte
}

// ErrNotAnswered is for an instruction that no owner has answered in time.
var ErrNotAnswered = fault.New(fault.Unavailable, "No host has answered in time.")

// GatewayState is how hosts treat a push gateway.
type GatewayState string

// The states. Of two that hosts tell of one gateway the later in this list is the
// one that holds.
const (
	GatewayOpen    GatewayState = "open"
	GatewayClosed  GatewayState = "closed"  // it fails, and is only tried from time to time
	GatewayWaiting GatewayState = "waiting" // it has named a time before which it is to be sent nothing
	GatewayHeld    GatewayState = "held"    // an operator has it sent nothing; no host tells or changes it
)

// GatewayChange is what a host tells of a gateway.
type GatewayChange struct {
	// State is GatewayClosed, GatewayWaiting, or GatewayOpen, which ends what was
	// told of it unless a time that it has named is not over. The empty one has what
	// is known, if anything, last longer.
	State  GatewayState
	Wait   time.Duration // of GatewayWaiting: from now
	Status int           // of the last answer; 0 for none

	// Retry ends a time that it has named first: an operator has it tried.
	Retry bool
}

// SharedGateway is what is known of a gateway that is not open. Times are by the
// clock of the queue.
type SharedGateway struct {
	State  GatewayState
	Since  time.Time // when it was first told not to be open
	Until  time.Time // of GatewayWaiting
	Status int       // of the last answer before it was told; 0 for none
}

// ErrFenced is for an owner whose shard another host has taken.
var ErrFenced = fault.New(fault.Unavailable, "The server cannot reach its storage, try again later.")
