package host

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"mime"
	"net"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unicode"

	"github.com/emersion/go-sasl"
	gosmtp "github.com/emersion/go-smtp"
	gomail "github.com/wneessen/go-mail"

	"github.com/pushfx/pushfx/integration/homeserver/inbox"
	"github.com/pushfx/pushfx/integration/hosttest"
	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/mail/smtp"
)

// postOffice is an SMTP server in the test's process. Its fields are set before the first mail.
type postOffice struct {
	address string
	server  *gosmtp.Server
	roots   *x509.CertPool
	inbox   chan letter

	onMail, onRcpt, onData func(c *gosmtp.Conn) error // nil: accepts

	mu             sync.Mutex
	sessions       []*gosmtp.Conn
	open, mostOpen int
}

type letter struct {
	inbox.Mail
	text   string // as it arrived
	isUTF8 bool   // the parameter SMTPUTF8
}

const mailPassword = "hush-password"

// startPostOffice starts a server with or without TLS from the start.
func startPostOffice(t testing.TB, scheme string) *postOffice {
	t.Helper()
	p := &postOffice{inbox: make(chan letter, 10_000), roots: x509.NewCertPool()}
	certified := httptest.NewTLSServer(nil)
	certified.Close()
	p.roots.AddCert(certified.Certificate())
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p.address = listener.Addr().String()
	p.server = gosmtp.NewServer(gosmtp.BackendFunc(p.newSession))
	p.server.Domain, p.server.EnableSMTPUTF8, p.server.ErrorLog = "localhost", true, noLog{}
	with := &tls.Config{Certificates: certified.TLS.Certificates}
	switch scheme {
	case "smtps":
		listener = tls.NewListener(listener, with)
	case "smtp+starttls":
		p.server.TLSConfig = with
	}
	go p.server.Serve(listener)
	t.Cleanup(func() { p.server.Close() })
	return p
}

type noLog struct{}

func (noLog) Printf(string, ...any) {}
func (noLog) Println(...any)        {}

type postSession struct {
	gosmtp.Session
	p    *postOffice
	conn *gosmtp.Conn
	letter
}

func (p *postOffice) newSession(c *gosmtp.Conn) (gosmtp.Session, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.sessions, p.open = append(p.sessions, c), p.open+1
	p.mostOpen = max(p.mostOpen, p.open)
	s := &postSession{p: p, conn: c}
	s.Session = inbox.NewSession(func(m inbox.Mail) { s.letter.Mail = m })
	return s, nil
}

func (s *postSession) ask(hook func(*gosmtp.Conn) error) error {
	if hook == nil {
		return nil
	}
	return hook(s.conn)
}

func (s *postSession) AuthMechanisms() []string { return []string{sasl.Plain} }
func (s *postSession) Auth(string) (sasl.Server, error) {
	return sasl.NewPlainServer(func(_, user, password string) error {
		if user != "host" || password != mailPassword {
			return gosmtp.ErrAuthFailed
		}
		return nil
	}), nil
}

func (s *postSession) Mail(from string, o *gosmtp.MailOptions) error {
	s.isUTF8 = o.UTF8
	return cmp.Or(s.Session.Mail(from, o), s.ask(s.p.onMail))
}

func (s *postSession) Rcpt(to string, o *gosmtp.RcptOptions) error {
	return cmp.Or(s.Session.Rcpt(to, o), s.ask(s.p.onRcpt))
}

func (s *postSession) Data(r io.Reader) error {
	if err := s.ask(s.p.onData); err != nil {
		return err
	}
	var text strings.Builder
	err := s.Session.Data(io.TeeReader(r, &text))
	if err == nil {
		s.p.inbox <- letter{s.letter.Mail, text.String(), s.isUTF8}
	}
	return err
}

func (s *postSession) Logout() error {
	s.p.mu.Lock()
	defer s.p.mu.Unlock()
	s.p.open--
	return nil
}

// isQuiet reports whether no connection is open.
func (p *postOffice) isQuiet() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.open == 0
}

