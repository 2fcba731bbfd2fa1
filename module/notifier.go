package module

import (
	"context"
	"time"

	"github.com/pushfx/pushfx/module/fault"
	"github.com/pushfx/pushfx/module/match"
	"github.com/pushfx/pushfx/module/mxid"
)

// This file has the interfaces of delivery, which sends notifications of new events to
// push gateways. A host without delivery needs none of them.

// Notifier sends notifications of new events to push gateways. Package delivery has
// the module's implementation; a host may wrap or replace it. [EventService] makes its calls
// for an event.
type Notifier interface {
	// Decide evaluates push rules for members of the event's room, and stores nothing. A
	// member without Rules gets the stored ones. Hosts may use the result for their own
	// counts, too. The members and events to pass are listed in module/delivery/README.md,
	// "Whom to give".
	//
	// Errors: [fault.InvalidParam] for an event that is not a JSON object, for a user that
	// is not a user id, and for a room without joined members, except at an invite;
	// [Unavailable] if the rules of some members cannot be read now. Then the result has the
	// decisions for the other members. Use them at once, and make the calls for the event
	// again later: repetitions have no effect for members that were notified and counted.
	Decide(ctx context.Context, event Event, members []match.Member) (Decisions, error)

	// Notify stores the notifications of an event. When it returns nil, a running host will send
	// them. It waits as long for replicas or a disk as configured, but not for their
	// confirmation: a notification without it is sent, too. After a [LeftError], call it again with
	// the decisions for its users ([Decisions.Of]): all others have the event. After a crash,
	// call it again with all decisions. If a reply was lost, or the host has crashed, a user
	// may have the event already, and does not get it again for 15 minutes
	// ([RepeatsKeptFor]) or until [RepeatsKept] later notifications of the user. A host may
	// notify the members of a room in several calls. Notifications of a user are sent in the
	// order of the calls, so make the calls for a room one after the other.
	//
	// Notify leaves out users whose pushers or whose waiting notifications cannot be read:
	// a repetition would not help.
	//
	// Errors: [fault.InvalidParam] for an event without event_id or room_id, or
	// that is too large; a [LeftError].
	Notify(ctx context.Context, event Event, decisions Decisions) error

	// UpdateBadges sends unread counts without an event, for example after a read
	// receipt. They are sent some seconds later, once for several calls, and not to a
	// pusher that got the same counts last. When it returns nil, a running host will send
	// them. Errors: a [LeftError].
	UpdateBadges(ctx context.Context, users ...mxid.UserID) error
}

// Event is a new event, with the names that notifications have.
type Event struct {
	JSON string // as clients see it, with event_id and room_id

	RoomName   string // empty if the room has none
	RoomAlias  string
	SenderName string     // the sender's display name in the room
	Room       match.Room // MemberCount is required; some rules need Power

	// Related is the event that "m.relates_to" refers to with "m.reference", zero if unknown.
	// An encrypted event that refers to its sender's membership of a call is a call.
	Related RelatedEvent

	// Position and Thread are the event's; see [Place]. Without them, the notification is
	// sent even if an [UnreadService] counts the event as read.
	Position int64
	Thread   string

	// Expires is when notifications of the event become useless. If it is zero, the
	// configuration decides. A call that rings no more is an ordinary notification.
	Expires time.Time
}

// RelatedEvent is an event that another one refers to.
type RelatedEvent struct {
	Type   string
	Sender mxid.UserID
}

// Decision is the result of a user's push rules for an event.
type Decision struct {
	User   mxid.UserID
	Result match.Result

	// RoomName is the name that this user sees, for a room without a name: clients name
	// it after the other members. If it is empty, Event.RoomName is used.
	RoomName string

	// Invite is set by Decide: the event invites the user to its room. [UnreadService] bounds
	// what invites take of a user's record.
	Invite bool
}

// Decisions are the decisions for members of a room. [Notifier.Notify] ignores
// decisions with a Result that does not notify.
type Decisions []Decision

// Unread returns unread counts and read events. It is optional: without it notifications
// have no counts, and read events are notified.
type Unread interface {
	// States returns a result for each event, in the order of the events. The module calls
	// it right before it sends notifications, in batches. An event without an EventID asks
	// for the user's counts only. After an error, the notification is sent without counts.
	// An error for a user is in the results of this user only.
	States(ctx context.Context, events []UserEvent) []Result[UnreadState]
}

