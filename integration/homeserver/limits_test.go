package main

import (
	"bufio"
	"encoding/json"
	"errors"
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
	"go.uber.org/zap"

	"github.com/pushfx/pushfx/handlers"
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

// hurry makes requests with a token from many clients until time is up, and
// returns how many had this status.
func (d *demo) hurry(clients int, length time.Duration, path, token string, status int) (answered int) {
	d.t.Helper()
	end := time.Now().Add(length)
	counts := make(chan int)
	for range clients {
		go func() {
			n := 0
			for time.Now().Before(end) {
				if a := d.do("GET", path, token, ""); a.status == status {
					n++
				}
			}
			counts <- n
		}()
	}
	for range clients {
		answered += <-counts
	}
	return answered
}

func TestWhoTakesFarMoreThanOthersIsHeldToARate(t *testing.T) {
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
			const rate = 20
			d := startDemo(t, "-user-rate", fmt.Sprint(rate))
			d.expect("GET", rulesPath, "demo-alice", "", 200, "")
			const length = 2 * time.Second // in which alice is not forgotten
			answered := d.hurry(4, length, greedy.path, greedy.token, greedy.status)
			if most := burst + rate*int(length/time.Second) + 4 + 1; answered > most || answered < burst {
				t.Errorf("%d requests were answered, want at most %d", answered, most)
			}
			start := time.Now()
			for range 20 {
				d.expect("GET", rulesPath, "demo-alice", "", 200, "")
			}
			if took := time.Since(start); took > time.Second/rate*20 {
				t.Errorf("another user was held up, too: %v", took)
			}
		})
	}
}

func TestWhoIsAloneHasTheHost(t *testing.T) {
	t.Parallel()
	d := startDemo(t, "-user-rate", "1")
	start := time.Now()
	for range 3 * burst {
		d.expect("GET", rulesPath, "demo-alice", "", 200, "")
	}
	if took := time.Since(start); took > burst*time.Second {
		t.Errorf("took %v", took)
	}
}

func TestTooManyAtATimeAreAnsweredWhenToTryAgain(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("takes as long as a request waits for its turn")
	}
	l := newLimits(1, 0)
	e := echo.New()
	e.HTTPErrorHandler = newErrorHandler(zap.NewNop())
	held := make(chan struct{})
	e.GET("/", func(echo.Context) error { <-held; return nil }, func(next echo.HandlerFunc) echo.HandlerFunc {
		return func(c echo.Context) error {
			c.SetRequest(c.Request().WithContext(withCaller(c.Request().Context(), caller{Requester: handlers.Requester{User: "@mallory:localhost"}})))
			return l.ofUsers(next)(c)
		}
	})
	l.shares.take("@alice:localhost", time.Now().Add(time.Minute)) // for as long as this lasts
	var served sync.WaitGroup
	for range atOnce {
		served.Go(func() { e.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("GET", "/", nil)) })
	}
	poll(t, "the turns are taken", func() bool {
		l.turns.mu.Lock()
		defer l.turns.mu.Unlock()
		line := l.turns.lines["@mallory:localhost"]
		return line != nil && len(line.turn) == atOnce
	})
	w := httptest.NewRecorder()
	e.ServeHTTP(w, httptest.NewRequest("GET", "/", nil))
	close(held)
	served.Wait()
	expectLimited(t, answer{w.Code, w.Header(), w.Body.String()})
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
