package delivery

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/delivery/channel/httppush"
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
	noDate := func(wait time.Duration) func(time.Time) http.Header {
		return func(now time.Time) http.Header {
			return http.Header{"Retry-After": {now.Add(wait).UTC().Format(http.TimeFormat)}}
		}
	}
	const second, century = time.Second, 100 * 365 * 24 * time.Hour
	both := []int{429, 503}
	for label, test := range map[string]struct {
		statuses    []int
		header      func(time.Time) http.Header
		least, most time.Duration
	}{
		"in 90 seconds":      {both, seconds("90"), 90 * second, 92 * second},
		"at a time":          {both, date(90 * second), 90 * second, 92 * second},
		"at no time":         {both, none, 0, 2 * second},
		"at once":            {both, seconds("0"), second, 3 * second},
		"at a time that was": {both, date(-time.Minute), second, 3 * second},
		"in a day":           {both, seconds("86400"), time.Hour, time.Hour + 2*second},
		"in a century":       {both, date(century), time.Hour, time.Hour + 2*second},
		"in an age":          {both, seconds("99999999999999999999999"), time.Hour, time.Hour + 2*second},
		"by its own clock":   {both, noDate(90 * second), 89 * second, 92 * second},
		"before":             {both, seconds("-90"), 0, 2 * second},
		"in a part":          {both, seconds("1.5"), 0, 2 * second},
		"soon":               {both, seconds("soon"), 0, 2 * second},
		"not asked for":      {[]int{502, 404}, seconds("90"), 0, 2 * second},
	} {
		for _, status := range test.statuses {
			label := fmt.Sprint(status, ", ", label)
			t.Run(label, func(t *testing.T) {
				inBubble(t, func(w *world) {
					w.set(name1, "key", "gw")
					gateway := &busyGateway{status: status, header: test.header}
					d, _ := w.hostOn(w.queue, httppush.NewGateway(&http.Client{Transport: gateway}, nil))
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
					t.Logf("%s: tried again after %v", label, waited.Round(time.Millisecond))
				})
			})
		}
	}
}

// countedReads is a queue that counts the notifications that hosts have read.
type countedReads struct {
	module.DeliveryQueue
	n atomic.Int64
}

func (q *countedReads) Read(ctx context.Context, c *module.Claim, limit int) ([]module.Notification, int64, error) {
	all, end, err := q.DeliveryQueue.Read(ctx, c, limit)
	q.n.Add(int64(len(all)))
	return all, end, err
}

func (q *countedReads) Claim(ctx context.Context, requests []module.ClaimRequest) []module.Result[module.Claimed] {
	results := q.DeliveryQueue.Claim(ctx, requests)
	for _, r := range results {
		for _, p := range r.Value.Pushers {
			q.n.Add(int64(len(p.Notifications)))
		}
	}
	return results
}

// While a pusher fails, the notifications behind the first one are not read.
func TestARetryReadsOneNotification(t *testing.T) {
	inBubble(t, func(w *world) {
		const failures, all = 7, 20
		w.answer("gw", statuses(append(slices.Repeat([]int{404}, failures), 200)...))
		w.set(name1, "key", "gw")
		queue := &countedReads{DeliveryQueue: w.queue}
		d, _ := w.hostOn(queue, w)
		for n := range all {
			w.notify(d, n, "!r:h", name1)
			synctest.Wait()
		}
		time.Sleep(10 * time.Minute)
		if sent, read := len(w.delivered("key")), int(queue.n.Load()); sent != all || read > failures+all {
			t.Errorf("%d notifications were delivered, %d read", sent, read)
		}
	})
}

// At a gateway that answers some users, those who fail are tried less and less, however many they are.
func TestWaitsGrowWhileOthersAreAnswered(t *testing.T) {
	inBubble(t, func(w *world) {
		const users, answered = 300, 3
		w.answer("gw", func(_ context.Context, s sent) (module.GatewayAnswer, error) {
			for n := range answered {
				if s.pushkey == key(n) {
					return module.GatewayAnswer{Status: 200}, nil
				}
			}
			return module.GatewayAnswer{Status: 502}, nil
		})
		d := w.host()
		w.notify(d, 0, "!r:h", w.innocents(users)...)
		minute := func(first int) (requests int) {
			before := len(w.all())
			for n := range 30 {
				w.notify(d, first+n, "!r:h", name(n%answered))
				time.Sleep(2 * time.Second)
			}
			return len(w.all()) - before
		}
		minute(1)
		if got := minute(100) / (users - answered); got < 2 || got > 15 {
			t.Errorf("%d requests in a minute for each user who fails", got)
		}
	})
}

// A wait that the queue did not store would end with the claim.
func TestAPostponementIsRepeated(t *testing.T) {
	inBubble(t, func(w *world) {
		var asked, lost atomic.Int64
		w.answer("gw", func(context.Context, sent) (module.GatewayAnswer, error) {
			asked.Add(1)
			return module.GatewayAnswer{Status: 429, RetryAfter: 10 * time.Minute}, nil
		})
		w.queue.Fail = func(operation string) error {
			if operation == "postpone" && lost.Load() < 3 {
				lost.Add(1)
				return errors.New("away")
			}
			return nil
		}
		w.set(name1, "key", "gw")
		w.notify(w.host(), 1, "!r:h", name1)
		time.Sleep(9 * time.Minute)
		if asked.Load() != 1 || lost.Load() != 3 {
			t.Errorf("asked %d times, after %d lost postponements", asked.Load(), lost.Load())
		}
	})
}
