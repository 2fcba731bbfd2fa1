package delivery

import (
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// busyGateway is a push gateway without a network. It answers the first request with a status and headers, and accepts
// later ones.
type busyGateway struct {
	status int
	header func(now time.Time) http.Header
	events []string
	at     []time.Time
}

func (g *busyGateway) RoundTrip(r *http.Request) (*http.Response, error) {
	body, err := io.ReadAll(r.Body)
	reply := &http.Response{StatusCode: http.StatusOK, Body: http.NoBody, Request: r}
	if len(g.at) == 0 {
		reply.StatusCode, reply.Header = g.status, g.header(time.Now())
	}
	_, event, _ := strings.Cut(string(body), `"event_id":"`)
	event, _, _ = strings.Cut(event, `"`)
	g.events, g.at = append(g.events, event), append(g.at, time.Now())
	return reply, err
}

func TestARetryWaitsAsTheAnswerSays(t *testing.T) {
	none := func(time.Time) http.Header { return http.Header{} }
	seconds := func(text string) func(time.Time) http.Header {
		return func(time.Time) http.Header { return http.Header{"Retry-After": {text}} }
	}
	// The clock of the gateway is an hour slow.
	date := func(wait time.Duration) func(time.Time) http.Header {
		return func(now time.Time) http.Header {
			now = now.Add(-time.Hour).UTC()
			return http.Header{"Date": {now.Format(http.TimeFormat)}, "Retry-After": {now.Add(wait).Format(http.TimeFormat)}}
		}
	}
	const second = time.Second
	for name, test := range map[string]struct {
		status      int
		header      func(time.Time) http.Header
		least, most time.Duration
	}{
		"429, in 90 seconds":      {429, seconds("90"), 90 * second, 92 * second},
		"429, at a time":          {429, date(90 * second), 90 * second, 92 * second},
		"429, at no time":         {429, none, 0, 2 * second},
		"503, in 90 seconds":      {503, seconds("90"), 90 * second, 92 * second},
		"503, at a time":          {503, date(90 * second), 90 * second, 92 * second},
		"503, at no time":         {503, none, 0, 2 * second},
		"503, at once":            {503, seconds("0"), second, 3 * second},
		"503, at a time that was": {503, date(-time.Minute), second, 3 * second},
		"503, in a day":           {503, seconds("86400"), time.Hour, time.Hour + 2*second},
		"503, nobody knows when":  {503, seconds("soon"), 0, 2 * second},
		"502, in 90 seconds":      {502, seconds("90"), 0, 2 * second},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(w *world) {
				w.set(name1, "key", "gw")
				gateway := &busyGateway{status: test.status, header: test.header}
				d, stop := w.hostOn(w.queue, NewHTTPGateway(&http.Client{Transport: gateway}))
				defer stop()
				w.notify(d, 1, "!r:h", name1)
				w.notify(d, 2, "!r:h", name1)
				time.Sleep(test.most)
				synctest.Wait()
				if want := []string{"$1", "$1", "$2"}; !slices.Equal(gateway.events, want) {
					t.Fatalf("got %v, want %v", gateway.events, want)
				}
				waited := gateway.at[1].Sub(gateway.at[0])
				if waited < test.least {
					t.Errorf("tried again after %v, want at least %v", waited, test.least)
				}
				t.Logf("%s: tried again after %v", name, waited.Round(time.Millisecond))
			})
		})
	}
}
