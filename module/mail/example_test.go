package mail_test

import (
	"context"
	"log"
	"os"

	"go.uber.org/zap"

	"github.com/pushfx/pushfx"
	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/mxid"
)

// accounts is the host's own database.
type accounts struct{}

func (accounts) owns(context.Context, mxid.UserID, string) (bool, error) { return true, nil }

func configure(c pushfx.Config, users accounts) pushfx.Config {
	c.Mail.Server.URL = os.Getenv("MAIL_URL") // smtp+starttls://user:password@mail.example.org
	c.Mail.Server.From = "Example Chat <push@example.org>"
	c.Mail.Server.EnvelopeFrom = "bounces@example.org"
	c.Mail.Texts.AppName = "Example Chat"
	c.Mail.Texts.ClientURL = "https://app.example.org/#/room/"
	c.Mail.Texts.PublicURL = "https://matrix.example.org"
	c.Mail.Texts.Key = os.Getenv("MAIL_KEY")
	c.Mail.Texts.Templates = os.DirFS("mails") // de.txt and de.html; optional
	c.PusherPolicy.Email = users.owns          // func(ctx, user, address) (bool, error)
	return c
}

// Mail is configured beside the rest. A host that sends none sets neither Mail.Server nor Mail.Sending.
func Example() {
	cfg := configure(pushfx.DefaultConfig(), accounts{})
	if _, err := pushfx.New(nil, cfg, pushfx.Options{Log: zap.NewNop(), Delivery: &pushfx.DeliveryOptions{}}); err != nil {
		log.Print(err)
	}
}

// mailCameBack is called for the report of a failed mail: an address as bounces+TOKEN@example.org.
func mailCameBack(ctx context.Context, host module.HostService, token, status string) error {
	switch status { // RFC 3463: no such address, or no longer in use
	case "5.1.1", "5.1.2", "5.1.3", "5.1.6", "5.1.10", "5.2.1":
		return host.MailBounced(ctx, token)
	}
	return nil
}

var _ = mailCameBack
