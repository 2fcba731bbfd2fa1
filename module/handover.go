package module

import (
	"context"

	"github.com/pushfx/pushfx/module/match"
	"github.com/pushfx/pushfx/module/mxid"
)

// EventService hands new events over: one call counts an event, says when syncs may show it,
// notifies, and updates the badges of users who have read by it. Package handover has the
// module's implementation; a host may wrap or replace it. Without an [UnreadService] nothing
// is counted.
type EventService interface {
	// HandOver hands an event over. Rest is empty at the first try, and then what the last try
	// has returned: a repetition does only this. If nothing is left, the returned Rest is
	// empty, and the host removes the event from its outbox. Otherwise the host stores the
	// Rest, and any host repeats the call later. After a crash it is repeated with the Rest
	// that was stored last, with the same result. Two hosts may call it at once. Do not
	// repeat it for an event that was redacted meanwhile: after Forget, an event can count
	// again.
	//
	// Shown says which users may see the event from now on. It is called at the first try
	// alone, in one goroutine, before HandOver returns, with each user of the event once:
	// Members, Others, Sender and Changed. It is called when the counts of the users are
	// stored, or after a second without them, or if they cannot be stored now. Then syncs show
	// the event without its count, until a repetition has stored it. After a crash, a try
	// with an empty Rest calls it again. Shown may be nil.
	//
	// HandOver waits neither longer than a second for counts before it notifies, nor for users
	// whose storage is away. It returns when all that it began has ended, within the timeouts
	// of the storage. For a user, notifications have the order of the calls, so hand over the
	// events of a room one after the other, and rooms side by side. A repetition may come after
	// later events.
	//
	// The error is for the log. If somebody is left, it has a [LeftError] with these users. What a
	// repetition cannot help is not left: an event that is refused ([IsPermanent]), invalid users,
	// unreadable data. When ctx ends, what was not done is left. After an error with the kind
	// [fault.Database] the Rest cannot be read: it is returned as it is, and nothing was done. If
	// another version of the module has written it, [fault.IsOtherVersion] tells.
	HandOver(ctx context.Context, e NewEvent, rest Rest, shown func(users []mxid.UserID)) (Rest, error)
}

// NewEvent is an event to hand over, with its users. All of them are local users.
type NewEvent struct {
	Event // Position is required for counts. An empty Thread is [MainThread].

	// Sender has read the thread by sending the event, and is not notified. It is empty for a
	// user of another server.
	Sender mxid.UserID

	// Members are the users whose push rules decide; see module/delivery/README.md, "Whom to
	// give". They were members at the event. At a repetition, pass those who still are: a user
	// who has left the room, or began to ignore the sender, gets nothing more.
	Members []match.Member

	// Others see the event without being notified, such as members who ignore the sender.
	Others []mxid.UserID

	// Changed is the user who joins or leaves by the event, is kicked or banned, or rejects an
	// invite, and so has read the room up to it. It is empty for all other events, and invites.
	Changed mxid.UserID
}

// Rest is the undone part of an event after [EventService.HandOver]: which of its steps, for
// which users. It is JSON, and hardly longer than the ids of the event's users. The host
// stores it as it is. This version and the next one read it, on any host. It is empty before
// the first try, and when nothing is left.
type Rest string