// UnreadState is what a user's read marks and counts say right before a notification is
// sent.
type UnreadState struct {
	// IsRead means that the event needs no notification any more: the user has read it or
	// left the room, or has joined or declined the call, or it was redacted, or the user ignores
	// its sender by now, which only the host knows. It follows from read marks, not from counts: a
	// lost count must not lose a notification.
	IsRead bool

	Counts *Counts // nil for a notification without counts
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
	// a call is not delayed while it rings.
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
	// Post sends a request to a pusher's URL. It returns the answer, or an error if there was none.
	// It returns when ctx ends.
	Post(ctx context.Context, request GatewayRequest) (GatewayAnswer, error)
}

// GatewayRequest is a POST to a push gateway.
type GatewayRequest struct {
	URL    string
	Header map[string]string // with Content-Type; not to be changed
	Body   []byte

	// AnyPath is set for web push: the user chose the path, too, which could be any of a service in
	// the host's network. So pusher.Policy.AllowedPrefixes are not for it.
	AnyPath bool
}

// GatewayAnswer is the answer of a push gateway.
type GatewayAnswer struct {
	Status     int           // of HTTP
	Rejected   []string      // pushkeys, of a 2xx
	RetryAfter time.Duration // the header Retry-After; 0 without it
}

// DeliveryQueue stores notifications until they are delivered. It and the types of its methods may
// change at any time. Each user has a log of
// notifications, which are numbered, and each pusher with something to send has a place in
// it: the pusher has the notifications from this number on before it, but for those that Cut
// took from it. A host claims a pusher before it sends. A claim that is not renewed lapses, and then any host can claim the
// pusher again. Package queuetest has the contract as tests for any implementation.
//
// A gate names the push gateway and the app of a pusher. The queue lists the users with due
// pushers by gate, so that a host can pass over a failing gateway. The list may name a user
// with nothing to send. It never lacks a user with a pusher that is due and unclaimed, or
// whose claim has lapsed, once Append has returned.
//
// An SQL queue has two tables. One has a row for each notification. The other has a row for
// each pusher with something to send: user, pusher, gate, place, cuts, due, nonce, trouble. Look
// and Claim are one statement on it: SELECT ... WHERE due <= now() FOR UPDATE SKIP LOCKED.
//
// The queue has its own clock, independent of the hosts' clocks. It does not interpret the
// Text and Meta of notifications and the Text of Trouble.
//
// Errors: [ErrFenced] if a claim has lapsed or another host has it; [Unavailable] if
// the queue cannot be reached in time. After Unavailable, every method may be repeated. All
// methods are safe for concurrent use, but each Claim is used by one caller at a time.
type DeliveryQueue interface {
	// Open checks that the queue has a format that the implementation can read. The first
	// host that opens a queue stores the format.
	Open(ctx context.Context) error

	// Partition returns the users of each partition, who are stored together: when their storage is
	// away, the others' is not. So a caller with many users makes its calls for each partition,
	// side by side.
	Partition(ctx context.Context, users []mxid.UserID) [][]mxid.UserID

	// Append adds notifications to the logs of different users, as durably as the queue is
	// configured, and lists the users. It returns a result for each request. After an error,
	// the notification may have been added. An error that wraps [fault.ErrNotConfirmed] has a
	// value: the notification was added, but not confirmed by replicas or a disk.
	// [fault.Database] is the error for a log that cannot be read.
	Append(ctx context.Context, requests []AppendRequest) []Result[Appended]

	// Look returns users with due pushers, about in the order of their due times, and lists
	// them again after the lease, so that no other host gets them meanwhile. With many gates
	// or a storage that is away, it returns some of them; a few calls together return all.
	Look(ctx context.Context, look Look) (Looked, error)

	// Claim claims due pushers of users that Look returned. It returns a result for each
	// request.
	Claim(ctx context.Context, requests []ClaimRequest) []Result[Claimed]

	// Read returns at most limit notifications that a claimed pusher has before it, and the
	// end of the log: the number of the next notification to be appended.
	Read(ctx context.Context, c *Claim, limit int) (all []Notification, end int64, err error)

	// Complete moves a claimed pusher to a later place, and replaces its trouble; in its present
	// place, where something waits, it only replaces the trouble. It returns
	// how many numbers are left up to the end of the log; Cut may have taken some of them. At
	// the end, the pusher has nothing to send any more, and its claim ends. To drop what a
	// pusher has to send, complete it up to an end that was read before.
	Complete(ctx context.Context, c *Claim, d Done) (left int, err error)

	// Sent returns the text that Complete last stored for a pusher, with or without anything
	// to send. The text is empty before Complete, and at the latest a day after it.
	Sent(ctx context.Context, user mxid.UserID, pusher string) (string, error)

	// Postpone ends a claim: the pusher is due after the delay, at c.Gate, which the caller may
	// have changed since the claim. With fails, the pusher's user is listed as
	// [DueUser.Fails] at the gate from now on.
	Postpone(ctx context.Context, c *Claim, delay time.Duration, trouble Trouble, fails bool) error

	// Renew extends a claim to a lease from now. For fails, see Postpone.
	Renew(ctx context.Context, c *Claim, lease time.Duration, fails bool) error

	// Log returns the log of a user, without claiming anything. It is for tools, for long logs,
	// and for pushers that the user has no more.
	Log(ctx context.Context, user mxid.UserID) (Log, error)

	// Cut takes notifications from pushers: of log.Notifications, a pusher of log has what its
	// Waiting says. Then it removes the ones that no pusher has. Log is a result of Log; the
	// caller may have shortened each Waiting, but its last notification stays. If another Cut
	// came meanwhile, done is false, and nothing changes.
	Cut(ctx context.Context, user mxid.UserID, log Log) (done bool, err error)

	// Forget removes the log of a user.
	Forget(ctx context.Context, user mxid.UserID) error

	// Summary describes what waits, claimed or not, for metrics. Of several hosts that call it
	// every 15 s, it may do so for one; see [QueueSummary.Elsewhere]. Its cost is bounded: with
	// more than 1,000 users, or hundreds of gates, it is an estimate. It leaves out a part of
	// the queue that cannot be read; see [QueueSummary.Refused].
	// IsAlone reports whether a pusher at a gate waits for a reason of its own, which is not the
	// gateway's. A pusher at a gate without a name is left out.
	Summary(ctx context.Context, isAlone func(gate string, t Trouble) bool) (QueueSummary, error)
}

