package main

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/pushfx/pushfx/module/redistest"
)

// farAway is how long the replies of Redis take. It is long beside the work of the host on a busy machine.
const farAway = 150 * time.Millisecond

// delayReplies returns the address of a proxy that passes each reply of a server on after farAway.
func delayReplies(t *testing.T, server string) string {
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
			go delay(client, server)
		}
	}()
	return listener.Addr().String()
}

func delay(client net.Conn, address string) {
	defer client.Close()
	server, err := net.Dial("tcp", address)
	if err != nil {
		return
	}
	go func() {
		defer server.Close()
		_, _ = io.Copy(server, client)
	}()
	type reply struct {
		text []byte
		due  time.Time
	}
	replies := make(chan reply, 1000)
	defer close(replies)
	go func() { // timers of their own would mix them up on a busy machine
		for r := range replies {
			time.Sleep(time.Until(r.due))
			_, _ = client.Write(r.text)
		}
	}()
	for text := make([]byte, 64<<10); ; {
		n, err := server.Read(text)
		if err != nil {
			return
		}
		replies <- reply{slices.Clone(text[:n]), time.Now().Add(farAway)}
	}
}

// An event waits for one round trip until it is counted and visible. Another one adds it to the logs of its members.
func TestAnEventTakesFewRoundTrips(t *testing.T) {
	t.Parallel()
	const most, events = 3, 30 // the first event loads scripts; a busy machine splits a round trip in two
	d := startDemo(t, "-redis-mode", "standalone", "-redis", delayReplies(t, redistest.Single(t).Addr()))
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
		began := time.Now()
		if got := d.do(http.MethodPost, "/_demo/send", "demo-bob", body); got.status != http.StatusOK {
			t.Fatal(got)
		}
		trips := int(time.Since(began) / farAway)
		t.Logf("%d round trips", trips)
		fewest = min(fewest, trips)
	}
	if fewest > most {
		t.Errorf("an event takes %d round trips, want %d at most", fewest, most)
	}
}
