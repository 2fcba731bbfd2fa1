package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"
)

// exhaust makes requests with a token until one is refused.
func (d *demo) exhaust(path, token string) answer {
	d.t.Helper()
	for range 2 * burst {
		if a := d.do("GET", path, token, ""); a.status == http.StatusTooManyRequests {
			return a
		}
	}
	d.t.Fatalf("none of %d requests was refused", 2*burst)
	return answer{}
}

// expectLimited checks the answer to one request too many.
func expectLimited(t *testing.T, a answer) {
	t.Helper()
	var body struct {
		Errcode    string `json:"errcode"`
		Error      string `json:"error"`
		RetryAfter int64  `json:"retry_after_ms"`
	}
	if err := json.Unmarshal([]byte(a.body), &body); err != nil || body.Errcode != "M_LIMIT_EXCEEDED" || body.Error == "" || body.RetryAfter <= 0 {
		t.Errorf("got %s, %v", a.body, err)
	}
	if seconds, err := strconv.ParseInt(a.header.Get("Retry-After"), 10, 64); err != nil || seconds*1000 < body.RetryAfter {
		t.Errorf("Retry-After is %q, the body %s", a.header.Get("Retry-After"), a.body)
	}
}

func TestALimitedUserLimitsNobodyElse(t *testing.T) {
	t.Parallel()
	d := startDemo(t, "-user-rate", "1")
	expectLimited(t, d.exhaust(rulesPath, "demo-mallory"))
	d.expect("GET", rulesPath, "demo-alice", "", 200, "")
	d.expect("GET", "/_matrix/client/versions", "", "", 200, "")
}

func TestStrangersAreLimitedAndUsersOfTheirAddressAreNot(t *testing.T) {
	t.Parallel()
	for _, token := range []string{"", "nobody"} {
		d := startDemo(t, "-user-rate", "1")
		expectLimited(t, d.exhaust(rulesPath, token))
		expectLimited(t, d.exhaust("/_matrix/client/v3/login", ""))
		expectLimited(t, d.exhaust("/nowhere", ""))
		d.expect("GET", "/healthz", "", "", 200, "")
		d.expect("GET", rulesPath, "demo-alice", "", 200, "")
	}
}

func TestALargeBodyIsNotReadToItsEnd(t *testing.T) {
	t.Parallel()
	d := startDemo(t)
	const length = 10 << 20
	for _, head := range []string{fmt.Sprintf("Content-Length: %d\r\n\r\n", length), "Transfer-Encoding: chunked\r\n\r\na00000\r\n"} {
		conn := d.dial()
		fmt.Fprint(conn, "PUT "+rulesPath+"global/room/large HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer demo-alice\r\n"+head)
		sent := make(chan int64, 1)
		go func() {
			n, _ := io.Copy(conn, io.LimitReader(endless{}, length)) // ends where the host does
			sent <- n
		}()
		response, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(response.Body)
		if response.StatusCode != 413 || !response.Close || !strings.Contains(string(text), "M_TOO_LARGE") || err != nil {
			t.Errorf("got %d %s, %v, closed %t", response.StatusCode, text, err, response.Close)
		}
		if n := <-sent; n == length {
			t.Errorf("all %d bytes were read", n)
		}
	}
}

// endless is a body without an end.
type endless struct{}

func (endless) Read(p []byte) (int, error) { return len(p), nil }

// dial connects to the host; the connection ends with the test.
func (d *demo) dial() net.Conn {
	d.t.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(d.url, "http://"))
	if err != nil {
		d.t.Fatal(err)
	}
	d.t.Cleanup(func() { conn.Close() })
	_ = conn.SetDeadline(time.Now().Add(readTimeout + patience))
	return conn
}

func TestASlowBodyEndsAndIsInNobodysWay(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("takes as long as a body may")
	}
	d := startDemo(t)
	conn := d.dial()
	start := time.Now()
	fmt.Fprint(conn, "PUT "+rulesPath+"global/room/slow HTTP/1.1\r\nHost: x\r\n"+
		"Authorization: Bearer demo-alice\r\nContent-Length: 100\r\n\r\n{")
	d.expect("GET", rulesPath, "demo-alice", "", 200, "") // of the same user
	response, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	text, _ := io.ReadAll(response.Body)
	if took := time.Since(start); response.StatusCode != 400 || !response.Close || took < readTimeout-time.Second {
		t.Errorf("after %v: got %d %s, closed %t", took, response.StatusCode, text, response.Close)
	}
}