// A repetition of [Notifier.Notify] after a lost reply has no effect for a user for
// RepeatsKeptFor, or until RepeatsKept later notifications.
const (
	RepeatsKept    = 64
	RepeatsKeptFor = 15 * time.Minute
)

// Priority decides which notifications a long log drops first.
type Priority byte

// The priorities, the most important first.
const (
	HighPriority Priority = 'h'
	LowPriority  Priority = 'l'

	// CountsOnly is for counts without an event. Append adds none if the last notification of
	// the log has counts only, and no pusher with a claim is at it.
	CountsOnly Priority = 'c'
)

// MaxText bounds the text of a [Notification], in bytes.
const MaxText = 999_999

// Notification is an entry of a user's log.
type Notification struct {
	Number   int64  // the queue sets it
	ID       string // 8 bytes of [A-Za-z0-9_-]
	Priority Priority
	Room     string    // 8 bytes of [A-Za-z0-9_-]; identifies the room within the log
	Added    time.Time // by the clock of the queue; stored in milliseconds
	Meta     string    // small, always stored, without a line feed
	Text     string    // may be large; see AppendRequest.MaxUserBytes
}

// AppendRequest is a notification for a user; see [DeliveryQueue.Append].
type AppendRequest struct {
	User         mxid.UserID
	Notification Notification
	Pushers      []Recipient // at least one; pushers without anything to send begin at the notification

	Urgent    bool          // postponed pushers are due at once
	Lease     time.Duration // of claims
	MaxClaims int           // how many pushers to claim at most; see Recipient.Claim

	// MaxUserBytes bounds the texts in the log, in bytes. Beyond it, and always beyond 1 MiB,
	// a notification is stored without its text. A notification at which a pusher begins keeps
	// its text up to 1 MiB.
	MaxUserBytes int
}

// Recipient is a pusher that gets a notification.
type Recipient struct {
	Pusher string // [A-Za-z0-9_-], at most 64 bytes
	Gate   string // at most 999 bytes, without a control character

	// Claim says to claim the pusher if it begins at the notification. Beyond
	// AppendRequest.MaxClaims, it is due at once.
	Claim bool

	// Delay is the time until the pusher is due, if it begins without Claim. A pusher that
	// was never claimed, but waits for its delay, is due after the shortest one: a notification
	// without delay does not wait for counts.
	Delay time.Duration

	// Generation is the pusher's. If the pusher is postponed, and its [Trouble] is of an
	// earlier generation, the queue drops the trouble, and the pusher is due at this gate.
	Generation int64
}

// Appended is the result for an [AppendRequest].
type Appended struct {
	Claims []*Claim // of each recipient, nil for none
	Length int      // notifications in the log, also those that some pushers have passed
	End    int64    // of the log; see [DeliveryQueue.Read]
	Again  bool     // the log has the notification already: it was not added

	Hastened bool // a postponed or delayed pusher is due earlier now
}

