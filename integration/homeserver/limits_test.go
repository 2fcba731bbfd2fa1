package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/labstack/echo/v4"
)

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

// hurry makes requests with a token from many clients until each was refused ten
// times as too many, and returns how many requests had each status. The refused
// must say when to go on.
func (d *demo) hurry(clients int, method, path, token, body string) map[int]int {
	d.t.Helper()
	end := time.Now().Add(patience)
	answers := make(chan answer, 1000)
	var running sync.WaitGroup
	for range clients {
		running.Go(func() {
			for refused := 0; refused < 10 && time.Now().Before(end); {
				a := d.try(method, path, token, body)
				if a.status == http.StatusTooManyRequests {
					refused++
				}
				answers <- a
			}
		})
	}
	go func() { running.Wait(); close(answers) }()
	statuses := map[int]int{}
	for a := range answers {
		if statuses[a.status]++; a.status == http.StatusTooManyRequests && statuses[a.status] == 1 {
			expectLimited(d.t, a)
		}
	}
	return statuses
}

func TestAClientIsHeldToARate(t *testing.T) {
	t.Parallel()
	for name, greedy := range map[string]struct {
		path, token string
		status      int
	}{
		"user":          {rulesPath, "demo-mallory", 200},
		"no token":      {rulesPath, "", 401},
		"unknown token": {rulesPath, "nobody", 401},
		"no login":      {"/_matrix/client/v3/login", "", 200},
		"no path":       {"/nowhere", "", 404},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const rate = 2 // which the slowest machine exceeds
			d := startDemo(t, "-user-rate", fmt.Sprint(rate))
			start := time.Now()
			statuses := d.hurry(4, "GET", greedy.path, greedy.token, "")
			const burst = requestBurst * rate
			most := burst + int(rate*time.Since(start)/time.Second) + 1
			if answered := statuses[greedy.status]; answered > most || answered < burst || len(statuses) != 2 {
				t.Errorf("answered %v, want at most %d with %d and the rest with 429", statuses, most, greedy.status)
			}
			for range rate {
				d.expect("GET", rulesPath, "demo-alice", "", 200, "") // somebody else
			}
		})
	}
}

func TestWithoutARateNobodyIsHeld(t *testing.T) {
	t.Parallel()
	d := startDemo(t)
	for range 3 * passwordBurst {
		d.login("alice", "demo", "PHONE")
	}
	for range 300 {
		d.expect("GET", rulesPath, "demo-alice", "", 200, "")
	}
}

// TestPasswordsAreTriedAtARate: whoever tries passwords is refused before one is
// hashed, and in both places that take one.
func TestPasswordsAreTriedAtARate(t *testing.T) {
	t.Parallel()
	for name, path := range map[string]string{"login": "/login", "interactive": "/account/password"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := startDemo(t, "-password-rate", "1")
			if got := d.changePassword("demo-alice", "alice", "demo", "s3cret", ""); got.status != 200 {
				t.Fatalf("got %d %s", got.status, got.body)
			}
			body, status := `{"type":"m.login.password","user":"alice","password":"wrong"}`, 403
			if name == "interactive" {
				body, status = `{"new_password":"x","auth":`+auth("alice", "wrong")+`}`, 401
			}
			start := time.Now()
			statuses := d.hurry(16, "POST", v3+path, "demo-alice", body)
			most := passwordBurst + int(time.Since(start)/time.Second) + 1
			if tried := statuses[status]; tried > most || tried == 0 || len(statuses) != 2 {
				t.Errorf("answered %v, want at most %d with %d and the rest with 429", statuses, most, status)
			}
			d.expect("GET", whoamiPath, "demo-alice", "", 200, "") // a session stays
		})
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
		if response.StatusCode != http.StatusRequestEntityTooLarge || !response.Close || !strings.Contains(string(text), "M_TOO_LARGE") || err != nil {
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
	if took := time.Since(start); response.StatusCode != http.StatusBadRequest || !response.Close || took < readTimeout-time.Second {
		t.Errorf("after %v: got %d %s, closed %t", took, response.StatusCode, text, response.Close)
	}
}

// Whoever sends nothing, or half a header, loses the connection long before those who
// send a body slowly.
func TestConnectionsWithoutARequestEnd(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("takes as long as a header may")
	}
	d := startDemo(t)
	var waiting sync.WaitGroup
	for name, sent := range map[string]string{"nothing": "", "half a header": "GET " + rulesPath + " HTTP/1.1\r\nHost: x\r\n"} {
		conn, start := d.dial(), time.Now()
		fmt.Fprint(conn, sent)
		waiting.Go(func() {
			_, err := io.Copy(io.Discard, conn)
			if took := time.Since(start); err != nil || took < headerTimeout-time.Second || took > readTimeout-time.Second {
				t.Errorf("%s: the connection ended after %v, %v", name, took, err)
			}
		})
	}
	d.expect("GET", rulesPath, "demo-alice", "", 200, "")
	waiting.Wait()
}

func TestClientsHaveSoManyConnections(t *testing.T) {
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

func TestAddresses(t *testing.T) {
	t.Parallel()
	for remote, want := range map[string]string{
		"192.0.2.7:1234":           "192.0.2.7",
		"[2001:db8:1:2:3::4]:1234": "2001:db8:1:2::/64",
		"[2001:db8:1:2:9::9]:99":   "2001:db8:1:2::/64",
		"[fe80::1%eth0]:1234":      "fe80::/64",
		"[::ffff:192.0.2.7]:1234":  "::ffff:192.0.2.7",
		"":                         "",
	} {
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		r.RemoteAddr = remote
		if got := addressOf(echo.New().NewContext(r, nil)); got != want {
			t.Errorf("%s: got %s, want %s", remote, got, want)
		}
	}
}
