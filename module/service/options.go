package service

import (
	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/mail"
	"github.com/pushfx/pushfx/module/observe"
	"github.com/pushfx/pushfx/module/pusher"
	"github.com/pushfx/pushfx/module/pushrule"
)

// Options are the options of a [Service].
type Options struct {
	Defaults pushrule.Defaults // default rules; the zero value has those of the specification
	Limits   pushrule.Limits   // limits on users' push rules
	Policy   pusher.Policy     // rules for pushers
	Accounts module.Accounts   // optional

	// Observer gets all operations of the stores, created and repaired rule sets, each
	// [ImportRefused], pushers that are gone, and pushkeys that cannot be read. It may be nil.
	Observer observe.Observer

	// Mail checks the tokens of mails. Nil: none is valid.
	Mail *mail.Tokens

	// Activation is for kinds of pushers that need it. It may be nil.
	Activation Activation

	// ImportSource may be nil.
	ImportSource module.ImportSource
}
