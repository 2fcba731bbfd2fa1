package module

import (
	"context"
	"time"

	"github.com/pushfx/pushfx/module/mxid"
)

// This file has the interfaces of mail: pushers of kind email (Matrix specification, Push
// Notifications, "POST /_matrix/client/v3/pushers/set"). A host without mail needs none of them.

// Mailer sends mails. Package smtp, below module/mail, has the module's implementation; a host
// may wrap or replace it. It is called by many goroutines at once.
type Mailer interface {
	// SendMail sends a mail, and returns nil when a server has accepted it. It returns in time
	// when ctx ends. Errors: a [MailError]; any other error is temporary. Errors are logged, so they
	// have no address and no text of the mail.
	SendMail(ctx context.Context, mail Mail) error
}

// MailError says what became of a mail that was not accepted.
type MailError struct {
	// Outcome is what the server's answer is about. If it is empty, the mail has failed.
	Outcome Outcome

	// RetryAfter is how long to wait at least, for [Throttled] and [Busy].
	RetryAfter time.Duration

	// Status is the code of the server's answer, such as 550; 0 without an answer.
	Status int

	Err error // the cause
}

func (e *MailError) Error() string { return e.Err.Error() }

func (e *MailError) Unwrap() error { return e.Err }

// Mail is a mail to one recipient. The mailer adds From, Date and the rest of the headers.
type Mail struct {
	To string // a single address without a name, which the host has confirmed

	// ID is the part of the Message-ID before the @. A mail that is sent again has the same.
	ID string

	// Token is in the envelope's sender, so that a mail that comes back names its address; see
	// [HostService.MailBounced]. It has letters, digits, - and _ only. The [MailComposer] makes it.
	Token string

	Subject string // one line
	Text    string
	HTML    string

	// Unsubscribe is the address that stops further mails (RFC 8058), empty for none.
	Unsubscribe string
}

// MailComposer writes mails. Package mail has the module's implementation; a host may replace
// it. It is called by many goroutines at once, and does no I/O.
type MailComposer interface {
	ComposeMail(digest MailDigest) (Mail, error)
}

// MailDigest is what a mail is about: the events that notify the user and that the user has not
// read. All names and contents are of other users.
type MailDigest struct {
	User mxid.UserID
	To   string // the address
	Lang string // of the pusher: a tag as "en" or "pt-BR"

	ID string // see [Mail]

	// Rooms are in the order of their newest events, the newest first. They have the newest events
	// up to a limit.
	Rooms []MailRoom

	Events int // of all rooms, with those that Rooms does not show
	Hidden int // rooms that are not in Rooms
}

// MailRoom is a room of a [MailDigest].
type MailRoom struct {
	ID    string
	Name  string // as the user sees it, empty if unknown
	Alias string

	Events []MailEvent // oldest first
	Hidden int         // earlier events that Events does not show
}

// MailEvent is an event of a [MailRoom].
type MailEvent struct {
	ID         string
	Type       string // empty if only the id is known
	Sender     mxid.UserID
	SenderName string // empty if unknown
	Content    string // JSON object; empty if it is not known, too large or not to be shown
	Thread     string // the id of the thread's root, empty for none
	Highlight  bool   // a push rule of the user highlights it: a mention, a keyword, a room upgrade
	Invites    bool   // it invites the user to the room
	Time       time.Time

	// MentionsUser and MentionsRoom say what an event with Highlight mentions. Both are false
	// for a keyword, and if its content is not known.
	MentionsUser, MentionsRoom bool
}
