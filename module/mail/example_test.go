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
	c.SMTP.URL = os.Getenv("MAIL_URL") // smtp+starttls://user:password@mail.example.org
	c.SMTP.From = "Example Chat <push@example.org>"
	c.SMTP.EnvelopeFrom = "bounces@example.org"
	c.Mail.AppName = "Example Chat"
	c.Mail.ClientURL = "https://app.example.org/#/room/"
	c.Mail.PublicURL = "https://matrix.example.org"
	c.Mail.Key = os.Getenv("MAIL_KEY")
	c.Mail.Templates = os.DirFS("mails") // de.txt and de.html; optional
	c.PusherPolicy.Email = users.owns    // func(ctx, user, address) (bool, error)
	return c
}

// Mail is configured beside the rest. Without a server, nothing is sent.
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
