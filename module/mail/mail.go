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
	"maps"
	"net/url"
	"path"
	"regexp"
	"slices"
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
	// "https://app.example.org/#/room/". A slash and the ids of room and event follow. Empty: no links.
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
	// lang is tried first as it is, then without its subtags from the end (RFC 4647, 3.4: "zh-Hant-TW"
	// finds "zh-hant"), then as "en", which is built in. A folder that does not exist and other files,
	// except .md and names that begin with a dot, are refused. Nil: English.
	Templates fs.FS
}

// Validate joins the errors of all invalid fields. A host that sets none of them is not validated.
func (c Config) Validate() error {
	var faults []error
	if c.AppName == "" {
		faults = append(faults, errors.New("AppName is empty, want the name of the app"))
	}
	if len(c.Key) < 16 {
		faults = append(faults, fmt.Errorf("%s has %d bytes, want at least 16", "Key", len(c.Key)))
	}
	complete := c.completed()
	if !isWebAddress(complete.PublicURL) || strings.ContainsAny(c.PublicURL, "?#") {
		faults = append(faults, fmt.Errorf("PublicURL is %q, want an address such as https://matrix.example.org, without a query and a fragment", c.PublicURL))
	}
	end := complete.ClientURL[strings.LastIndexByte(complete.ClientURL, '#')+1:]
	if c.ClientURL != "" && (!isWebAddress(complete.ClientURL) || strings.Contains(end, "?")) {
		faults = append(faults, fmt.Errorf("ClientURL is %q, want an address such as https://app.example.org/#/room/, to which the id of a room is added", c.ClientURL))
	}
	return errors.Join(faults...)
}

// completed returns the config with the slashes to which paths are added.
func (c Config) completed() Config {
	c.PublicURL = strings.TrimRight(c.PublicURL, "/")
	if c.ClientURL != "" && !strings.HasSuffix(c.ClientURL, "/") {
		c.ClientURL += "/"
	}
	return c
}

// isWebAddress reports whether an address is of http or https and escaped as a URL is, so that it
// can stand in a header.
func isWebAddress(address string) bool {
	u, err := url.Parse(address)
	return err == nil && (u.Scheme == "https" || u.Scheme == "http") && u.Host != "" && u.User == nil && u.String() == address
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
	c := &Composer{cfg.completed(), NewTokens(cfg.Key), map[string]language{}}
	built, err := fs.Sub(english, "templates")
	if err == nil {
		err = c.read(built)
	}
	if err == nil && cfg.Templates != nil {
		err = c.read(cfg.Templates)
	}
	if err != nil {
		return nil, fmt.Errorf("mail: Templates: %w", err)
	}
	return c, nil
}

// read reads the templates of a folder, and tries them.
func (c *Composer) read(files fs.FS) error {
	entries, err := fs.ReadDir(files, ".")
	if err != nil {
		return err
	}
	for _, entry := range entries {
		name := entry.Name()
		ext := path.Ext(name)
		lang := strings.TrimSuffix(name, ext)
		switch {
		case ext == ".md", strings.HasPrefix(name, "."):
			continue
		case entry.IsDir(), ext != ".txt" && ext != ".html":
			return fmt.Errorf("%s is no template, want LANG.txt or LANG.html", name)
		case !isTag(lang), len(lang) > maxTag:
			return fmt.Errorf("%s has no language tag in small letters such as %q", name, "pt-br")
		}
		if err := c.readLanguage(files, lang); err != nil {
			return err
		}
	}
	return nil
}

func (c *Composer) readLanguage(files fs.FS, lang string) (err error) {
	l := language{}
	if l.text, err = text.ParseFS(files, lang+".txt"); err != nil {
		return err
	}
	if l.html, err = html.ParseFS(files, lang+".html"); err != nil {
		return err
	}
	for _, digest := range samples() {
		if _, err := l.write(c.letter(digest, lang)); err != nil {
			return err
		}
	}
	c.languages[lang] = l
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

// maxTag bounds the language tags that are looked at, in bytes. RFC 5646, 4.4.1, wants 35 at least.
const maxTag = 64

// isTag recognizes the form of a language tag (RFC 5646, 2.1) of a language in ISO 639, or of
// private use.
var isTag = regexp.MustCompile(`^([a-z]{2,3}|x-[a-z0-9]{2,8})(-([a-z0-9]-)?[a-z0-9]{2,8})*$`).MatchString

// languageOf returns the language that has templates and fits a pusher's lang best: it leaves out
// subtags from the end, with a single letter before them (RFC 4647, 3.4).
func (c *Composer) languageOf(lang string) string {
	lang = strings.ToLower(strings.ReplaceAll(lang[:min(len(lang), maxTag)], "_", "-"))
	for lang != "" {
		if _, found := c.languages[lang]; found {
			return lang
		}
		lang = lang[:max(0, strings.LastIndexByte(lang, '-'))]
		if at := len(lang) - 2; at >= 0 && lang[at] == '-' {
			lang = lang[:at]
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

// samples are mails of each subject, kind of event and size, to try templates with.
func samples() (digests []module.MailDigest) {
	text := module.MailEvent{ID: "$event", Type: "m.room.message", Sender: "@bob:example.org", Content: `{"msgtype":"m.text","body":"text"}`, Time: time.Unix(0, 0)}
	onlyID, hidden, closed, invite, knock, mention, everyone, keyword := text, text, text, text, text, text, text, text
	onlyID.Type, onlyID.Sender, onlyID.Content, hidden.Content, closed.Type = "", "", "", "", encrypted
	invite.Invites, knock.Type, knock.Content = true, "m.room.member", `{"membership":"knock"}`
	mention.Highlight, mention.MentionsUser, everyone.Highlight, everyone.MentionsRoom, keyword.Highlight = true, true, true, true, true
	events := []module.MailEvent{text, onlyID, hidden, closed, invite, knock, mention, everyone, keyword}
	for _, kind := range []string{"emote", "image", "video", "audio", "file", "location"} {
		e := text
		e.Content, e.Thread = `{"msgtype":"m.`+kind+`","body":"text"}`, "$root"
		events = append(events, e)
	}
	for _, kind := range append(slices.Sorted(maps.Keys(kinds)), "org.example.other") {
		e := text
		e.Type = kind
		events = append(events, e)
	}
	sample := func(all int, events ...module.MailEvent) module.MailDigest {
		room := module.MailRoom{ID: "!room:example.org", Name: "Room", Events: events, Hidden: all - len(events)}
		return module.MailDigest{User: "@alice:example.org", To: "alice@example.org", Events: all, Rooms: []module.MailRoom{room}}
	}
	for _, e := range events {
		digests = append(digests, sample(1, e))
	}
	several := sample(99, events...)
	several.Rooms, several.Hidden, several.Events = append(several.Rooms, sample(1, text).Rooms...), 2, 120
	return append(digests, several, sample(2, text, text), sample(9, text), sample(2, invite, invite))
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
