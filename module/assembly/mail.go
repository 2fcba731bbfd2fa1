package assembly

import (
	"errors"
	"reflect"

	"github.com/pushfx/pushfx/module"
	mailchannel "github.com/pushfx/pushfx/module/delivery/channel/mail"
	"github.com/pushfx/pushfx/module/mail"
	"github.com/pushfx/pushfx/module/mail/smtp"
)

// Mail configures mails to pushers of kind email. A host that sends them also needs
// Config.PusherPolicy.Email, and delivery. A field without an effect stops the start.
type Mail struct {
	// Server takes the mails. Without its URL, and without a [module.Mailer] of its own, this host
	// sends no mail.
	Server smtp.Config

	// Texts are the texts of mails. With its Key, this host serves the page that stops mails, also if
	// it sends none.
	Texts mail.Config

	// Sending says when mails are sent. Only for hosts that send mail.
	Sending mailchannel.Config
}

// DefaultMail returns the defaults, without a server.
func DefaultMail() Mail {
	return Mail{Server: smtp.DefaultConfig(), Sending: mailchannel.DefaultConfig()}
}

// Validate joins the errors of all invalid fields.
func (m Mail) Validate() error {
	err := errors.Join(below("Server.", m.Server.Validate()), below("Sending.", m.Sending.Validate()))
	if m.hasTexts() {
		err = errors.Join(err, below("Texts.", m.Texts.Validate()))
	}
	return err
}

// hasServer reports whether this host sends mails by a server of its config.
func (m Mail) hasServer() bool { return m.Server.URL != "" }

// hasTexts reports whether this host can write mails.
func (m Mail) hasTexts() bool { return m.hasServer() || !reflect.ValueOf(m.Texts).IsZero() }

func (c Config) validateMail() error {
	err := below("Config.Mail.", c.Mail.Validate())
	if c.Mail.hasServer() {
		err = errors.Join(err, c.validateSender())
	}
	return err
}

// validateSender joins the errors about what a host needs that sends mails.
func (c Config) validateSender() error {
	err := below("Config.Mail.Sending.", c.Mail.Sending.ValidateAge(c.Delivery.MaxAge))
	if c.PusherPolicy.Email == nil {
		err = errors.Join(err, errMailWithoutEmail)
	}
	return err
}

var (
	errMailWithoutEmail    = errors.New("Config.PusherPolicy.Email is nil, and a host that sends mails needs it: set it to a function that confirms that an address is the user's")
	errMailWithoutDelivery = errors.New("pushfx: Config.Mail.Server and .Sending need delivery: include pushfx.Delivery beside pushfx.Module, or set Options.Delivery")

	errServerBesideMailer    = errors.New("pushfx: Config.Mail.Server has no effect beside the host's own Mailer: leave Server as in DefaultConfig, or provide no Mailer")
	errTextsBesideComposer   = errors.New("pushfx: Config.Mail.Texts.Templates and .ClientURL have no effect beside the host's own MailComposer: leave them empty, or provide none")
	errMailerWithoutTexts    = errors.New("pushfx: a Mailer sends what is written by Config.Mail.Texts or by a MailComposer: set Texts, or provide a MailComposer")
	errSendingWithoutMailer  = errors.New("pushfx: Config.Mail.Sending has no effect on a host that sends no mail: set Config.Mail.Server.URL, or provide a Mailer")
	errComposerWithoutMailer = errors.New("pushfx: a MailComposer has no effect on a host that sends no mail: set Config.Mail.Server.URL, or provide a Mailer")
)

// Mailer returns nil if the host has no mail server.
func (b *Builder) Mailer() (module.Mailer, error) {
	if !b.host.Config.Mail.hasServer() {
		return nil, nil
	}
	var err error
	b.ownMailer, err = smtp.New(b.host.Config.Mail.Server)
	return b.ownMailer, err
}

// MailComposer returns nil if the host configures no texts.
func (b *Builder) MailComposer() (module.MailComposer, error) {
	if !b.host.Config.Mail.hasTexts() {
		return nil, nil
	}
	var err error
	b.ownComposer, err = mail.NewComposer(b.host.Config.Mail.Texts)
	return b.ownComposer, err
}

// checkMail joins the errors about parts and fields that do not fit together. The module's own parts
// are used if they have been built: a host may have wrapped them.
func (b *Builder) checkMail(mailer module.Mailer, composer module.MailComposer) error {
	var faults []error
	refuse := func(is bool, err error) {
		if is {
			faults = append(faults, err)
		}
	}
	m, isOwnComposer := b.host.Config.Mail, composer != nil && b.ownComposer == nil
	refuse(isOwnComposer && (m.Texts.Templates != nil || m.Texts.ClientURL != ""), errTextsBesideComposer)
	if mailer == nil {
		refuse(isOwnComposer, errComposerWithoutMailer)
		refuse(m.Sending != mailchannel.DefaultConfig(), errSendingWithoutMailer)
		return errors.Join(faults...)
	}
	refuse(m.hasServer() && b.ownMailer == nil, errServerBesideMailer)
	refuse(composer == nil, errMailerWithoutTexts)
	return errors.Join(append(faults, below("pushfx: ", b.host.Config.validateSender()))...)
}