func (p *postOffice) mailer(t testing.TB, scheme string, change ...func(*smtp.Config)) *smtp.Mailer {
	t.Helper()
	cfg := smtp.DefaultConfig()
	cfg.URL, cfg.From, cfg.EnvelopeFrom = scheme+"://"+p.address, "Example Chat <push@example.org>", "bounces@example.org"
	cfg.TLS = &tls.Config{RootCAs: p.roots}
	for _, f := range change {
		f(&cfg)
	}
	m, err := smtp.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close() })
	return m
}

func aMail() module.Mail {
	return module.Mail{
		To: "alice@example.com", ID: "id-1", Token: "token", Subject: "Grüße", Text: "text", HTML: "<p>html</p>",
		Unsubscribe: "https://matrix.example.org/_matrix/client/v3/pushers/unsubscribe?token=x",
	}
}

func TestAMailArrivesWithItsHeaders(t *testing.T) {
	t.Parallel()
	for _, scheme := range []string{"smtp", "smtp+starttls", "smtps"} {
		p := startPostOffice(t, scheme)
		m := p.mailer(t, scheme, func(c *smtp.Config) {
			if scheme != "smtp" {
				c.User, c.Password = "host", mailPassword
			}
		})
		if err := m.SendMail(t.Context(), aMail()); err != nil {
			t.Fatalf("%s: %v", scheme, err)
		}
		got := <-p.inbox
		if got.Sender != "bounces+token@example.org" || got.To[0] != "alice@example.com" {
			t.Errorf("%s: got %+v", scheme, got)
		}
		for name, want := range map[string]string{
			"From": `"Example Chat" <push@example.org>`, "To": "<alice@example.com>", "Message-Id": "<id-1@example.org>",
			"Subject": "Grüße", "Auto-Submitted": "auto-generated", "Precedence": "bulk", "Mime-Version": "1.0",
			"List-Unsubscribe": "<" + aMail().Unsubscribe + ">", "List-Unsubscribe-Post": "List-Unsubscribe=One-Click",
		} {
			if got, err := new(mime.WordDecoder).DecodeHeader(got.Header.Get(name)); err != nil || got != want {
				t.Errorf("%s: %s is %q, %v", scheme, name, got, err)
			}
		}
		if _, err := got.Header.Date(); err != nil || got.Text != "text" || got.HTML != "<p>html</p>" {
			t.Errorf("%s: got date %v, %+v", scheme, err, got)
		}
	}
}

func TestOneClickNeedsHTTPS(t *testing.T) {
	t.Parallel()
	p := startPostOffice(t, "smtp")
	mail := aMail()
	mail.Unsubscribe = "http://matrix.example.org/unsubscribe"
	if err := p.mailer(t, "smtp").SendMail(t.Context(), mail); err != nil {
		t.Fatal(err)
	}
	header := (<-p.inbox).Header
	if header.Get("List-Unsubscribe") != "<"+mail.Unsubscribe+">" || header.Get("List-Unsubscribe-Post") != "" {
		t.Errorf("got %v", header)
	}
}

