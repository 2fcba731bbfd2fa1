// Package smtp sends mails to one SMTP server. Its API may change at any time, except for
// [Config].
package smtp

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/mail"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// Config names the server that sends the mails of this host.
type Config struct {
	// URL is the server: "smtp+starttls://mail.example.org" (port 587) or
	// "smtps://mail.example.org" (TLS from the start, port 465), both with the certificate of the
	// name; or "smtp://127.0.0.1" without TLS (port 25), for loopback addresses only. It may have
	// user, password and port. Empty: this host sends no mail.
	URL string

	// User and Password replace these of URL. They are sent by AUTH PLAIN or LOGIN.
	User, Password string

	// From is the sender as recipients see it, such as "Example Chat <push@example.org>". It is ASCII
	// before the @, as EnvelopeFrom is, so that all servers take it.
	From string

	// EnvelopeFrom is where failed mails are returned to, such as "bounces@example.org". Each mail
	// has its token in it: bounces+TOKEN@example.org. At most 7 bytes before the @. Empty: they are
	// returned to the address of From, without a token.
	EnvelopeFrom string

	// Timeout bounds the sending of a mail. Default one minute.
	Timeout time.Duration

	// MaxConnections bounds the connections of this host. They are kept for IdleTimeout after
	// a mail. A quarter of them is for domains whose last mail was quick. When all are in use, a mail
	// takes the one that has had no answer for longest, but at least for 2 s, and for four times as long
	// as the server takes for a mail, up to 10 s; a domain whose last mail took longer waits. Default 8
	// and 30 s.
	MaxConnections int
	IdleTimeout    time.Duration

	// TLS has the certificates of private authorities, for example. Default nil.
	TLS *tls.Config
}

// DefaultConfig returns the defaults, without a server.
func DefaultConfig() Config {
	return Config{Timeout: time.Minute, MaxConnections: 8, IdleTimeout: 30 * time.Second}
}

// Validate joins the errors of all invalid fields. Without a URL, the others must be as in
// DefaultConfig, or empty. Errors have neither URL nor user nor password.
func (c Config) Validate() error {
	if c.URL != "" {
		_, err := c.read()
		return err
	}
	if c != DefaultConfig() && c != (Config{}) {
		return errors.New("URL is empty, but other fields are set: want a URL such as smtp+starttls://mail.example.org, or no other field")
	}
	return nil
}

// server is what a valid Config says.
type server struct {
	host, address     string
	implicit, upgrade bool // how TLS begins
	user, password    string

	from, bounces *mail.Address // bounces may be nil
}

// tokenSize is the length of a token of package mail with its "+"; a name has 64 bytes.
const tokenSize = 57

func (c Config) read() (s server, err error) {
	var faults []error
	refuse := func(format string, args ...any) { faults = append(faults, fmt.Errorf(format, args...)) }
	u, err := url.Parse(c.URL)
	if err != nil || u.Hostname() == "" || strings.Trim(u.Path, "/") != "" || u.RawQuery != "" || u.Fragment != "" {
		refuse("URL cannot be read, want a URL such as smtp+starttls://mail.example.org")
		u = &url.URL{Scheme: "smtps"}
	}
	s.host = u.Hostname()
	port := map[string]string{"smtp": "25", "smtp+starttls": "587", "smtps": "465"}[u.Scheme]
	switch {
	case port == "":
		refuse("URL has an unknown scheme, want smtp+starttls, smtps or smtp")
	case u.Scheme == "smtp" && !isLoopback(s.host):
		refuse("URL has the scheme smtp, without TLS: want smtp+starttls or smtps, or a loopback address")
	}
	if u.Port() != "" {
		if n, err := strconv.ParseUint(u.Port(), 10, 16); err != nil || n == 0 {
			refuse("URL has no port from 1 to 65535")
		}
		port = u.Port()
	}
	s.address, s.implicit, s.upgrade = net.JoinHostPort(s.host, port), u.Scheme == "smtps", u.Scheme == "smtp+starttls"
	if s.user = u.User.Username(); c.User != "" {
		s.user = c.User
	}
	if s.password, _ = u.User.Password(); c.Password != "" {
		s.password = c.Password
	}
	if (s.user == "") != (s.password == "") {
		refuse("User or Password is empty, want both or none")
	}
	var ok bool
	if s.from, ok = readAddress(c.From); !ok || !isASCII(s.from.Address) {
		refuse("From is %q, want an address such as Example Chat <push@example.org>, in ASCII before the @", c.From)
	}
	if c.EnvelopeFrom != "" {
		s.bounces, ok = readAddress(c.EnvelopeFrom)
		if !ok || !isASCII(s.bounces.Address) || s.bounces.Name != "" || strings.LastIndexByte(s.bounces.Address, '@') > 64-tokenSize {
			refuse("EnvelopeFrom is %q, want an address such as bounces@example.org, in ASCII and at most %d bytes before the @", c.EnvelopeFrom, 64-tokenSize)
		}
	}
	if c.Timeout <= 0 || c.IdleTimeout <= 0 {
		refuse("Timeout and IdleTimeout are %v and %v, want above 0", c.Timeout, c.IdleTimeout)
	}
	if c.MaxConnections < 1 {
		refuse("MaxConnections is %d, want at least 1", c.MaxConnections)
	}
	return s, errors.Join(faults...)
}

func isLoopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}