// Claim is the right to send what a pusher has to send, until it lapses. The queue's
// methods keep it up to date.
type Claim struct {
	User   mxid.UserID
	Pusher string
	Gate   string // the gate that lists the user for this pusher; see [DeliveryQueue.Postpone]
	Number int64  // the pusher's place: at or before the notification that it sends next
	Nonce  string // identifies the claim
	Fails  bool   // see [DueUser.Fails]; the caller changes it
}

// Trouble describes the last attempts to send. The zero value is none.
type Trouble struct {
	Generation int64 // of the pusher; the queue reads it, see [Recipient]
	Text       string
}

// Done is what [DeliveryQueue.Complete] stores.
type Done struct {
	To      int64 // the pusher's next place, at most the end of the log
	Trouble Trouble
	Sent    string // unless it is empty, the method Sent returns it from now on

	// Answered ends [DueUser.Fails] for the user at the gate.
	Answered bool
}

// Look says what [DeliveryQueue.Look] returns.
type Look struct {
	Limit int // users
	Lease time.Duration

	Gate func(name string) GateLimit
}

// GateLimit is what a look may return of a gate.
type GateLimit struct {
	Most     int  // users; 0 passes over the gate
	Failing  int  // of them, users that fail there; see [DueUser.Fails]
	IsClosed bool // the gateway fails or throttles, so that the host only probes it

	// IsLast says that the host could not reach the gateway lately. Such gates get a quarter of
	// Limit, and what others leave: one user may name any number of them.
	IsLast bool
}

// Looked is the result of [DeliveryQueue.Look]. Users at closed gates have to wait, so they
// count neither for More nor for Late.
type Looked struct {
	Users []DueUser
	More  bool          // more users may be due
	Late  time.Duration // how long the earliest user has been due, or how long a part of the list could not be read
}

// DueUser is a user with due pushers at a gate.
type DueUser struct {
	User mxid.UserID
	Gate string

	// Fails says that the last request for the user at the gate hangs, while others are
	// answered there. A user who was just marked may still be returned without Fails; the
	// [Claim] knows.
	Fails bool
}

// ClaimRequest asks for the due pushers of a user.
type ClaimRequest struct {
	DueUser

	// Pushers are the user's pushers, with their present gates. The queue claims pushers that
	// are at the gate of DueUser, now or when they were stored.
	Pushers []PusherGate

	Lease time.Duration
	Limit int           // pushers to claim, up to 16; at most 1 of a user who fails at the gate; with 0, only looks return the user again
	Rest  time.Duration // for so long looks do not return the user again for what the claim leaves
	Read  int           // notifications to return for each; the queue returns 1 for a pusher with Trouble
}

// PusherGate is a pusher with its gate.
type PusherGate struct{ Pusher, Gate string }

// Claimed is the result for a [ClaimRequest].
type Claimed struct {
	Pushers []ClaimedPusher
	End     int64 // of the log; see [DeliveryQueue.Read]

	// Unknown says that the log has pushers that the request lacks. [DeliveryQueue.Log] names
	// them. Claim them, too: a pusher that the user has no more is completed up to End.
	Unknown bool
}

// ClaimedPusher is a pusher that was claimed.
type ClaimedPusher struct {
	Claim         *Claim
	Trouble       Trouble
	Notifications []Notification // the first ones that it has before it
	Waiting       int            // how many it has before it
}

// Log is what a user has to send.
type Log struct {
	Notifications []Notification // oldest first
	Pushers       []LogPusher
	Bytes         int      // of texts
	Failing       []string // digests of gates at which the user fails; see [DueUser.Fails]
	Cuts          int64    // changes with each Cut
}

// LogPusher is a pusher with something to send.
type LogPusher struct {
	Pusher  string
	Number  int64   // its place
	Waiting []int64 // the numbers of the notifications that it has before it
	Claimed bool
	Due     time.Time // or, if it is claimed, when the claim lapses
	Trouble Trouble
}

// QueueSummary is the result of [DeliveryQueue.Summary].
type QueueSummary struct {
	Notifications int // to send, counted for each pusher

	// Oldest is for how long at least three users have had notifications waiting at the
	// same gate, for the gate with the longest wait; 0 if there is none. Pushers for which
	// isAlone returns true do not count.
	Oldest time.Duration

	// Gates has the number of users that are listed by gate, of at least the 32 gates with the
	// most. Among hundreds of gates, a large one may be missing for some summaries.
	Gates map[string]int

	// Elsewhere says that another host summarizes. All but Refused is zero.
	Elsewhere bool

	// Refused is the error of a part of the queue that could not be read, or that has refused
	// writes for 15 seconds, otherwise nil.
	Refused error
}

// ErrFenced says that the claim has lapsed, and another host may have the pusher.
var ErrFenced = fault.New(fault.Unavailable, "The server cannot reach its storage, try again later.")