// RFC 6531: a server without SMTPUTF8 gets no address that is not ASCII.
func TestAddressesThatAreNotASCII(t *testing.T) {
	t.Parallel()
	const unfit = "" // this mail is dropped, and the pusher stays
	for _, offers := range []bool{true, false} {
		p := startPostOffice(t, "smtp")
		p.server.EnableSMTPUTF8 = offers
		m := p.mailer(t, "smtp", func(c *smtp.Config) {
			c.From, c.EnvelopeFrom = "Bücher <push@Bücher.example>", "bounces@Bücher.example"
		})
		for to, want := range map[string]struct{ to, head string }{
			"alice@example.com":         {"alice@example.com", "<alice@example.com>"},
			"alice@bücher.example":      {"alice@xn--bcher-kva.example", "<alice@xn--bcher-kva.example>"},
			"jörg@bücher.example":       {"jörg@xn--bcher-kva.example", "<jörg@xn--bcher-kva.example>"},
			"jörg@büc\u202eher.example": {unfit, ""},
			"a@büc\u202eher.example":    {unfit, ""},
			"a@ü\u00a0.example":         {unfit, ""},
		} {
			isUTF8 := strings.HasPrefix(to, "jörg")
			if isUTF8 && !offers {
				want.to = unfit
			}
			mail := aMail()
			mail.To = to
			err := m.SendMail(t.Context(), mail)
			if want.to == unfit {
				var got *module.MailError
				if !errors.As(err, &got) || *got != (module.MailError{Outcome: module.Unfit, Err: got.Err}) || strings.Contains(err.Error(), "example") || len(p.inbox) > 0 {
					t.Errorf("%q, SMTPUTF8 %v: got %+v, %d mails", to, offers, err, len(p.inbox))
				}
				continue
			}
			if err != nil {
				t.Errorf("%q, SMTPUTF8 %v: %v", to, offers, err)
				continue
			}
			got := <-p.inbox
			if got.To[0] != want.to || got.isUTF8 != isUTF8 || got.Header.Get("To") != want.head || got.Sender != "bounces+token@xn--bcher-kva.example" {
				t.Errorf("%q, SMTPUTF8 %v: got %+v", to, offers, got)
			}
			if !isUTF8 && strings.ContainsFunc(got.Head, func(r rune) bool { return r > unicode.MaxASCII }) {
				t.Errorf("%q: a header is not ASCII: %s", to, got.Head)
			}
		}
		if len(p.sessions) != 1 {
			t.Errorf("a mail that is not sent costs a connection: %d", len(p.sessions))
		}
	}
}

func TestARefusedMailSaysWhatToDo(t *testing.T) {
	t.Parallel()
	answers := func(code int, enhanced ...int) func(*gosmtp.Conn) error {
		return func(*gosmtp.Conn) error {
			e := &gosmtp.SMTPError{Code: code, Message: "no mail for alice@example.com here"}
			if len(enhanced) > 0 {
				e.EnhancedCode = gosmtp.EnhancedCode(enhanced)
			}
			return e
		}
	}
	hangsUp := func(c *gosmtp.Conn) error { c.Close(); return io.ErrUnexpectedEOF }
	throttled, busy := module.MailError{Outcome: module.Throttled, RetryAfter: time.Minute}, module.MailError{Outcome: module.Busy, RetryAfter: time.Minute}
	blocked, failed := module.MailError{Outcome: module.Blocked}, module.MailError{Outcome: module.Failed}
	for name, test := range map[string]struct {
		onMail, onRcpt, onData func(*gosmtp.Conn) error
		status                 int
		want                   module.MailError
	}{
		"busy":                     {onMail: answers(421), status: 421, want: throttled},
		"greylists":                {onRcpt: answers(451, 4, 7, 1), status: 451, want: busy},
		"mailbox busy":             {onRcpt: answers(450), status: 450, want: busy},
		"later after the content":  {onData: answers(452), status: 452, want: throttled},
		"550, and nobody else":     {onRcpt: answers(550), status: 550, want: blocked},
		"5.1.0, and nobody else":   {onRcpt: answers(550, 5, 1, 0), status: 550, want: blocked},
		"no such user, enhanced":   {onRcpt: answers(550, 5, 1, 1), status: 550, want: module.MailError{Outcome: module.Gone}},
		"mailbox is full":          {onRcpt: answers(552, 5, 2, 2), status: 552, want: module.MailError{Outcome: module.Busy}},
		"no relaying":              {onRcpt: answers(554, 5, 7, 1), status: 554, want: blocked},
		"unknown sender at RCPT":   {onRcpt: answers(550, 5, 1, 8), status: 550, want: blocked},
		"unknown sender":           {onMail: answers(550, 5, 1, 8), status: 550, want: blocked},
		"not UTF-8 for this one":   {onRcpt: answers(553, 5, 6, 7), status: 553, want: module.MailError{Outcome: module.Unfit}}, // RFC 6531, 4.2
		"not UTF-8 at MAIL":        {onMail: answers(550, 5, 6, 7), status: 550, want: module.MailError{Outcome: module.Unfit}},
		"too large":                {onData: answers(552, 5, 3, 4), status: 552, want: module.MailError{Outcome: module.Unfit}},
		"not taken":                {onData: answers(554), status: 554, want: failed},
		"on a block list, or spam": {onData: answers(554, 5, 7, 1), status: 554, want: failed},
		"DMARC":                    {onData: answers(550, 5, 7, 26), status: 550, want: blocked},
		"hangs up at MAIL":         {onMail: hangsUp},
		"hangs up after DATA":      {onData: hangsUp},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := startPostOffice(t, "smtp")
			p.onMail, p.onRcpt, p.onData = test.onMail, test.onRcpt, test.onData
			m := p.mailer(t, "smtp")
			for range 2 { // the second on the same connection, if there is one
				err := m.SendMail(t.Context(), aMail())
				var got *module.MailError
				if !errors.As(err, &got) || got.Outcome != test.want.Outcome || got.RetryAfter != test.want.RetryAfter || got.Status != test.status {
					t.Fatalf("got %+v", err)
				}
				if strings.Contains(err.Error(), "alice") || strings.Contains(err.Error(), "bounces") {
					t.Errorf("the error has an address: %v", err)
				}
			}
		})
	}
}

