package main

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/pushfx/pushfx/module/redistest"
)

// heldProxy passes all replies of a server on at the same time, when the host has sent all that it can send without
// them. So it counts round trips, however slow the machine is.
type heldProxy struct {
	address string

	mu    sync.Mutex
	holds bool
	held  []heldReply
	news  int // commands and replies that have come
	trips int
}

type heldReply struct {
	to   net.Conn
	text []byte
}

// quietLooks is how often the proxy looks without news, every few milliseconds, until it passes the replies on.
const quietLooks = 8

func newHeldProxy(t *testing.T, server string) *heldProxy {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	p := &heldProxy{address: listener.Addr().String()}
	go func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			go p.serve(client, server)
		}
	}()
	go p.run(t)
	return p
}

func (p *heldProxy) run(t *testing.T) {
	for seen, times := 0, 0; t.Context().Err() == nil; times++ {
		time.Sleep(4 * time.Millisecond)
		p.mu.Lock()
		if p.news != seen {
			seen, times = p.news, 0
		}
		if (times >= quietLooks || !p.holds) && len(p.held) > 0 {
			p.pass()
			times = 0
		}
		p.mu.Unlock()
	}
}

func (p *heldProxy) pass() {
	for _, reply := range p.held {
		_, _ = reply.to.Write(reply.text)
	}
	p.held = nil
	p.trips++
}

func (p *heldProxy) serve(client net.Conn, address string) {
	defer client.Close()
	server, err := net.Dial("tcp", address)
	if err != nil {
		return
	}
	defer server.Close()
	go func() {
		defer server.Close()
		read(client, func(text []byte) {
			p.add()
			_, _ = server.Write(text)
		})
	}()
	read(server, func(text []byte) { p.add(heldReply{client, text}) })
}

func read(from io.Reader, each func(text []byte)) {
	for {
		text := make([]byte, 32<<10)
		n, err := from.Read(text)
		if err != nil {
			return
		}
		each(text[:n])
	}
}

func (p *heldProxy) add(replies ...heldReply) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.news++
	if p.held = append(p.held, replies...); !p.holds {
		p.pass()
	}
}

// count returns how many round trips do waits for.
func (p *heldProxy) count(do func()) int {
	set := func(holds bool) int {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.holds = holds
		return p.trips
	}
	before := set(true)
	do()
	return set(false) - before
}

// An event waits for one round trip until it is counted and visible. Another one adds it to the logs of its members.
func TestAnEventTakesFewRoundTrips(t *testing.T) {
	t.Parallel()
	const most, events = 3, 30 // the first event loads scripts; a busy machine splits a round trip in two
	proxy := newHeldProxy(t, redistest.Single(t).Addr())
	d := startDemo(t, "-redis-mode", "standalone", "-redis", proxy.address)
	for n, user := range []string{"alice", "bob"} {
		body := fmt.Sprintf(`{"kind":"http","app_id":"app","pushkey":"%d","app_display_name":"a","device_display_name":"d","lang":"en",
			"data":{"url":"%s/_matrix/push/v1/notify"}}`, n, d.url)
		if got := d.do(http.MethodPost, "/_matrix/client/v3/pushers/set", "demo-"+user, body); got.status != http.StatusOK {
			t.Fatal(got)
		}
	}
	fewest := events * most
	for n := 0; n < events && fewest > most; n++ {
		body := fmt.Sprintf(`{"room_id":"!r:localhost","members":["@alice:localhost","@bob:localhost"],"type":"m.room.message","content":{"body":"%d"}}`, n)
		trips := proxy.count(func() {
			if got := d.do(http.MethodPost, "/_demo/send", "demo-bob", body); got.status != http.StatusOK {
				t.Fatal(got)
			}
		})
		t.Logf("%d round trips", trips)
		fewest = min(fewest, trips)
	}
	if fewest > most {
		t.Errorf("an event takes %d round trips, want %d at most", fewest, most)
	}
}
