package dialguard_test

import (
	"context"
	"net"
	"net/netip"
	"strings"
	"sync"
	"testing"

	"golang.org/x/net/dns/dnsmessage"
)

// gateway is a listener on 127.0.0.1 that counts its connections.
type gateway struct {
	t        *testing.T
	listener net.Listener
}

func newGateway(t *testing.T) *gateway {
	t.Helper()
	listener, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	return &gateway{t, listener}
}

// named returns the gateway's address with another host.
func (g *gateway) named(host string) string {
	_, port, err := net.SplitHostPort(g.listener.Addr().String())
	if err != nil {
		g.t.Fatal(err)
	}
	return net.JoinHostPort(host, port)
}

// next returns the source of the next connection.
func (g *gateway) next() string {
	g.t.Helper()
	conn, err := g.listener.Accept()
	if err != nil {
		g.t.Fatal(err)
	}
	defer conn.Close()
	return conn.RemoteAddr().String()
}

// wantNoConnection checks that there was no connection.
func (g *gateway) wantNoConnection() {
	g.t.Helper()
	conn, err := net.Dial("tcp4", g.listener.Addr().String())
	if err != nil {
		g.t.Fatal(err)
	}
	defer conn.Close()
	if got := g.next(); got != conn.LocalAddr().String() {
		g.t.Errorf("a connection from %s has reached the gateway", got)
	}
}

// answers returns the addresses of a name; before counts earlier queries of that type.
type answers func(before int) []string

func always(addresses ...string) answers { return func(int) []string { return addresses } }

// publicOnce is a name that rebinds after the first query.
func publicOnce(then string) answers {
	return func(before int) []string {
		if before == 0 {
			return []string{"9.9.9.9"}
		}
		return []string{then}
	}
}

// nameServer answers every query for an address over UDP on 127.0.0.1.
type nameServer struct {
	t        *testing.T
	resolver *net.Resolver // asks only the server
	answers  answers

	mu    sync.Mutex
	names []string
	count map[dnsmessage.Type]int
}

func newNameServer(t *testing.T, answers answers) *nameServer {
	t.Helper()
	conn, err := net.ListenPacket("udp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &nameServer{t: t, answers: answers, count: map[dnsmessage.Type]int{}}
	s.resolver = &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "udp4", conn.LocalAddr().String())
	}}
	ended := make(chan struct{})
	go func() { defer close(ended); s.serve(conn) }()
	t.Cleanup(func() { conn.Close(); <-ended })
	return s
}

func (s *nameServer) asked() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return strings.Join(s.names, " ")
}

func (s *nameServer) serve(conn net.PacketConn) {
	packet := make([]byte, 4096)
	for {
		n, from, err := conn.ReadFrom(packet)
		if err != nil {
			return // closed
		}
		var query dnsmessage.Message
		if err := query.Unpack(packet[:n]); err != nil || len(query.Questions) != 1 {
			s.t.Errorf("a query that is none: %v", err)
			return
		}
		reply := s.reply(query)
		if answer, err := reply.Pack(); err != nil {
			s.t.Error(err)
		} else if _, err := conn.WriteTo(answer, from); err != nil {
			s.t.Error(err)
		}
	}
}

func (s *nameServer) reply(query dnsmessage.Message) dnsmessage.Message {
	s.mu.Lock()
	defer s.mu.Unlock()
	question := query.Questions[0]
	s.names = append(s.names, question.Name.String())
	reply := dnsmessage.Message{
		Header:    dnsmessage.Header{ID: query.ID, Response: true, RecursionDesired: query.RecursionDesired, RecursionAvailable: true},
		Questions: query.Questions,
	}
	for _, text := range s.answers(s.count[question.Type]) {
		address := netip.MustParseAddr(text)
		var body dnsmessage.ResourceBody = &dnsmessage.AAAAResource{AAAA: address.As16()}
		if address.Is4() {
			body = &dnsmessage.AResource{A: address.As4()}
		}
		if (question.Type == dnsmessage.TypeA) == address.Is4() {
			header := dnsmessage.ResourceHeader{Name: question.Name, Class: question.Class, TTL: 0}
			reply.Answers = append(reply.Answers, dnsmessage.Resource{Header: header, Body: body})
		}
	}
	s.count[question.Type]++
	return reply
}