// The server has accepted others before.
func TestARefusalWithoutACodeIsAboutTheRecipientBesideOthers(t *testing.T) {
	t.Parallel()
	p := startPostOffice(t, "smtp")
	var refuses atomic.Bool
	p.onRcpt = func(*gosmtp.Conn) error {
		if refuses.Load() {
			return &gosmtp.SMTPError{Code: 550, EnhancedCode: gosmtp.NoEnhancedCode, Message: "No such user"}
		}
		return nil
	}
	m := p.mailer(t, "smtp")
	if err := m.SendMail(t.Context(), aMail()); err != nil {
		t.Fatal(err)
	}
	refuses.Store(true)
	var got *module.MailError
	if err := m.SendMail(t.Context(), aMail()); !errors.As(err, &got) || got.Outcome != module.Gone {
		t.Errorf("got %+v", err)
	}
}

// Wrong settings delay mails, and lose none.
func TestWrongSettingsOfMailAreTemporary(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		server, client string
		change         func(*smtp.Config)
		want           string
		status         int
	}{
		"no STARTTLS":         {"smtp", "smtp+starttls", func(*smtp.Config) {}, "STARTTLS: the server does not offer it", 0},
		"no TLS":              {"smtp", "smtps", func(*smtp.Config) {}, "first record does not look like a TLS handshake", 0},
		"wrong password":      {"smtps", "smtps", func(c *smtp.Config) { c.User, c.Password = "host", "hush-wrong" }, "AUTH: the server answers 535", 535},
		"unknown certificate": {"smtps", "smtps", func(c *smtp.Config) { c.TLS = nil }, "certificate", 0},
		"no server":           {"smtp", "smtp", func(c *smtp.Config) { c.URL = "smtp://127.0.0.1:1" }, "refused", 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			err := startPostOffice(t, test.server).mailer(t, test.client, test.change).SendMail(t.Context(), aMail())
			var got *module.MailError
			if !errors.As(err, &got) || got.Outcome != "" && got.Outcome != module.Blocked || got.Status != test.status || !strings.Contains(err.Error(), test.want) || strings.Contains(err.Error(), "hush") {
				t.Errorf("got %v", err)
			}
		})
	}
}

func TestASilentMailServerEndsInTime(t *testing.T) {
	t.Parallel()
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	hangs := make(chan struct{})
	t.Cleanup(func() { close(hangs) })
	slow := startPostOffice(t, "smtp")
	slow.onData = func(*gosmtp.Conn) error { <-hangs; return nil }
	for name, p := range map[string]*postOffice{"no greeting": {address: silent.Addr().String()}, "no answer to DATA": slow} {
		m := p.mailer(t, "smtp", func(c *smtp.Config) { c.MaxConnections = 1 })
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(50*time.Millisecond, cancel)
		if err := m.SendMail(ctx, aMail()); !errors.Is(err, context.Canceled) {
			t.Errorf("%s: canceled: got %v", name, err)
		}
		short := p.mailer(t, "smtp", func(c *smtp.Config) { c.Timeout = 50 * time.Millisecond })
		if err := short.SendMail(t.Context(), aMail()); !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("%s: too late: got %v", name, err)
		}
	}
}

