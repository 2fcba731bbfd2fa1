package smtp

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/mail"
	"net/textproto"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	gomail "github.com/wneessen/go-mail"
	"github.com/wneessen/go-mail/smtp"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/pusher"
)

// Mailer sends mails by SMTP, with connections that it keeps for a while.
type Mailer struct {
	cfg    Config
	server server
	places *places // of mails that have a connection

	mu     sync.Mutex
	idle   []*connection
	closed bool
}

var _ module.Mailer = (*Mailer)(nil)

// New returns a Mailer of a valid Config with a URL. It does no I/O.
func New(cfg Config) (*Mailer, error) {
	server, err := cfg.read()
	if err != nil {
		return nil, fmt.Errorf("smtp: %w", err)
	}
	return &Mailer{cfg: cfg, server: server, places: newPlaces(cfg.MaxConnections)}, nil
}

// Close closes the connections that no mail uses, and all others when their mails are sent.
func (m *Mailer) Close() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.closed = true
	for _, c := range m.idle {
		c.expiry.Stop()
		c.close()
	}
	m.idle = nil
	return nil
}

var errClosed = errors.New("smtp: the host stops")

// SendMail sends a mail. Its errors have the step that failed and the codes of the answer, but
// not its text, which may have the address. A refusal before the recipient is named is
// temporary: the settings of the host or of the server are wrong.
func (m *Mailer) SendMail(ctx context.Context, mail module.Mail) (err error) {
	message, err := m.message(mail)
	if err != nil {
		return &module.MailError{Outcome: module.Unfit, Err: err}
	}
	ctx, cancel := context.WithTimeout(ctx, m.cfg.Timeout)
	defer cancel()
	_, domain := split(mail.To)
	ctx, place, err := m.places.begin(ctx, domain)
	if err != nil {
		return &module.MailError{Err: err}
	}
	defer func() { m.places.end(place, err == nil) }()
	for {
		c, isNew, err := m.connection(ctx)
		if err != nil {
			return failure(ctx, err, m.places.acceptsOthers())
		}
		isFit, err := c.send(ctx, message)
		m.giveBack(c, isFit)
		if !isNew && isStale(err) { // the server has closed it meanwhile
			continue
		}
		return failure(ctx, err, m.places.acceptsOthers())
	}
}

// message is a mail as it is sent.
type message struct {
	*gomail.Msg
	from, to string // in the envelope
	isUTF8   bool
}

var isWord = regexp.MustCompile(`^[A-Za-z0-9_-]*$`).MatchString

func (m *Mailer) message(sent module.Mail) (*message, error) {
	to, isPlain := readAddress(sent.To)
	switch {
	case !isPlain || to.Address != pusher.CanonicalAddress(sent.To):
		return nil, errors.New("smtp: the recipient is no plain mail address")
	case !isWord(sent.ID) || !isWord(sent.Token) || sent.ID == "":
		return nil, errors.New("smtp: the id or the token of a mail has other characters than letters, digits, - and _")
	}
	unsubscribe, err := url.Parse(sent.Unsubscribe)
	if err != nil {
		return nil, errors.New("smtp: the link to unsubscribe is no URL")
	}
	from := m.server.from
	_, domain := split(from.Address)
	msg := gomail.NewMsg(gomail.WithNoDefaultUserAgent())
	msg.FromMailAddress(from)
	msg.ToMailAddress(to)
	msg.Subject(sent.Subject)
	msg.SetDate()
	msg.SetMessageIDWithValue(sent.ID + "@" + domain)
	msg.SetGenHeader("Auto-Submitted", "auto-generated") // RFC 3834
	msg.SetBulk()
	if sent.Unsubscribe != "" {
		msg.SetListUnsubscribe(unsubscribe.String())
		if unsubscribe.Scheme == "https" { // RFC 8058, 3.1
			msg.SetListUnsubscribePost()
		}
	}
	msg.SetBodyString(gomail.TypeTextPlain, sent.Text)
	msg.AddAlternativeString(gomail.TypeTextHTML, sent.HTML)
	return &message{msg, m.envelope(sent.Token), plain(to.Address), !isASCII(to.Address)}, nil
}

// envelope returns the sender in the envelope.
func (m *Mailer) envelope(token string) string {
	if m.server.bounces == nil {
		return plain(m.server.from.Address)
	}
	address := m.server.bounces.Address
	if name, domain := split(address); token != "" {
		address = name + "+" + token + "@" + domain
	}
	return plain(address)
}

