package redistest

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	proxyReadTimeout  = time.Minute // waiting for a client's next command, or for the reply
	proxyWriteTimeout = time.Minute
	proxyDialTimeout  = 5 * time.Second
	maxPending        = 1024 // commands of a connection that wait for replies
)

// Proxy passes commands and replies between clients and one server, and applies planned
// faults. A fault applies to exactly the planned command or reply, so a test needs
// neither luck nor waiting.
//
// The methods that plan a fault take names of commands, such as "GET". Without names,
// every command counts, also the commands that begin a connection. A fault counts the
// matching commands of all connections since its method was called. It strikes once,
// unless its method says otherwise. If several faults match one message, only the first
// planned one strikes.
//
// Error replies do not count, because the command had no effect. The proxy does not
// support subscriptions to channels.
//
// A Proxy is safe for concurrent use, and ends with its test.
type Proxy struct {
	t        testing.TB
	server   *Server
	listener net.Listener
	ctx      context.Context // ends with the proxy
	group    sync.WaitGroup  // of all goroutines of the proxy

	mu     sync.Mutex
	faults []*Fault
}

// NewProxy starts a proxy in front of the server. It ends with the given test.
func NewProxy(t testing.TB, server *Server) *Proxy {
	t.Helper()
	listener, err := net.Listen("tcp4", net.JoinHostPort(localhost, "0"))
	if err != nil {
		t.Fatalf("cannot start a proxy: %v", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	p := &Proxy{t: t, server: server, listener: listener, ctx: ctx}
	p.group.Go(p.accept)
	t.Cleanup(func() {
		cancel()
		listener.Close()
		p.group.Wait()
	})
	return p
}

// Addr returns the proxy's host and port.
func (p *Proxy) Addr() string { return p.listener.Addr().String() }

// Client returns a client of the proxy that obeys deadlines. It is closed when the test
// ends. The functions change its options.
func (p *Proxy) Client(t testing.TB, change ...func(*redis.Options)) *redis.Client {
	t.Helper()
	options := p.server.options()
	options.Addr = p.Addr()
	for _, c := range change {
		c(options)
	}
	client := redis.NewClient(options)
	closeAfter(t, client)
	return client
}

// CutReply plans to cut the connection before the n-th reply, counted from 1. The
// server has run the command by then.
func (p *Proxy) CutReply(n int, commands ...string) *Fault {
	return p.plan(&Fault{onReply: true, left: n, commands: commands})
}

// StallReply plans to hold the n-th reply and all later replies on its connection until
// [Fault.Release]. The server has run the command by then.
func (p *Proxy) StallReply(n int, commands ...string) *Fault {
	return p.plan(&Fault{onReply: true, holds: true, left: n, commands: commands})
}

// StallReplies is [Proxy.StallReply] for the n-th and every later reply.
func (p *Proxy) StallReplies(n int, commands ...string) *Fault {
	return p.plan(&Fault{onReply: true, holds: true, repeats: true, left: n, commands: commands})
}

// CutRequest plans to cut the connection before the n-th command reaches the server.
func (p *Proxy) CutRequest(n int, commands ...string) *Fault {
	return p.plan(&Fault{left: n, commands: commands})
}

// HoldRequest plans to hold the n-th command and all later commands on its connection
// until [Fault.Release]. The server then gets it even if the client has gone, as on a
// slow network.
func (p *Proxy) HoldRequest(n int, commands ...string) *Fault {
	return p.plan(&Fault{holds: true, left: n, commands: commands})
}

func (p *Proxy) plan(f *Fault) *Fault {
	f.struck, f.released, f.passed = make(chan struct{}), make(chan struct{}), make(chan struct{})
	f.proxy = p
	p.mu.Lock()
	defer p.mu.Unlock()
	p.faults = append(p.faults, f)
	return f
}

func (p *Proxy) match(r *request, onReply bool) *Fault {
	p.mu.Lock()
	defer p.mu.Unlock()
	var strikes *Fault
	for _, f := range p.faults {
		if f.onReply == onReply && f.counts(r) && strikes == nil {
			strikes = f
		}
	}
	if strikes != nil {
		strikes.strike.Do(func() { close(strikes.struck) })
	}
	return strikes
}

// Fault is one planned fault.
type Fault struct {
	proxy    *Proxy
	commands []string // names in lower or upper case; empty means all commands
	onReply  bool     // strikes replies, not commands
	holds    bool     // holds the request or reply instead of cutting the connection
	repeats  bool

	left  int    // matches until it strikes; guarded by proxy.mu
	after *Fault // a fault that must strike first; guarded by proxy.mu
	text  string // a command must contain it to be counted; guarded by proxy.mu

	strike, release, pass    sync.Once
	struck, released, passed chan struct{}
}

// After makes the fault count only after the other fault has struck, and returns it.
func (f *Fault) After(other *Fault) *Fault {
	f.proxy.mu.Lock()
	defer f.proxy.mu.Unlock()
	f.after = other
	return f
}

// With makes the fault count only commands that contain the text, and returns it.
func (f *Fault) With(text string) *Fault {
	f.proxy.mu.Lock()
	defer f.proxy.mu.Unlock()
	f.text = text
	return f
}

// Struck is closed when the fault first strikes.
func (f *Fault) Struck() <-chan struct{} { return f.struck }

// Release passes on the held messages; later messages are not held. For a held command,
// Release returns when the server has answered; for a held reply, when the client has
// the reply or has gone. It has no effect on faults that cut.
func (f *Fault) Release() {
	f.release.Do(func() { close(f.released) })
	if !f.holds || !f.hasStruck() {
		return
	}
	timer := time.NewTimer(proxyWriteTimeout)
	defer timer.Stop()
	select {
	case <-f.passed:
	case <-f.proxy.ctx.Done():
	case <-timer.C:
		f.proxy.t.Errorf("proxy at %s: the held command or reply was not passed on within %v", f.proxy.Addr(), proxyWriteTimeout)
	}
}

func (f *Fault) hasStruck() bool {
	select {
	case <-f.struck:
		return true
	default:
		return false
	}
}

func (f *Fault) counts(r *request) bool {
	isNamed := func(name string) bool { return strings.EqualFold(name, r.command) }
	if len(f.commands) > 0 && !slices.ContainsFunc(f.commands, isNamed) ||
		f.after != nil && !f.after.hasStruck() || !strings.Contains(r.raw, f.text) {
		return false
	}
	f.left--
	return f.left == 0 || f.repeats && f.left < 0
}

// mayPass reports whether a message that the fault struck may pass. It waits until a
// held message is released, or the connection or the proxy ends.
func (f *Fault) mayPass(end <-chan struct{}) bool {
	if !f.holds {
		return false
	}
	select {
	case <-f.released:
		return true
	case <-end:
	case <-f.proxy.ctx.Done():
	}
	return false
}

func (f *Fault) done() { f.pass.Do(func() { close(f.passed) }) }

func (p *Proxy) accept() {
	for {
		conn, err := p.listener.Accept()
		if err != nil {
			return
		}
		p.group.Go(func() { p.serve(conn) })
	}
}

func (p *Proxy) serve(client net.Conn) {
	defer client.Close()
	dialer := net.Dialer{Timeout: proxyDialTimeout}
	server, err := dialer.DialContext(p.ctx, "tcp4", p.server.Addr())
	if err != nil {
		return // The client sees a closed connection.
	}
	defer server.Close()
	ctx, cancel := context.WithCancel(p.ctx)
	defer cancel()
	l := &link{p, client, server, ctx.Done(), make(chan *request, maxPending)}
	var both sync.WaitGroup
	for _, pass := range []func() error{l.passRequests, l.passReplies} {
		both.Go(func() {
			defer cancel()
			if err := pass(); errors.Is(err, errProtocol) { // Other errors end a connection as usual.
				p.t.Errorf("proxy at %s: %v", p.Addr(), err)
			}
		})
	}
	<-ctx.Done()
	client.Close()
	server.Close()
	both.Wait()
}

type link struct {
	proxy          *Proxy
	client, server net.Conn
	end            <-chan struct{} // closed when one side has closed
	pending        chan *request   // sent to the server, without a reply yet
}

type request struct {
	command, raw string
	held         *Fault // the fault that held the request, or nil
}

var errCut = errors.New("the connection is cut")

func (l *link) passRequests() error {
	from := newWire(l.client)
	for {
		command, err := from.command()
		if err != nil {
			return err
		}
		r := &request{command: command, raw: string(from.raw)}
		r.held = l.proxy.match(r, false)
		if r.held != nil && !r.held.mayPass(nil) {
			return errCut
		}
		if err := l.send(r); err != nil {
			return err
		}
	}
}

// send passes a command to the server. After a held command it waits for the reply: the
// client may have gone, and the connection would otherwise end before the server has
// the command.
func (l *link) send(r *request) error {
	select {
	case l.pending <- r:
	default:
		return fmt.Errorf("%w: more than %d commands without a reply", errProtocol, maxPending)
	}
	if err := write(l.server, []byte(r.raw)); err != nil || r.held == nil {
		return err
	}
	select {
	case <-r.held.passed:
	case <-l.end:
	}
	return nil
}

func (l *link) passReplies() error {
	from := newWire(l.server)
	for {
		if err := from.next(); err != nil {
			return err
		}
		if from.raw[0] != '>' { // a push message, which answers no command
			if err := l.applyFault(from.raw); err != nil {
				return err
			}
		}
		if err := write(l.client, from.raw); err != nil {
			return err
		}
	}
}

// applyFault applies a planned fault to the reply of the oldest pending command. It
// returns an error if the client must not get the reply.
func (l *link) applyFault(raw []byte) error {
	var r *request
	select {
	case r = <-l.pending:
	default:
		return fmt.Errorf("%w: a reply without a command", errProtocol)
	}
	if r.held != nil {
		r.held.done()
	}
	if raw[0] == '-' || raw[0] == '!' {
		return nil
	}
	fault := l.proxy.match(r, true)
	if fault == nil {
		return nil
	}
	defer fault.done()
	if !fault.mayPass(l.end) {
		return errCut
	}
	return nil
}

func write(conn net.Conn, raw []byte) error {
	if err := conn.SetWriteDeadline(time.Now().Add(proxyWriteTimeout)); err != nil {
		return err
	}
	_, err := conn.Write(raw)
	return err
}

var errProtocol = errors.New("cannot read the Redis protocol")

type wire struct {
	*bufio.Reader
	conn net.Conn
	raw  []byte // the last message
}

func newWire(conn net.Conn) *wire { return &wire{Reader: bufio.NewReader(conn), conn: conn} }

func (w *wire) next() error {
	w.raw = w.raw[:0]
	if err := w.conn.SetReadDeadline(time.Now().Add(proxyReadTimeout)); err != nil {
		return err
	}
	return w.value()
}

func (w *wire) command() (string, error) {
	if err := w.next(); err != nil {
		return "", err
	}
	// A command is an array of strings: "*2\r\n$3\r\nGET\r\n$1\r\nx\r\n".
	parts := strings.SplitN(string(w.raw), "\r\n", 4)
	if w.raw[0] != '*' || len(parts) < 4 {
		return "", fmt.Errorf("%w: a command that begins with %q", errProtocol, parts[0])
	}
	return parts[2], nil
}

func (w *wire) value() error {
	line, err := w.ReadString('\n')
	if err != nil {
		return err
	}
	w.raw = append(w.raw, line...)
	text, found := strings.CutSuffix(line, "\r\n")
	if !found || text == "" {
		return fmt.Errorf("%w: the line %q", errProtocol, line)
	}
	if strings.ContainsRune("+-:_,#(", rune(text[0])) {
		return nil
	}
	length, err := strconv.Atoi(text[1:])
	if err != nil {
		return fmt.Errorf("%w: the line %q", errProtocol, line)
	}
	switch text[0] {
	case '$', '!', '=':
		return w.bytes(length)
	case '*', '~', '>':
		return w.values(length)
	case '%':
		return w.values(2 * length)
	case '|': // attributes, followed by the value that they describe
		return w.values(2*length + 1)
	}
	return fmt.Errorf("%w: the line %q", errProtocol, line)
}

func (w *wire) values(count int) error {
	for range count {
		if err := w.value(); err != nil {
			return err
		}
	}
	return nil
}

// bytes reads a string and its line end. A negative length is a null.
func (w *wire) bytes(length int) error {
	if length < 0 {
		return nil
	}
	start := len(w.raw)
	w.raw = slices.Grow(w.raw, length+2)[:start+length+2]
	_, err := io.ReadFull(w, w.raw[start:])
	return err
}