// A server could fill the memory of the host with a reply that has no end.
func TestRepliesOfAMailServerAreBounded(t *testing.T) {
	t.Parallel()
	for name, endless := range map[string]string{"lines": "220-more\r\n", "one line": "220 more"} {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer listener.Close()
		go func() {
			for {
				c, err := listener.Accept()
				if err != nil {
					return
				}
				reply := []byte(strings.Repeat(endless, 1000))
				for range 2000 {
					if _, err := c.Write(reply); err != nil {
						break
					}
				}
				c.Close()
			}
		}()
		p := &postOffice{address: listener.Addr().String()}
		err = p.mailer(t, "smtp").SendMail(t.Context(), aMail())
		if err == nil || !strings.Contains(err.Error(), "greeting: the server's reply is longer than 65536 bytes") {
			t.Errorf("%s: got %.200v", name, err)
		}
	}
}

func TestConnectionsAreReusedAndBounded(t *testing.T) {
	t.Parallel()
	p := startPostOffice(t, "smtp")
	m := p.mailer(t, "smtp", func(c *smtp.Config) { c.MaxConnections = 3 })
	for range 20 {
		if err := m.SendMail(t.Context(), aMail()); err != nil {
			t.Fatal(err)
		}
	}
	if n := len(p.sessions); n != 1 {
		t.Errorf("20 mails took %d connections", n)
	}
	var sending sync.WaitGroup
	for range 50 {
		sending.Go(func() {
			if err := m.SendMail(t.Context(), aMail()); err != nil {
				t.Error(err)
			}
		})
	}
	sending.Wait()
	if p.mostOpen > 3 || len(p.inbox) != 70 {
		t.Errorf("had %d connections, %d mails", p.mostOpen, len(p.inbox))
	}
	for _, c := range p.sessions { // as a server does that keeps connections for a shorter time
		c.Close()
	}
	if err := m.SendMail(t.Context(), aMail()); err != nil {
		t.Errorf("after the server has closed idle connections: %v", err)
	}
	m.Close()
	hosttest.Eventually(t, "the server sees all connections closed", p.isQuiet)
	if err := m.SendMail(t.Context(), aMail()); err == nil {
		t.Error("a closed mailer sends")
	}
}

func TestHostileTextsStayInTheirPlaceInAMail(t *testing.T) {
	t.Parallel()
	p := startPostOffice(t, "smtp")
	m := p.mailer(t, "smtp")
	hostile := aMail()
	hostile.Subject = "x\r\nBcc: all@example.org\r\n\r\nbody\x00 =?utf-8?q?Bcc?= " + strings.Repeat("ü", 1000)
	hostile.Text = "\r\n.\r\nQUIT\r\n.\r\nFrom x\n" + strings.Repeat("long", 1000)
	hostile.HTML = hostile.Text
	if err := m.SendMail(t.Context(), hostile); err != nil {
		t.Fatal(err)
	}
	got := <-p.inbox
	if got.Header.Get("Bcc") != "" || len(got.Header["Subject"]) != 1 || got.Text != strings.ReplaceAll(strings.ReplaceAll(hostile.Text, "\r\n", "\n"), "\n", "\r\n") {
		t.Errorf("got %v, %q", got.Header, got.Text[:50])
	}
	for _, line := range strings.Split(got.text, "\r\n") {
		if len(line) > 998 {
			t.Errorf("a line has %d bytes", len(line))
		}
	}
	for name, change := range map[string]func(*module.Mail){
		"two addresses":     func(m *module.Mail) { m.To = "a@example.org, b@example.org" },
		"a name":            func(m *module.Mail) { m.To = "a <a@example.org>" },
		"a line":            func(m *module.Mail) { m.To = "a@example.org\r\nRCPT TO:<b@example.org>" },
		"a quoted line":     func(m *module.Mail) { m.To = "\"a\r\nb\"@example.org" },
		"no address":        func(m *module.Mail) { m.To = "" },
		"a line in the id":  func(m *module.Mail) { m.ID = "a\r\nBcc: b" },
		"an address for id": func(m *module.Mail) { m.ID = "a@b>" },
		"a token":           func(m *module.Mail) { m.Token = "a> SIZE=1" },
		"a link":            func(m *module.Mail) { m.Unsubscribe = "https://example.org/\r\nBcc: b" },
	} {
		bad := aMail()
		change(&bad)
		var unfit *module.MailError
		if err := m.SendMail(t.Context(), bad); !errors.As(err, &unfit) || unfit.Outcome != module.Unfit || strings.Contains(err.Error(), "example.org") {
			t.Errorf("%s: got %v", name, err)
		}
	}
	if len(p.inbox) > 0 {
		t.Errorf("got %+v", <-p.inbox)
	}
}