// readAddress returns an address with its domain in A-labels, so that any server takes it (RFC 6531,
// 3.2). Ok is false for a domain that has none.
func readAddress(text string) (address *mail.Address, ok bool) {
	address, err := mail.ParseAddress(text)
	if err != nil {
		return nil, false
	}
	address.Address = pusher.CanonicalAddress(address.Address)
	_, domain := split(address.Address)
	return address, isASCII(domain)
}

// split returns the parts before and after the @ of a valid address.
func split(address string) (name, domain string) {
	at := strings.LastIndexByte(address, '@')
	return address[:at], address[at+1:]
}

func plain(address string) string { return (&mail.Address{Address: address}).String() }

func isASCII(s string) bool {
	return strings.IndexFunc(s, func(r rune) bool { return r > 0x7f }) < 0
}

// connection is a connection with a server that takes mails.
type connection struct {
	net.Conn
	client *smtp.Client
	expiry *time.Timer // of an idle connection
}

// connection returns an idle connection, or a new one.
func (m *Mailer) connection(ctx context.Context) (c *connection, isNew bool, err error) {
	m.mu.Lock()
	closed := m.closed
	if n := len(m.idle); n > 0 {
		c, m.idle = m.idle[n-1], m.idle[:n-1]
		c.expiry.Stop()
	}
	m.mu.Unlock()
	switch {
	case closed:
		return nil, false, &stepError{"connect", errClosed}
	case c != nil:
		return c, false, nil
	}
	c, err = m.server.dial(ctx, m.cfg.TLS)
	return c, true, err
}

// giveBack keeps a connection if it is fit for the next mail.
func (m *Mailer) giveBack(c *connection, isFit bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed || !isFit {
		c.close()
		return
	}
	c.expiry = time.AfterFunc(m.cfg.IdleTimeout, func() { m.expire(c) })
	m.idle = append(m.idle, c)
}

func (m *Mailer) expire(c *connection) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if at := slices.Index(m.idle, c); at >= 0 {
		m.idle = slices.Delete(m.idle, at, at+1)
		c.close()
	}
}

// maxReply bounds a reply of the server, with what TLS adds. Replies have a few lines of at most
// 512 bytes (RFC 5321, 4.5.3.1.5).
const maxReply = 64 << 10

var errLongReply = fmt.Errorf("the server's reply is longer than %d bytes", maxReply)

// bounded is a connection that reads at most maxReply after each write.
type bounded struct {
	net.Conn
	left int
}

func (b *bounded) Write(p []byte) (int, error) {
	b.left = maxReply
	return b.Conn.Write(p)
}

func (b *bounded) Read(p []byte) (n int, err error) {
	if b.left == 0 {
		return 0, errLongReply
	}
	n, err = b.Conn.Read(p[:min(len(p), b.left)])
	b.left -= n
	return n, err
}

// close says farewell without waiting for an answer.
func (c *connection) close() {
	_ = c.SetDeadline(time.Now().Add(time.Second))
	_, _ = c.client.Text.Cmd("QUIT")
	_ = c.Close()
}

// within ends the connection's waits with ctx. The returned function ends this, and reports
// whether the connection is still usable.
func (c *connection) within(ctx context.Context) (release func() bool) {
	deadline, _ := ctx.Deadline()
	_ = c.SetDeadline(deadline)
	return context.AfterFunc(ctx, func() { _ = c.SetDeadline(time.Unix(1, 0)) })
}

func (s server) dial(ctx context.Context, config *tls.Config) (*connection, error) {
	raw, err := new(net.Dialer).DialContext(ctx, "tcp", s.address)
	if err != nil {
		return nil, &stepError{"connect", err}
	}
	c := &connection{Conn: &bounded{raw, maxReply}}
	release := c.within(ctx)
	if err := s.greet(c, config.Clone()); err != nil {
		release()
		_ = raw.Close()
		return nil, err
	}
	if !release() {
		_ = raw.Close()
		return nil, &stepError{"connect", ctx.Err()}
	}
	return c, nil
}