func TestAnAddressHasSoManyConnections(t *testing.T) {
	t.Parallel()
	d := startDemo(t, "-address-connections", "3")
	var conns []net.Conn
	for range 3 {
		conn := d.dial()
		fmt.Fprint(conn, "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
		if _, err := http.ReadResponse(bufio.NewReader(conn), nil); err != nil {
			t.Fatal(err)
		}
		conns = append(conns, conn)
	}
	if n, err := d.dial().Read(make([]byte, 1)); n > 0 || err == nil {
		t.Errorf("read %d bytes, %v", n, err)
	}
	conns[0].Close()
	poll(t, "there is room for another connection", func() bool {
		conn := d.dial()
		defer conn.Close()
		fmt.Fprint(conn, "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
		_, err := http.ReadResponse(bufio.NewReader(conn), nil)
		return err == nil
	})
}

func TestTheDoorForgetsAddresses(t *testing.T) {
	t.Parallel()
	d := newDoor(1)
	here, there := net.Pipe()
	for range 2 {
		d.watch(here, http.StateNew)
	}
	if _, err := there.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Errorf("the second connection was not closed: %v", err)
	}
	for range 2 {
		d.watch(here, http.StateClosed)
	}
	if len(d.open) > 0 {
		t.Errorf("left over: %v", d.open)
	}
}

func TestRatesGiveRequestsBackAsTimeGoesBy(t *testing.T) {
	t.Parallel()
	r, now := newRates(10), time.Now()
	for range burst {
		if wait := r.take("alice", now); wait != 0 {
			t.Fatalf("has to wait %v", wait)
		}
	}
	if wait := r.take("alice", now); wait != r.interval {
		t.Errorf("has to wait %v, want %v", wait, r.interval)
	}
	if wait := r.take("bob", now); wait != 0 {
		t.Errorf("another has to wait %v", wait)
	}
	for i := range 3 {
		now = now.Add(r.interval)
		if first, second := r.take("alice", now), r.take("alice", now); first != 0 || second <= 0 {
			t.Errorf("interval %d: has to wait %v and %v", i, first, second)
		}
	}
}

func TestRatesOutliveTheirGenerations(t *testing.T) {
	t.Parallel()
	r, start := newRates(10), time.Now()
	served := 0
	const seconds = 60
	for at := time.Duration(0); at < seconds*time.Second; at += 7 * time.Millisecond {
		if r.take("alice", start.Add(at)) == 0 {
			served++
		}
	}
	if most := burst + 10*seconds; served > most || served < most-1 {
		t.Errorf("%d requests were served, want %d", served, most)
	}
}

func TestRatesForgetThoseWhoWentAway(t *testing.T) {
	t.Parallel()
	r, now := newRates(10), time.Now()
	for i := range 100_000 {
		r.take(fmt.Sprint(i), now)
	}
	for range 2 {
		now = now.Add(burst * r.interval)
		r.take("alice", now)
	}
	if left := len(r.recent) + len(r.older); left > 2 {
		t.Errorf("%d are remembered", left)
	}
}

func TestALongRequestCountsAsMany(t *testing.T) {
	t.Parallel()
	r := newRates(10)
	r.charge("alice", 0)
	if len(r.recent) > 0 {
		t.Error("a usual request was charged")
	}
	r.charge("alice", time.Hour)
	now := time.Now()
	if back := r.back("alice", now).Sub(now); back > maxCost || back < maxCost/2 {
		t.Errorf("all is back after %v, want %v", back, maxCost)
	}
	for range burst {
		r.charge("alice", time.Hour)
	}
	if back := r.back("alice", now).Sub(now); back > burst*r.interval+patience {
		t.Errorf("all is back after %v", back)
	}
}

func TestOneRequestOfAUserIsServedAtATime(t *testing.T) {
	t.Parallel()
	turns, ctx := newTurns(), t.Context()
	leave, err := turns.take(ctx, "alice")
	if err != nil {
		t.Fatal(err)
	}
	other, err := turns.take(ctx, "bob")
	if err != nil {
		t.Fatal("another user has to wait", err)
	}
	gone, cancel := context.WithCancel(ctx)
	cancel()
	for _, ctx := range []context.Context{ctx, gone} {
		if _, err := turns.take(ctx, "alice"); err == nil {
			t.Error("two at a time")
		}
	}
	next := make(chan error)
	go func() {
		leave, err := turns.take(ctx, "alice")
		if err == nil {
			leave()
		}
		next <- err
	}()
	leave()
	other()
	if err := <-next; err != nil {
		t.Error(err)
	}
	if len(turns.lines) > 0 {
		t.Errorf("left over: %v", turns.lines)
	}
}
