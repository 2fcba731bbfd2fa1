package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/http"
	"strings"

	"github.com/labstack/echo/v4"

	"github.com/pushfx/pushfx"
	"github.com/pushfx/pushfx/integration/homeserver/inbox"
	"github.com/pushfx/pushfx/integration/homeserver/sessions"
	"github.com/pushfx/pushfx/module/mail"
	"github.com/pushfx/pushfx/module/mxid"
)

// mailDomain is the domain of all addresses of the demo. It is for examples, and no mail server has it.
const mailDomain = "example.org"

// toInbox is the value of -mail for the host's own inbox.
const toInbox = "inbox"

// mailAddress returns the only address of a user.
func mailAddress(user mxid.UserID) string { return sessions.Localpart(user) + "@" + mailDomain }

// confirmAddress is the host's [pusher.Policy.Email].
func confirmAddress(_ context.Context, user mxid.UserID, address string) (bool, error) {
	return address == mailAddress(user), nil
}

// configureMail checks the flags of mail.
func (v flagValues) configureMail(c *pushfx.Config) error {
	if v.mail == "" {
		return nil
	}
	c.PusherPolicy.Email = confirmAddress
	c.Mail.Sending.Delay, c.Mail.Sending.Repeat = v.mailDelay, v.mailRepeat
	if err := c.Mail.Sending.Validate(); err != nil {
		return fmt.Errorf("-mail-delay, -mail-repeat: %w", err)
	}
	key := sha256.Sum256([]byte("pushfx demo " + v.serverName)) // no secret: everyone can act as any user of the demo
	c.Mail.Texts = mail.Config{AppName: "pushfx demo", Key: hex.EncodeToString(key[:]), PublicURL: urlOf(v.listen)}
	c.Mail.Server.URL, c.Mail.Server.From, c.Mail.Server.EnvelopeFrom = v.mail, "pushfx demo <push@"+mailDomain+">", "bounces@"+mailDomain
	if v.mail == toInbox {
		c.Mail.Server.URL = "smtp://127.0.0.1" // the inbox, when it listens
	}
	if err := c.Mail.Server.Validate(); err != nil {
		return fmt.Errorf("-mail: %w", err)
	}
	return nil
}

// openMail opens what mails need before the host starts: the inbox, and a free port, which is in the links of mails. The
// host opens a port with a number when it is ready.
func (c *config) openMail(ctx context.Context) (err error) {
	if c.mail == toInbox {
		if c.inbox, err = inbox.Start(); err != nil {
			return err
		}
		c.module.Mail.Server.URL = "smtp://" + c.inbox.Address()
	}
	if !strings.HasSuffix(c.listen, ":0") {
		return nil
	}
	if c.listener, err = listen(ctx, c.listen); err != nil {
		c.closeMail()
		return err
	}
	c.module.Mail.Texts.PublicURL = urlOf(c.listener.Addr().String())
	return nil
}

func (c *config) closeMail() {
	if c.inbox != nil {
		c.inbox.Close()
	}
	if c.listener != nil {
		c.listener.Close()
	}
}

// aboutMail tells the page whether mail is sent, and where it arrives.
func (c config) aboutMail() map[string]any {
	about := map[string]any{}
	if c.mail != "" {
		about["mail"], about["inbox"] = mailDomain, c.inbox != nil
	}
	return about
}

// mailArrival is a mail on the stream. Its HTML is at [gateway.mail].
type mailArrival struct {
	ID          string   `json:"id"`
	At          int64    `json:"at"` // milliseconds since 1970
	Sender      string   `json:"sender"`
	To          []string `json:"to"`
	Subject     string   `json:"subject"`
	Head        string   `json:"head"`
	Text        string   `json:"text"`
	Unsubscribe string   `json:"unsubscribe,omitempty"`
}

func newMailArrival(m inbox.Mail) mailArrival {
	return mailArrival{m.ID, m.At.UnixMilli(), m.Sender, m.To, m.Subject, m.Head, m.Text, m.Unsubscribe}
}

// mailPolicy is the policy of a mail's HTML, which is not trusted: it runs no script, loads nothing, and shows only in
// the demo's page. Its links open new tabs.
const mailPolicy = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; frame-ancestors 'self'" +
	"; sandbox allow-popups allow-popups-to-escape-sandbox"

// mail serves GET /_demo/mails/ID, a mail's HTML. The id cannot be guessed; it is on the stream.
func (g *gateway) mail(c echo.Context) error {
	m, found := g.inbox.Find(c.Param("id"))
	if !found {
		return echo.ErrNotFound
	}
	header := c.Response().Header()
	header.Set(echo.HeaderContentSecurityPolicy, mailPolicy)
	header.Set(echo.HeaderXContentTypeOptions, "nosniff")
	header.Set(echo.HeaderReferrerPolicy, "no-referrer")
	header.Set(echo.HeaderCacheControl, "no-store")
	return c.HTML(http.StatusOK, strings.Replace(m.HTML, "<head>", `<head><base target="_blank">`, 1))
}
