package delivery

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/delivery/dialguard"
	"github.com/pushfx/pushfx/module/pusher"
)

// What push gateways have answered to requests of this package, byte for byte.
// An empty answer is a connection that was cut.
func TestRecordedAnswers(t *testing.T) {
	t.Parallel()
	const pushkey = "http://127.0.0.1:12586/upAAAAAAAAAA01?up=1"
	ntfy := func(status, length, body string) string {
		return lines("HTTP/1.1 "+status, "Access-Control-Allow-Origin: *", "Content-Type: application/json",
			"Date: Sun, 22 Nov 2026 09:51:53 GMT", "Content-Length: "+length, "", body+"\n")
	}
	sygnal := func(status, body string) string { // after the provider has answered
		return lines("HTTP/1.1 "+status, "Transfer-Encoding: chunked", "Server: TwistedWeb/22.4.0",
			"Date: Sun, 22 Nov 2026 10:20:42 GMT", "Content-Type: text/html", "", body+"0", "", "")
	}
	refusal := func(length, body string) string {
		return lines("HTTP/1.1 400 Bad Request", "Server: TwistedWeb/22.4.0", "Date: Sun, 22 Nov 2026 10:20:43 GMT",
			"Content-Length: "+length, "Content-Type: text/html", "", body)
	}
	for name, test := range map[string]struct {
		answer string
		want   verdict
	}{
		"ntfy 2.13: taken": {lines("HTTP/1.1 200 OK", "Content-Type: application/json",
			"Date: Sun, 22 Nov 2026 09:51:53 GMT", "Content-Length: 16", "", `{"rejected":[]}`+"\n"), delivered},
		"ntfy 2.13: a pushkey of another server, or nobody has listened for 12 hours": {lines("HTTP/1.1 200 OK",
			"Content-Type: application/json", "Date: Sun, 22 Nov 2026 09:51:53 GMT", "Content-Length: 60", "",
			`{"rejected":["http://127.0.0.1:12586/upAAAAAAAAAA01?up=1"]}`+"\n"), rejected},
		"ntfy 2.13: nobody listens": {ntfy("507 Insufficient Storage", "109",
			`{"code":50701,"http":507,"error":"cannot publish to UnifiedPush topic without previously active subscriber"}`), busy},
		"ntfy 2.13: too large": {ntfy("413 Request Entity Too Large", "89",
			`{"code":41302,"http":413,"error":"Matrix request is larger than the max allowed length"}`), refused},
		"ntfy 2.13: too many requests": {ntfy("429 Too Many Requests", "120",
			`{"code":42901,"http":429,"error":"limit reached: too many requests","link":"https://ntfy.sh/docs/publish/#limitations"}`), limited},
		"ntfy 2.13: too many today": {ntfy("429 Too Many Requests", "130",
			`{"code":42908,"http":429,"error":"limit reached: daily message quota reached","link":"https://ntfy.sh/docs/publish/#limitations"}`), limited},
		"ntfy 2.13: no topic": {ntfy("500 Internal Server Error", "58",
			`{"code":50001,"http":500,"error":"internal server error"}`), failed},
		"ntfy 2.13: no notification": {ntfy("400 Bad Request", "127",
			`{"code":40019,"http":400,"error":"invalid request: Matrix JSON invalid","link":"https://ntfy.sh/docs/publish/#matrix-gateway"}`), refused},
		"sygnal 0.17: taken, or given up after 70 s":           {sygnal("200 OK", "10\r\n{\"rejected\": []}\r\n"), delivered},
		"sygnal 0.17: unknown app, or the provider rejects it": {sygnal("200 OK", "3c\r\n{\"rejected\": [\""+pushkey+"\"]}\r\n"), rejected},
		"sygnal 0.17: the provider refuses or fails":           {sygnal("502 Bad Gateway", ""), failed},
		"sygnal 0.17: a sound that is no text":                 {refusal("24", "sound is of invalid type"), refused},
		"sygnal 0.17: no JSON":                                 {refusal("26", "Expected JSON request body"), refused},
		"sygnal 0.17: more than 512 KiB":                       {"", failed},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			client := dialguard.New(netip.MustParsePrefix("127.0.0.1/32")).Client(1)
			defer client.CloseIdleConnections()
			answer, err := NewHTTPGateway(client).Post(t.Context(), "http://"+replays(t, test.answer)+pusher.NotifyPath, []byte(`{}`))
			if got, wait := judge(answer, err, pushkey); got != test.want || wait != 0 {
				t.Errorf("got %v after %+v, %v, want %v", got, answer, err, test.want)
			}
		})
	}
}

func lines(of ...string) string { return strings.Join(of, "\r\n") }

// replays serves one request with the bytes of an answer, at the address that it
// returns.
func replays(t *testing.T, answer string) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	go func() {
		conn, err := listener.Accept()
		if err != nil {
			return
		}
		defer conn.Close()
		if request, err := http.ReadRequest(bufio.NewReader(conn)); err == nil {
			io.Copy(io.Discard, request.Body)
			io.WriteString(conn, answer)
		}
	}()
	return listener.Addr().String()
}

// Ntfy limits the requests for each app that listens, and the notifications of a
// day, and does not say when to try again. That is nobody's fault but the pusher's.
func TestNothingIsSkippedForTooManyRequests(t *testing.T) {
	inBubble(t, func(w *world) {
		d, stop := w.started()
		defer stop()
		w.users(2, "gw")
		day := time.Now().Add(6 * time.Hour)
		w.answer("gw", func(_ context.Context, s sent) (module.GatewayAnswer, error) {
			if s.pushkey == key(0) && time.Now().Before(day) {
				return status(429), nil
			}
			return status(200), nil
		})
		w.notify(d, 1, "!r:h", name(0))
		w.notify(d, 2, "!r:h", name(0))
		for e := range 6 * 60 {
			w.notify(d, 100+e, "!r:h", name(1)) // is delivered
			time.Sleep(time.Minute)
		}
		tries, slim := w.tries("$1", key(0))
		if tries > 140 || slim > 0 || w.drops(DropRefused) > 0 {
			t.Errorf("sent %d times in six hours, %d of them slim, %d are refused", tries, slim, w.drops(DropRefused))
		}
		time.Sleep(longestWait)
		synctest.Wait()
		if got := w.got(key(0)); !slices.Equal(got[len(got)-2:], []string{"$1", "$2"}) {
			t.Errorf("got %v in the end", got[tries:])
		}
	})
}

// A gateway that takes so many requests a minute, and does not say so, is not sent
// many more: some ban who does.
func TestAGatewayThatLimitsRequestsIsSentFewMore(t *testing.T) {
	inBubble(t, func(w *world) {
		d, stop := w.started()
		defer stop()
		users := w.users(8, "gw")
		const burst, interval = 60, 5 * time.Second // as ntfy has them
		began, taken, over := time.Now(), 0, 0
		w.answer("gw", func(context.Context, sent) (module.GatewayAnswer, error) {
			w.mu.Lock()
			defer w.mu.Unlock()
			if taken >= burst+int(time.Since(began)/interval) {
				over++
				return status(429), nil
			}
			taken++
			return status(200), nil
		})
		for e := range 12 {
			w.notify(d, e+1, "!r:h", users...)
		}
		const minutes = 3
		time.Sleep(minutes * time.Minute)
		w.mu.Lock()
		defer w.mu.Unlock()
		// Of each room three are kept of each pusher.
		if taken < burst+3*len(users)-8 || over > 20+taken-burst {
			t.Errorf("%d were taken, and %d were too many", taken, over)
		}
	})
}
