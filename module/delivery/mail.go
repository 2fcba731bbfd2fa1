package delivery

import (
	"context"
	"errors"
	"time"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/pusher"
)

// MailConfig configures mails to pushers of kind email.
type MailConfig struct {
	// Delay is how old an unread notification is before a mail has it. 1 s to 12 h; default
	// 10 min.
	Delay time.Duration

	// Repeat is the time between two mails to a user who has read nothing of the first one. At
	// most 24 h, and at most MaxAge with Delay. Default 23 h.
	Repeat time.Duration

	// MaxEvents bounds the events that a mail shows: the newest ones. A mail counts the others.
	// 1 to 200; default 20.
	MaxEvents int

	// Content is FullContent, the default, or NamesOnly for mails without the content of events.
	// [Config.Content] bounds it, too.
	Content ContentPolicy
}

const maxRepeat = 24 * time.Hour // see module.DeliveryQueue.Sent

var errMailAge = errors.New("Mail.Delay and Mail.Repeat together are above MaxAge")

// MailSeams are the dependencies of mail. All may be called by many goroutines at once.
type MailSeams struct {
	Mailer   module.Mailer
	Composer module.MailComposer

	// IsConfirmed reports whether the host has confirmed that an address is the user's, as
	// [pusher.Policy.Email]. It is called before each mail. If it is not, the pusher is removed;
	// after an error, the mail waits. Nil confirms all addresses.
	IsConfirmed func(ctx context.Context, user mxid.UserID, address string) (bool, error)

	// Token returns [module.Mail.Token] of a pusher. Nil is none.
	Token func(user mxid.UserID, key pusher.Key) string
}
