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
	proxyPatience  = time.Minute      // for the next command of a client, and for its reply
	proxyWriteTime = 10 * time.Second // to take what is passed on
	proxyDialTime  = 5 * time.Second
	mostPending    = 1024 // commands that a connection may have sent ahead of their replies
)

// Proxy stands between clients and one server, and passes on what they say
// until a fault that was planned strikes. It acts on exactly the command or
// reply that the plan names, so a test needs neither luck nor waiting.
//
// The methods that plan a fault take the names of commands, such as "GET" or
// "EVALSHA", and count those that come from then on, over all connections; no
// name stands for every command, those included with which a client begins a
// connection. Each fault counts on its own, and strikes once unless its method
// says otherwise. Where more than one strikes the same, the first planned does.
//
// A reply that is an error does not count, since its command did nothing. What
// the server pushes is no reply: a client cannot subscribe to channels here.
//
// It is safe for concurrent use, and ends with its test.
type Proxy struct {
	t        testing.TB
	server   *Server
	listener net.Listener
	ctx      context.Context // ends with the proxy
	group    sync.WaitGroup  // of every goroutine of the proxy

	mu     sync.Mutex
	faults []*Fault
}

// NewProxy starts a proxy before the server. It ends when the given test does.
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

// Addr returns the host and port where the proxy listens.
func (p *Proxy) Addr() string { return p.listener.Addr().String() }

// Client returns a client for the server, by way of the proxy, that obeys the
// deadline of a context. The options are changed by the given functions. It is
// closed when the given test ends.
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

// CutReply plans to cut the connection in place of the n-th reply, the first
// being 1. The server has run the command by then.
func (p *Proxy) CutReply(n int, commands ...string) *Fault {
	return p.plan(&Fault{kind: cutReply, left: n, commands: commands})
}

// StallReply plans to hold the n-th reply back until [Fault.Release], and with
// it all that follows on its connection. The server has run the command by
// then.
func (p *Proxy) StallReply(n int, commands ...string) *Fault {
	return p.plan(&Fault{kind: stallReply, left: n, commands: commands})
}

// StallReplies is [Proxy.StallReply] for the n-th reply and every later one.
func (p *Proxy) StallReplies(n int, commands ...string) *Fault {
	return p.plan(&Fault{kind: stallReply, left: n, commands: commands, repeats: true})
}

// CutRequest plans to cut the connection in place of the n-th command, which
// the server never sees.
func (p *Proxy) CutRequest(n int, commands ...string) *Fault {
	return p.plan(&Fault{kind: cutRequest, left: n, commands: commands})
}

// HoldRequest plans to keep the n-th command from the server until
// [Fault.Release], and with it all that follows on its connection. The server
// gets it even when the client has gone in the meantime, as it does from a
// network that is slow.
func (p *Proxy) HoldRequest(n int, commands ...string) *Fault {
	return p.plan(&Fault{kind: holdRequest, left: n, commands: commands})
}

func (p *Proxy) plan(f *Fault) *Fault {
	f.struck, f.released, f.passed = make(chan struct{}), make(chan struct{}), make(chan struct{})
	f.proxy = p
	p.mu.Lock()
	defer p.mu.Unlock()
	p.faults = append(p.faults, f)
	return f
}

// match counts a command, of which raw is all, or its reply, and returns the fault
// that strikes it.
func (p *Proxy) match(command, raw string, kinds ...faultKind) *Fault {
	p.mu.Lock()
	defer p.mu.Unlock()
	var strikes *Fault
	for _, f := range p.faults {
		if slices.Contains(kinds, f.kind) && f.counts(command, raw) && strikes == nil {
			strikes = f
		}
	}
	if strikes != nil {
		strikes.strike.Do(func() { close(strikes.struck) })
	}
	return strikes
}

type faultKind int

const (
	cutReply faultKind = iota
	stallReply
	cutRequest
	holdRequest
)

// Fault is one fault that was planned.
type Fault struct {
	kind     faultKind
	commands []string // in any case; none stands for all
	repeats  bool
	left     int    // until it strikes, under the lock of the proxy
	after    *Fault // which must have struck before it counts; under the lock of the proxy
	text     string // which is in what it counts; under the lock of the proxy

	proxy                    *Proxy
	strike, release, pass    sync.Once
	struck, released, passed chan struct{}
}

// After has the fault count only what comes when another has struck. It returns
// the fault.
func (f *Fault) After(other *Fault) *Fault {
	f.proxy.mu.Lock()
	defer f.proxy.mu.Unlock()
	f.after = other
	return f
}