func TestAnInvalidServerOfMailIsRefused(t *testing.T) {
	t.Parallel()
	for url, want := range map[string]string{
		"smtp://mail.example.org":               "without TLS",
		"smtp://user:hush@[2001:db8::1]":        "without TLS",
		"http://mail.example.org":               "unknown scheme",
		"smtps://user:hush\x7f@mail":            "cannot be read",
		"smtps://":                              "cannot be read",
		"smtps://user:hush@mail/path":           "cannot be read",
		"smtp+starttls://user:hush@mail?x=y":    "cannot be read",
		"smtps://user:hush@mail:65536":          "no port",
		"smtp://localhost:0":                    "no port",
		"smtps://user@mail.example.org":         "User or Password is empty",
		"smtps://:hush@mail.example.org":        "User or Password is empty",
		"smtp://localhost":                      "",
		"smtp://[::1]:2525":                     "",
		"smtps://user:hush@mail.example.org":    "",
		"smtp+starttls://mail.example.org:2525": "",
		"":                                      "URL is empty, but other fields are set",
	} {
		cfg := smtp.DefaultConfig()
		cfg.URL, cfg.From = url, "push@example.org"
		err := cfg.Validate()
		if (err == nil) != (want == "") || err != nil && (!strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "hush")) {
			t.Errorf("%q: got %v", url, err)
		}
	}
	for _, bad := range []string{"jörg@example.org", "push@büc\u202eher.example"} {
		cfg := smtp.DefaultConfig()
		cfg.URL, cfg.From, cfg.EnvelopeFrom = "smtps://mail.example.org", bad, bad
		if err := cfg.Validate(); err == nil || strings.Count(err.Error(), fmt.Sprintf(" is %q, want an ", bad)) != 2 {
			t.Errorf("%q: got %v", bad, err)
		}
	}
	cfg := smtp.Config{URL: "smtps://mail.example.org", EnvelopeFrom: strings.Repeat("b", 8) + "@example.org"}
	if err := cfg.Validate(); err == nil || len(strings.Split(err.Error(), "\n")) != 4 {
		t.Errorf("got %v", err)
	}
}

func BenchmarkMail(b *testing.B) {
	letter := aMail()
	letter.Text, letter.HTML = strings.Repeat("A line of text.\n", 40), strings.Repeat("<p>A line of <b>HTML</b>.</p>\n", 200)
	p := startPostOffice(b, "smtp")
	b.Run("pushfx", func(b *testing.B) {
		m := p.mailer(b, "smtp")
		for b.Loop() {
			if err := m.SendMail(b.Context(), letter); err != nil {
				b.Fatal(err)
			}
			<-p.inbox
		}
	})
	b.Run("go-mail", func(b *testing.B) {
		host, port, _ := net.SplitHostPort(p.address)
		number := 0
		fmt.Sscan(port, &number)
		client, err := gomail.NewClient(host, gomail.WithPort(number), gomail.WithTLSPolicy(gomail.NoTLS))
		if err != nil || client.DialWithContext(b.Context()) != nil {
			b.Fatal(err)
		}
		defer client.Close()
		for b.Loop() {
			msg := gomail.NewMsg()
			_ = msg.From("push@example.org")
			_ = msg.To(letter.To)
			msg.Subject(letter.Subject)
			msg.SetBodyString(gomail.TypeTextPlain, letter.Text)
			msg.AddAlternativeString(gomail.TypeTextHTML, letter.HTML)
			if err := client.Send(msg); err != nil {
				b.Fatal(err)
			}
			<-p.inbox
		}
	})
}