// greet makes a connection ready for mails.
func (s server) greet(c *connection, config *tls.Config) (err error) {
	if config == nil {
		config = &tls.Config{}
	}
	if config.ServerName == "" {
		config.ServerName = s.host
	}
	stream := c.Conn
	if s.implicit {
		stream = tls.Client(stream, config)
	}
	if c.client, err = smtp.NewClient(stream, s.host); err != nil {
		return &stepError{"greeting", err}
	}
	_, domain := split(s.from.Address)
	if err := c.client.Hello(domain); err != nil {
		return &stepError{"EHLO", err}
	}
	if s.upgrade {
		if offered, _ := c.client.Extension("STARTTLS"); !offered {
			return &stepError{"STARTTLS", errors.New("the server does not offer it")}
		}
		if err := c.client.StartTLS(config); err != nil {
			return &stepError{"STARTTLS", err}
		}
	}
	if s.user == "" {
		return nil
	}
	auth := smtp.PlainAuth("", s.user, s.password, s.host, false)
	if _, offered := c.client.Extension("AUTH"); !slices.Contains(strings.Fields(offered), "PLAIN") {
		auth = smtp.LoginAuth(s.user, s.password, s.host, false)
	}
	if err := c.client.Auth(auth); err != nil {
		return &stepError{"AUTH", err}
	}
	return nil
}

// errNotASCII drops a mail, and keeps the pusher: another server may take its address.
var errNotASCII = &module.MailError{Outcome: module.Unfit, Err: errors.New("smtp: the recipient's address is not ASCII, and the server does not offer SMTPUTF8 (RFC 6531, 3.2)")}

// send sends a mail, and reports whether the connection is fit for another.
func (c *connection) send(ctx context.Context, m *message) (isFit bool, err error) {
	if offered, _ := c.client.Extension("SMTPUTF8"); m.isUTF8 && !offered {
		return true, errNotASCII
	}
	release := c.within(ctx)
	err = c.transact(m)
	if err != nil && code(err) != 0 && code(err) != 421 && c.client.Reset() == nil {
		return release(), err
	}
	return release() && err == nil, err
}

func (c *connection) transact(m *message) error {
	c.client.SkipSMTPUTF8(!m.isUTF8)
	if err := c.client.Mail(m.from); err != nil {
		return &stepError{"MAIL", err}
	}
	if err := c.client.Rcpt(m.to); err != nil {
		return &stepError{"RCPT", err}
	}
	body, err := c.client.Data()
	if err == nil {
		_, err = m.WriteTo(body)
	}
	if err == nil {
		err = body.Close()
	}
	if err != nil {
		return &stepError{"DATA", err}
	}
	return nil
}

// stepError is a failed step of a session.
type stepError struct {
	step string
	err  error
}

func (e *stepError) Error() string { return e.step + ": " + e.err.Error() }

func (e *stepError) Unwrap() error { return e.err }

// code returns the code of the server's answer, or 0 if there was none.
func code(err error) int {
	var answer *textproto.Error
	if errors.As(err, &answer) {
		return answer.Code
	}
	return 0
}

func isStale(err error) bool {
	var failed *stepError
	return errors.As(err, &failed) && failed.step == "MAIL" && (code(err) == 0 || code(err) == 421)
}

// waitAfter4xx is the wait after an answer that means "later", for example from a server that
// greylists. SMTP does not say how much later.
const waitAfter4xx = time.Minute

// failure returns the error of a failed step without the text of the server's answer.
// AcceptsOthers says that the server has accepted a mail lately.
func failure(ctx context.Context, err error, acceptsOthers bool) error {
	var failed *stepError
	if !errors.As(err, &failed) {
		return err // nil
	}
	var reply *textproto.Error
	if !errors.As(err, &reply) {
		if ctx.Err() != nil {
			failed.err = context.Cause(ctx)
		}
		return &module.MailError{Err: fmt.Errorf("smtp: %w", failed)}
	}
	a := answer{failed.step, reply.Code, reply.Msg, acceptsOthers}
	enhanced, _ := a.enhanced()
	result := &module.MailError{
		Outcome: a.outcome(), Status: a.code, Err: fmt.Errorf("smtp: %s: the server answers %s", a.step, strings.TrimSpace(fmt.Sprint(a.code, " ", enhanced))),
	}
	switch {
	case result.Outcome == module.Blocked, result.Outcome == module.Failed:
		result.Err = fmt.Errorf("%w: check the settings of the host and of the server", result.Err)
	case a.code < 500:
		result.RetryAfter = waitAfter4xx
	}
	return result
}