// With has the fault count only commands in which a text is, as bytes, and their
// replies. It returns the fault.
func (f *Fault) With(text string) *Fault {
	f.proxy.mu.Lock()
	defer f.proxy.mu.Unlock()
	f.text = text
	return f
}

// Struck is closed when the fault has struck for the first time.
func (f *Fault) Struck() <-chan struct{} { return f.struck }

// Release lets go of what the fault holds, or would hold later. It returns when
// the server has answered the command that was held, or the reply that was held
// is on its way or has no client any more. What was cut is not to be released.
func (f *Fault) Release() {
	f.release.Do(func() { close(f.released) })
	if f.kind == cutReply || f.kind == cutRequest || !f.hasStruck() {
		return
	}
	timer := time.NewTimer(proxyWriteTime)
	defer timer.Stop()
	select {
	case <-f.passed:
	case <-f.proxy.ctx.Done():
	case <-timer.C:
		f.proxy.t.Errorf("proxy at %s: what was held got no answer within %v", f.proxy.Addr(), proxyWriteTime)
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

// counts counts the command and reports whether the fault strikes it.
func (f *Fault) counts(command, raw string) bool {
	same := func(name string) bool { return strings.EqualFold(name, command) }
	if len(f.commands) > 0 && !slices.ContainsFunc(f.commands, same) || f.after != nil && !f.after.hasStruck() ||
		!strings.Contains(raw, f.text) {
		return false
	}
	f.left--
	return f.left == 0 || f.repeats && f.left < 0
}

// letsThrough waits, where the fault holds what it strikes, until it is
// released, the given end has come, or that of the proxy. It reports whether
// what was struck may pass.
func (f *Fault) letsThrough(end <-chan struct{}) bool {
	if f.kind == cutReply || f.kind == cutRequest {
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

// done tells Release that what was held is on its way.
func (f *Fault) done() { f.pass.Do(func() { close(f.passed) }) }

// accept serves the clients until the proxy ends.
func (p *Proxy) accept() {
	for {
		conn, err := p.listener.Accept()
		if err != nil {
			return
		}
		p.group.Go(func() { p.serve(conn) })
	}
}

// serve connects the client with the server until one of them is gone.
func (p *Proxy) serve(client net.Conn) {
	defer client.Close()
	dialer := net.Dialer{Timeout: proxyDialTime}
	server, err := dialer.DialContext(p.ctx, "tcp4", p.server.Addr())
	if err != nil {
		return // The client sees that as well.
	}
	defer server.Close()
	ctx, cancel := context.WithCancel(p.ctx)
	l := &link{p, client, server, ctx.Done(), make(chan pendingReply, mostPending)}
	var both sync.WaitGroup
	both.Go(func() {
		defer cancel()
		p.report(l.passRequests())
	})
	both.Go(func() {
		defer cancel()
		p.report(l.passReplies())
	})
	<-ctx.Done()
	client.Close()
	server.Close()
	both.Wait()
}

// report fails the test for what the proxy does not understand. That a
// connection ends is no news.
func (p *Proxy) report(err error) {
	if errors.Is(err, errProtocol) {
		p.t.Errorf("proxy at %s: %v", p.Addr(), err)
	}
}

// link is a client's connection with the server.
type link struct {
	proxy          *Proxy
	client, server net.Conn
	end            <-chan struct{}   // closed when one of them is gone
	pending        chan pendingReply // the replies that the server owes
}

// pendingReply is a reply to come.
type pendingReply struct {
	command, raw string
	held         *Fault // held the command; nil if none did
}

var errCut = errors.New("the connection is cut")

// passRequests passes commands on to the server, until the end.
func (l *link) passRequests() error {
	from := &wire{Reader: bufio.NewReader(l.client)}
	for {
		command, err := from.command(l.client)
		if err != nil {
			return err
		}
		raw := string(from.raw)
		fault := l.proxy.match(command, raw, cutRequest, holdRequest)
		if fault != nil && !fault.letsThrough(nil) {
			return errCut
		}
		if err := l.send(pendingReply{command, raw, fault}); err != nil {
			return err
		}
	}
}

// send passes a command on to the server. It waits for the reply to one that
// was held, whose client may be gone: that ends the connection.
func (l *link) send(reply pendingReply) error {
	if err := l.expect(reply); err != nil {
		return err
	}
	if err := write(l.server, []byte(reply.raw)); err != nil || reply.held == nil {
		return err
	}
	select {
	case <-reply.held.passed:
	case <-l.end:
	}
	return nil
}

func (l *link) expect(reply pendingReply) error {
	select {
	case l.pending <- reply:
		return nil
	default:
		return fmt.Errorf("%w: more than %d commands without a reply", errProtocol, mostPending)
	}
}

// passReplies passes replies on to the client, until the end.
func (l *link) passReplies() error {
	from := &wire{Reader: bufio.NewReader(l.server)}
	for {
		if err := from.reply(l.server); err != nil {
			return err
		}
		if from.raw[0] != '>' {
			if err := l.strikeReply(from.raw); err != nil {
				return err
			}
		}
		if err := write(l.client, from.raw); err != nil {
			return err
		}
	}
}

// strikeReply lets a fault strike the reply to the oldest command. An error
// means that the client must not get it.
func (l *link) strikeReply(raw []byte) error {
	var reply pendingReply
	select {
	case reply = <-l.pending:
	default:
		return fmt.Errorf("%w: a reply without a command", errProtocol)
	}
	if reply.held != nil {
		reply.held.done()
	}
	if raw[0] == '-' || raw[0] == '!' {
		return nil
	}
	fault := l.proxy.match(reply.command, reply.raw, cutReply, stallReply)
	if fault == nil {
		return nil
	}
	defer fault.done()
	if !fault.letsThrough(l.end) {
		return errCut
	}
	return nil
}

func write(conn net.Conn, raw []byte) error {
	if err := conn.SetWriteDeadline(time.Now().Add(proxyWriteTime)); err != nil {
		return err
	}
	_, err := conn.Write(raw)
	return err
}

// errProtocol says that something is not in the Redis protocol as it is known
// here.
var errProtocol = errors.New("cannot read the Redis protocol")

// wire reads the messages of one side and keeps the bytes of the last.
type wire struct {
	*bufio.Reader
	raw []byte
}

// command reads a command, and returns its name.
func (w *wire) command(conn net.Conn) (string, error) {
	first, err := w.next(conn)
	if err != nil {
		return "", err
	}
	words, err := strconv.Atoi(first[1:])
	if first[0] != '*' || err != nil || words < 1 {
		return "", fmt.Errorf("%w: a command that begins with %q", errProtocol, first)
	}
	head := len(w.raw)
	if err := w.value(); err != nil {
		return "", err
	}
	_, name, _ := strings.Cut(string(w.raw[head:]), "\r\n")
	return strings.TrimSuffix(name, "\r\n"), w.values(words - 1)
}

// reply reads a reply, or what the server pushes.
func (w *wire) reply(conn net.Conn) error {
	first, err := w.next(conn)
	if err != nil {
		return err
	}
	return w.rest(first)
}

// next forgets the last message and reads the first line of another.
func (w *wire) next(conn net.Conn) (string, error) {
	w.raw = w.raw[:0]
	if err := conn.SetReadDeadline(time.Now().Add(proxyPatience)); err != nil {
		return "", err
	}
	return w.line()
}

// line reads a line and returns it without its end.
func (w *wire) line() (string, error) {
	line, err := w.ReadString('\n')
	if err != nil {
		return "", err
	}
	w.raw = append(w.raw, line...)
	text, found := strings.CutSuffix(line, "\r\n")
	if !found || text == "" {
		return "", fmt.Errorf("%w: the line %q", errProtocol, line)
	}
	return text, nil
}

// value reads a value.
func (w *wire) value() error {
	first, err := w.line()
	if err != nil {
		return err
	}
	return w.rest(first)
}

func (w *wire) values(count int) error {
	for range count {
		if err := w.value(); err != nil {
			return err
		}
	}
	return nil
}

// rest reads what follows the first line of a value.
func (w *wire) rest(first string) error {
	if strings.ContainsRune("+-:_,#(", rune(first[0])) {
		return nil
	}
	length, err := strconv.Atoi(first[1:])
	if err != nil {
		return fmt.Errorf("%w: the line %q", errProtocol, first)
	}
	switch first[0] {
	case '$', '!', '=':
		return w.bytes(length)
	case '*', '~', '>':
		return w.values(length)
	case '%':
		return w.values(2 * length)
	case '|':
		return w.values(2*length + 1) // attributes, and the value that has them
	}
	return fmt.Errorf("%w: the line %q", errProtocol, first)
}

// bytes reads as many bytes and the end of their line; fewer than none stand
// for no value.
func (w *wire) bytes(length int) error {
	if length < 0 {
		return nil
	}
	head := len(w.raw)
	w.raw = slices.Grow(w.raw, length+2)[:head+length+2]
	_, err := io.ReadFull(w, w.raw[head:])
	return err
}
