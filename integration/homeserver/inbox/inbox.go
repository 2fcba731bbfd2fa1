// Package inbox receives mails by SMTP on this machine and keeps the last ones in memory, to
// look at. It needs no login and no TLS, and delivers to nobody.
package inbox

import (
	"crypto/rand"
	"fmt"
	"io"
	"log"
	"net"
	"sync"
	"time"

	"github.com/emersion/go-smtp"
)

const (
	maxMails     = 50        // mails that are kept
	maxBytes     = 4 << 20   // of these mails
	maxMailBytes = 256 << 10 // of a mail
	timeout      = 30 * time.Second
)

// Inbox is a server that runs until [Inbox.Close]. It is safe for concurrent use.
type Inbox struct {
	server   *smtp.Server
	listener net.Listener

	mu      sync.Mutex
	mails   []Mail // the oldest first
	size    int    // bytes of mails
	count   int    // of all mails so far
	changed chan struct{}
}

// Start starts a server on a free port of this machine.
func Start() (*Inbox, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("inbox: %w", err)
	}
	i := &Inbox{listener: listener, changed: make(chan struct{})}
	i.server = smtp.NewServer(smtp.BackendFunc(func(*smtp.Conn) (smtp.Session, error) { return NewSession(i.add), nil }))
	i.server.Domain = "localhost"
	i.server.MaxMessageBytes = maxMailBytes
	i.server.MaxRecipients = 10
	i.server.ReadTimeout, i.server.WriteTimeout = timeout, timeout
	i.server.ErrorLog = log.New(io.Discard, "", 0) // of connections that end early
	go func() { _ = i.server.Serve(listener) }()   // ends with Close
	return i, nil
}

// Address is the host and port of the server.
func (i *Inbox) Address() string { return i.listener.Addr().String() }

// Close stops the server and ends its connections.
func (i *Inbox) Close() error { return i.server.Close() }

// Since returns the mails after the first n that are still there, and the number of all mails. The inbox closes changed
// at the next mail. Without an inbox there are no mails.
func (i *Inbox) Since(n int) (mails []Mail, count int, changed <-chan struct{}) {
	if i == nil {
		return nil, 0, nil
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	missed := max(0, min(i.count-n, len(i.mails)))
	return append(mails, i.mails[len(i.mails)-missed:]...), i.count, i.changed
}

// Find returns the mail with this id.
func (i *Inbox) Find(id string) (Mail, bool) {
	i.mu.Lock()
	defer i.mu.Unlock()
	for _, m := range i.mails {
		if m.ID == id {
			return m, true
		}
	}
	return Mail{}, false
}

func (i *Inbox) add(m Mail) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.mails = append(i.mails, m)
	i.size += m.size()
	for len(i.mails) > maxMails || i.size > maxBytes {
		i.size -= i.mails[0].size()
		i.mails = i.mails[1:]
	}
	i.count++
	close(i.changed)
	i.changed = make(chan struct{})
}

// session is a connection. The server calls its methods one at a time.
type session struct {
	arrived func(Mail)
	from    string
	to      []string
}

// NewSession returns a connection of a server that calls arrived with each mail, and refuses mails that cannot be read.
func NewSession(arrived func(Mail)) smtp.Session { return &session{arrived: arrived} }

func (s *session) Mail(from string, _ *smtp.MailOptions) error {
	s.from = from
	return nil
}

func (s *session) Rcpt(to string, _ *smtp.RcptOptions) error {
	s.to = append(s.to, to)
	return nil
}

func (s *session) Data(r io.Reader) error {
	text, err := io.ReadAll(r)
	if err != nil {
		return err
	}
	m, err := read(text)
	if err != nil {
		return &smtp.SMTPError{Code: 554, EnhancedCode: smtp.EnhancedCode{5, 6, 0}, Message: "This mail cannot be read: " + err.Error()}
	}
	m.ID, m.At, m.Sender, m.To = rand.Text(), time.Now(), s.from, s.to
	s.arrived(m)
	return nil
}

func (s *session) Reset() { s.from, s.to = "", nil }

func (s *session) Logout() error { return nil }
