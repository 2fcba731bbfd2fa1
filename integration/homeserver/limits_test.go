package main

import (
	"bufio"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

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

func (d *demo) untilLimited(method, path, token, body string) {
	d.t.Helper()
	for end := time.Now().Add(patience); time.Now().Before(end); {
		if a := d.do(method, path, token, body); a.status == http.StatusTooManyRequests {
			expectLimited(d.t, a)
			return
		}
	}
	d.t.Errorf("%s %s: no limit", method, path)
}

func TestRequestRateLimit(t *testing.T) {
	t.Parallel()
	for path, token := range map[string]string{
		rulesPath: "demo-mallory", whoamiPath: "", v3 + "/sync": "nobody", v3 + "/login": "",
	} {
		d := startDemo(t, "-user-rate", "2")
		d.untilLimited("GET", path, token, "")
		d.expect("GET", rulesPath, "demo-alice", "", 200, "") // another user
	}
}

// The limit counts passwords of logins and of user-interactive authentication.
func TestPasswordRateLimit(t *testing.T) {
	t.Parallel()
	d := startDemo(t, "-password-rate", "1")
	if got := d.changePassword("demo-alice", "alice", "demo", "s3cret", ""); got.status != 200 {
		t.Fatalf("got %d %s", got.status, got.body)
	}
	d.untilLimited("POST", v3+"/login", "", `{"type":"m.login.password","user":"bob","password":""}`)
	d.untilLimited("POST", v3+"/account/password", "demo-alice", `{"new_password":"x","auth":`+auth("alice", "")+`}`)
	d.expect("GET", whoamiPath, "demo-alice", "", 200, "") // the session stays
}

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

// The host closes the connection of a client that sends nothing, half a header or half a
// body. Until then it answers other requests of the same user.
func TestConnectionsWithoutARequestAreClosed(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("takes as long as a body may")
	}
	d := startDemo(t)
	const header = "PUT " + rulesPath + "global/room/slow HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer demo-alice\r\nContent-Length: 100\r\n"
	var waiting sync.WaitGroup
	for sent, limit := range map[string]time.Duration{"": headerTimeout, header: headerTimeout, header + "\r\n{": readTimeout} {
		conn, start := d.dial(), time.Now()
		fmt.Fprint(conn, sent)
		waiting.Go(func() {
			_, err := io.Copy(io.Discard, conn)
			if took := time.Since(start); err != nil || took < limit-time.Second || limit == headerTimeout && took > readTimeout-time.Second {
				t.Errorf("%q: the connection ended after %v, %v", sent, took, err)
			}
		})
	}
	d.expect("GET", rulesPath, "demo-alice", "", 200, "")
	waiting.Wait()
}

func TestALargeBodyIsNotReadCompletely(t *testing.T) {
	t.Parallel()
	d := startDemo(t)
	const length = 10 << 20
	for _, head := range []string{fmt.Sprintf("Content-Length: %d\r\n\r\n", length), "Transfer-Encoding: chunked\r\n\r\na00000\r\n"} {
		conn := d.dial()
		fmt.Fprint(conn, "PUT "+rulesPath+"global/room/large HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer demo-alice\r\n"+head)
		sent := make(chan int64, 1)
		go func() {
			n, _ := io.Copy(conn, io.LimitReader(rand.Reader, length)) // ends when the host closes the connection
			sent <- n
		}()
		response, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(response.Body)
		if response.StatusCode != http.StatusRequestEntityTooLarge || !response.Close || !strings.Contains(string(text), "M_TOO_LARGE") || err != nil {
			t.Errorf("got %d %s, %v, closed %t", response.StatusCode, text, err, response.Close)
		}
		if n := <-sent; n == length {
			t.Errorf("all %d bytes were read", n)
		}
	}
}

func TestConnectionLimit(t *testing.T) {
	t.Parallel()
	d := startDemo(t, "-connections", "3")
	ask := func(conn net.Conn) error {
		fmt.Fprint(conn, "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
		_, err := http.ReadResponse(bufio.NewReader(conn), nil)
		return err
	}
	var conns []net.Conn
	for range 3 {
		conn := d.dial()
		if err := ask(conn); err != nil {
			t.Fatal(err)
		}
		conns = append(conns, conn)
	}
	late, answered := d.dial(), make(chan error, 1)
	go func() { answered <- ask(late) }()
	select {
	case err := <-answered:
		t.Errorf("a connection too many was answered: %v", err)
	case <-time.After(settling):
	}
	conns[0].Close()
	if err := <-answered; err != nil {
		t.Errorf("there is room, and still: %v", err)
	}
}
