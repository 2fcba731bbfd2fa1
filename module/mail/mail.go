// Package mail writes the mails of pushers of kind email, and the tokens of their links. It
// sends nothing: package smtp does. Its API may change at any time, except for [Config] and
// what templates use: [Letter], [Room] and [Message].
package mail

import (
	"bytes"
	"embed"
	"errors"
	"fmt"
	html "html/template"
	"io/fs"
	"net/url"
	"strings"
	text "text/template"
	"time"

	"github.com/pushfx/pushfx/module"
)

// Config configures what mails contain.
type Config struct {
	// AppName is the name of the app or server, as users know it.
	AppName string

	// ClientURL is the address of the client that mails link to, up to the room, such as
	// "https://app.example.org/#/room/". The ids of room and event follow. Empty: no links.
	ClientURL string

	// PublicURL is where browsers reach the host, such as "https://matrix.example.org". The link
	// that stops mails begins with it.
	PublicURL string

	// Key signs tokens: 16 bytes or more, secret, random, and the same on all hosts. The links in
	// mails that were sent with another key do not work.
	Key string

	// Templates has the host's own texts, two files a language: LANG.txt defines the templates
	// "subject" and "text" of [text/template], LANG.html is a template of [html/template]. All get
	// a [Letter]. LANG is a language tag such as "de" or "pt-br", in small letters. A pusher's
	// lang is tried first with its region, then without, then as "en", which is built in. Nil: English.
	Templates fs.FS
}

// Validate joins the errors of all invalid fields.
func (c Config) Validate() error {
	var faults []error
	if c.AppName == "" {
		faults = append(faults, errors.New("AppName is empty, want the name of the app"))
	}
	if len(c.Key) < 16 {
		faults = append(faults, fmt.Errorf("%s has %d bytes, want at least 16", "Key", len(c.Key)))
	}
	if !isWebAddress(c.PublicURL) {
		faults = append(faults, fmt.Errorf("PublicURL is %q, want an address such as https://matrix.example.org", c.PublicURL))
	}
	if c.ClientURL != "" && !isWebAddress(c.ClientURL) {
		faults = append(faults, fmt.Errorf("ClientURL is %q, want an address such as https://app.example.org/#/room/", c.ClientURL))
	}
	return errors.Join(faults...)
}

func isWebAddress(address string) bool {
	u, err := url.Parse(address)
	return err == nil && (u.Scheme == "https" || u.Scheme == "http") && u.Host != "" && u.User == nil
}

// UnsubscribePath is the path of the link that stops mails, below Config.PublicURL.
const UnsubscribePath = "/_matrix/client/v3/pushers/unsubscribe"

//go:embed templates
var english embed.FS

// Composer writes mails.
type Composer struct {
	cfg       Config
	tokens    *Tokens
	languages map[string]language
}

type language struct {
	text *text.Template
	html *html.Template
}

var _ module.MailComposer = (*Composer)(nil)

// NewComposer returns an error for an invalid config, and for templates that cannot be read
// or that fail with a sample.
func NewComposer(cfg Config) (*Composer, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("mail: %w", err)
	}
	c := &Composer{cfg, NewTokens(cfg.Key), map[string]language{}}
	built, err := fs.Sub(english, "templates")
	if err == nil {
		err = c.read(built)
	}
	if err == nil && cfg.Templates != nil {
		err = c.read(cfg.Templates)
	}
	if err != nil {
		return nil, fmt.Errorf("mail: %w", err)
	}
	return c, nil
}

func (c *Composer) read(files fs.FS) error {
	names, err := fs.Glob(files, "*.txt")
	if err != nil {
		return err
	}
	for _, name := range names {
		l, lang := language{}, strings.TrimSuffix(name, ".txt")
		if l.text, err = text.ParseFS(files, name); err != nil {
			return err
		}
		if l.html, err = html.ParseFS(files, lang+".html"); err != nil {
			return err
		}
		if _, err := l.write(c.letter(sample(), lang)); err != nil {
			return err
		}
		c.languages[lang] = l
	}
	return nil
}

// ComposeMail writes a mail. It makes the token of the mail and of its link itself.
func (c *Composer) ComposeMail(digest module.MailDigest) (module.Mail, error) {
	lang := c.languageOf(digest.Lang)
	letter := c.letter(digest, lang)
	mail, err := c.languages[lang].write(letter)
	if err != nil {
		return mail, fmt.Errorf("mail: %w", err)
	}
	mail.To, mail.ID, mail.Token = digest.To, digest.ID, c.tokens.Bounce(digest.To)
	mail.Unsubscribe = letter.Unsubscribe
	return mail, nil
}

// languageOf returns the language that has templates and fits a pusher's lang best.
func (c *Composer) languageOf(lang string) string {
	lang = strings.ToLower(strings.ReplaceAll(lang, "_", "-"))
	primary, _, _ := strings.Cut(lang, "-")
	for _, tag := range []string{lang, primary} {
		if _, found := c.languages[tag]; found {
			return tag
		}
	}
	return "en"
}

func (l language) write(letter Letter) (mail module.Mail, err error) {
	var page bytes.Buffer
	for name, part := range map[string]*string{"subject": &mail.Subject, "text": &mail.Text} {
		page.Reset()
		if err := l.text.ExecuteTemplate(&page, name, letter); err != nil {
			return module.Mail{}, err
		}
		*part = page.String()
	}
	page.Reset()
	if err := l.html.Execute(&page, letter); err != nil {
		return module.Mail{}, err
	}
	mail.HTML = page.String()
	mail.Subject = strings.Join(strings.Fields(mail.Subject), " ")
	return mail, nil
}

// sample has an event of each kind, to try templates with.
func sample() module.MailDigest {
	event := module.MailEvent{ID: "$event", Type: "m.room.message", Sender: "@bob:example.org", Content: `{"msgtype":"m.text","body":"text"}`, Time: time.Unix(0, 0)}
	encrypted, invite, image := event, event, event
	encrypted.Type, invite.Invites, image.Content = "m.room.encrypted", true, `{"msgtype":"m.image","body":"cat.jpg"}`
	return module.MailDigest{User: "@alice:example.org", To: "alice@example.org", Events: 9, Hidden: 1, Rooms: []module.MailRoom{
		{ID: "!a:example.org", Name: "Room", Events: []module.MailEvent{event, encrypted, invite, image}, Hidden: 2},
	}}
}

// link returns the address of a room, or of an event in it, in the client.
func (c *Composer) link(ids ...string) string {
	if c.cfg.ClientURL == "" {
		return ""
	}
	for i, id := range ids {
		ids[i] = url.PathEscape(id)
	}
	return c.cfg.ClientURL + strings.Join(ids, "/")
}
