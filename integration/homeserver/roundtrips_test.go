package main

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/pushfx/pushfx/module/redistest"
)

// distant returns the address of a server whose replies come later.
func distant(t *testing.T, server string, later time.Duration) (address string) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	go func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			go pass(client, server, later)
		}
	}()
	return listener.Addr().String()
}

func pass(client net.Conn, address string, later time.Duration) {
	defer client.Close()
	server, err := net.Dial("tcp", address)
	if err != nil {
		return
	}
	defer server.Close()
	go func() {
		defer server.Close()
		_, _ = io.Copy(server, client)
	}()
	type part struct {
		at   time.Time
		text []byte
	}
	parts := make(chan part, 1000)
	go func() {
		defer close(parts)
		for {
			text := make([]byte, 32<<10)
			n, err := server.Read(text)
			if err != nil {
				return
			}
			parts <- part{time.Now().Add(later), text[:n]}
		}
	}()
	for p := range parts {
		time.Sleep(time.Until(p.at))
		if _, err := client.Write(p.text); err != nil {
			return
		}
	}
}

// An event waits for two round trips of the host: one that stores it, and one that stores it in the outbox while the
// ignored users are read. The module makes four more, one of which asks the host for sessions.
func TestAnEventTakesFewRoundTrips(t *testing.T) {
	t.Parallel()
	const trip, most = 50 * time.Millisecond, 6
	server := redistest.Single(t)
	d := startDemo(t, "-redis-mode", "standalone", "-redis", distant(t, server.Addr(), trip))
	for n, user := range []string{"alice", "bob"} {
		body := fmt.Sprintf(`{"kind":"http","app_id":"app","pushkey":"%d","app_display_name":"a","device_display_name":"d","lang":"en",
			"data":{"url":"%s/_matrix/push/v1/notify"}}`, n, d.url)
		if got := d.do(http.MethodPost, "/_matrix/client/v3/pushers/set", "demo-"+user, body); got.status != http.StatusOK {
			t.Fatal(got)
		}
	}
	fastest := time.Hour
	for n := range 8 {
		body := fmt.Sprintf(`{"room_id":"!r:localhost","members":["@alice:localhost","@bob:localhost"],"type":"m.room.message","content":{"body":"%d"}}`, n)
		start := time.Now()
		if got := d.do(http.MethodPost, "/_demo/send", "demo-bob", body); got.status != http.StatusOK {
			t.Fatal(got)
		}
		fastest = min(fastest, time.Since(start))
	}
	t.Logf("%.1f round trips", float64(fastest)/float64(trip))
	if fastest >= (most+1)*trip {
		t.Errorf("the answer takes %v, more than %d round trips of %v", fastest, most, trip)
	}
}
