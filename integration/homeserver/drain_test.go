package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/pushfx/pushfx/integration/gateway/receiver"
)

// Many clients make requests, each on its own connection. When the host stops, it answers
// each request that a client has sent.
func TestAStopCutsNoRequest(t *testing.T) {
	t.Parallel()
	const clients, stops = 32, 2
	answered := int64(0)
	for range stops {
		d := startDemo(t, "-drain", (2 * patience).String())
		d.expect("GET", rulesPath, "demo-alice", "", 200, "")
		var n atomic.Int64
		connected := make(chan struct{}, clients)
		var running sync.WaitGroup
		for range clients {
			running.Go(func() {
				if err := d.askUntilItStops(&n, connected); err != nil {
					t.Errorf("a request was cut: %v", err)
				}
			})
		}
		for range clients {
			<-connected // a stop refuses or resets connections that the host has not accepted
		}
		poll(t, "all clients are busy", func() bool { return n.Load() > 20*clients })
		began := time.Now()
		if status := d.stop(); status != exitOK {
			t.Errorf("status %d: %s", status, d.stderr)
		}
		if took := time.Since(began); took > patience {
			t.Errorf("the stop took %v", took)
		}
		running.Wait()
		answered += n.Load()
	}
	t.Logf("%d requests were answered", answered)
}

// askUntilItStops makes requests until the host refuses connections. It sends to connected
// after the first answer.
func (d *demo) askUntilItStops(answered *atomic.Int64, connected chan<- struct{}) error {
	first := sync.OnceFunc(func() { connected <- struct{}{} })
	defer first()
	for {
		conn, err := net.Dial("tcp", strings.TrimPrefix(d.url, "http://"))
		if errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, syscall.ECONNRESET) { // during the handshake
			return nil
		}
		if err != nil {
			return err
		}
		_ = conn.SetDeadline(time.Now().Add(patience))
		got, err := askUntilItCloses(conn, answered, first)
		conn.Close()
		if got == 0 && errors.Is(err, syscall.ECONNRESET) { // the host has not accepted the connection
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// askUntilItCloses makes requests on a connection, and returns how many were answered.
func askUntilItCloses(conn net.Conn, answered *atomic.Int64, first func()) (got int, err error) {
	answers := bufio.NewReader(conn)
	for ; ; got++ {
		if _, err := fmt.Fprint(conn, "GET "+rulesPath+" HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer demo-alice\r\n\r\n"); err != nil {
			return got, err
		}
		response, err := http.ReadResponse(answers, nil)
		if err != nil {
			return got, err
		}
		if _, err := io.Copy(io.Discard, response.Body); err != nil {
			return got, err
		}
		if response.StatusCode != http.StatusOK {
			return got, errors.New(response.Status)
		}
		first()
		if answered.Add(1); response.Close {
			return got + 1, nil
		}
	}
}

func TestAHostThatStopsIsNotReady(t *testing.T) {
	t.Parallel()
	d := startDemo(t, "-operators", "127.0.0.1:0", "-drain", (2 * patience).String())
	o := d.forOperators()
	o.expect("GET", "/readyz", "", "", 200, "ok")
	slow := d.beginRequest()
	d.cancel() // the stop waits for the request
	poll(t, "the host is not ready", func() bool {
		response, err := o.client.Get(o.url + "/readyz")
		if err != nil {
			t.Fatal(err)
		}
		response.Body.Close()
		return response.StatusCode == http.StatusServiceUnavailable
	})
	slow.Close()
	d.stop()
}

// beginRequest sends a request without its body, and returns when the host waits for the
// body.
func (d *demo) beginRequest() net.Conn {
	d.t.Helper()
	slow := d.dial()
	fmt.Fprint(slow, "POST "+sendPath+" HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer demo-bob\r\nContent-Length: 100\r\nExpect: 100-continue\r\n\r\n")
	if _, err := bufio.NewReader(slow).ReadString('\n'); err != nil {
		d.t.Fatal(err)
	}
	return slow
}

// A client never sends the rest of a request body. A stop waits for it as long as -drain.
func TestDrainIsHowLongAStopWaitsForRequests(t *testing.T) {
	t.Parallel()
	const drain = 300 * time.Millisecond
	d := startDemo(t, "-drain", drain.String())
	d.beginRequest()
	began := time.Now()
	if status := d.stop(); status != exitOK {
		t.Errorf("status %d: %s", status, d.stderr)
	}
	if took := time.Since(began); took < drain || took > readTimeout-3*time.Second {
		t.Errorf("the stop took %v, want %v", took, drain)
	}
	if !strings.Contains(d.stderr.String(), "requests were cut off") {
		t.Errorf("the log does not report the request that was cut off: %s", d.stderr)
	}
}

func TestDrainIsHowLongAStopWaitsForNotifications(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name           string
		drain, answers string // answers is the delay of the gateway
		least, most    time.Duration
		isDelivered    bool
	}{
		{"the gateway answers in time", "25s", "300ms", 0, 20 * time.Second, true},
		{"the gateway hangs", "500ms", "1h", 500 * time.Millisecond, 20 * time.Second, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			answersIn, err := time.ParseDuration(test.answers)
			if err != nil {
				t.Fatal(err)
			}
			arrived, delivered := make(chan struct{}, 9), make(chan struct{}, 9)
			gateway := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				io.Copy(io.Discard, r.Body)
				arrived <- struct{}{}
				select {
				case <-time.After(answersIn):
					delivered <- struct{}{}
				case <-r.Context().Done():
				}
			}))
			t.Cleanup(gateway.Close)
			d := startDemo(t, "-drain", test.drain)
			d.setPusherAt(gateway.URL+receiver.Path, "demo-alice", "phone", "")
			d.expect("POST", sendPath, "demo-bob", `{"room_id":"!r:x","members":["@alice:localhost"],"type":"m.room.message","content":{}}`, 200, "")
			<-arrived
			began := time.Now()
			if status := d.stop(); status != exitOK {
				t.Errorf("status %d: %s", status, d.stderr)
			}
			if took := time.Since(began); took < test.least || took > test.most {
				t.Errorf("the stop took %v, want %v to %v", took, test.least, test.most)
			}
			if got := len(delivered) == 1; got != test.isDelivered {
				t.Errorf("the gateway has answered: %v, want %v", got, test.isDelivered)
			}
		})
	}
}
