package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// TestAStopCutsNoRequest: many clients make one request after the other, each on
// a connection that it keeps. When the host stops, each has an answer to each
// request that it could send.
func TestAStopCutsNoRequest(t *testing.T) {
	t.Parallel()
	const clients, stops = 32, 2
	answered := int64(0)
	for range stops {
		d := startDemo(t)
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
			<-connected // one that the host has not accepted yet would be refused, or reset
		}
		poll(t, "all are busy", func() bool { return n.Load() > 20*clients })
		began := time.Now()
		if status := d.stop(); status != exitOK {
			t.Errorf("status %d: %s", status, d.stderr)
		}
		if took := time.Since(began); took > graceLimit {
			t.Errorf("the stop took %v", took)
		}
		running.Wait()
		answered += n.Load()
	}
	t.Logf("%d requests were answered", answered)
}

// askUntilItStops makes requests until no connection can be made any more, and
// says when it has its first answer.
func (d *demo) askUntilItStops(answered *atomic.Int64, connected chan<- struct{}) error {
	first := sync.OnceFunc(func() { connected <- struct{}{} })
	defer first()
	for {
		conn, err := net.Dial("tcp", strings.TrimPrefix(d.url, "http://"))
		if errors.Is(err, syscall.ECONNREFUSED) {
			return nil
		}
		if err != nil {
			return err
		}
		_ = conn.SetDeadline(time.Now().Add(patience))
		err = askUntilItCloses(conn, answered, first)
		conn.Close()
		if err != nil {
			return err
		}
	}
}

// askUntilItCloses makes requests on a connection until an answer says that it
// is the last.
func askUntilItCloses(conn net.Conn, answered *atomic.Int64, first func()) error {
	answers := bufio.NewReader(conn)
	for {
		if _, err := fmt.Fprint(conn, "GET "+rulesPath+" HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer demo-alice\r\n\r\n"); err != nil {
			return err
		}
		response, err := http.ReadResponse(answers, nil)
		if err != nil {
			return err
		}
		if _, err := io.Copy(io.Discard, response.Body); err != nil {
			return err
		}
		if response.StatusCode != http.StatusOK {
			return errors.New(response.Status)
		}
		first()
		if answered.Add(1); response.Close {
			return nil
		}
	}
}

func TestAHostThatStopsIsNotReady(t *testing.T) {
	t.Parallel()
	d := startDemo(t, "-operators", "127.0.0.1:0")
	o := d.forOperators()
	o.expect("GET", "/readyz", "", "", 200, "ok")
	silent := d.dial()
	fmt.Fprint(silent, "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
	if _, err := http.ReadResponse(bufio.NewReader(silent), nil); err != nil {
		t.Fatal(err)
	}
	d.cancel()
	poll(t, "the host says so", func() bool {
		response, err := o.client.Get(o.url + "/readyz")
		if err != nil {
			t.Fatal(err)
		}
		response.Body.Close()
		return response.StatusCode == http.StatusServiceUnavailable
	})
	silent.Close()
	d.stop()
}
