package hostile

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/pushfx/pushfx/integration/bench/servers"
)

// The well-behaved users: each makes few requests, but all together enough to
// tell the 99th percentile.
const (
	users       = 100
	steadyRate  = 400 // requests a second, of all users together
	connections = 16  // of all users together
)

// waits are how long requests took, sorted, and how many had another answer
// than 200.
type waits struct {
	times  []time.Duration
	failed int
}

// quantile is the wait that is not exceeded by this part of the requests.
func (w waits) quantile(part float64) time.Duration {
	return w.times[int(part*float64(len(w.times)-1))]
}

// steady are the well-behaved users.
type steady struct {
	base   string
	client *http.Client
}

func newSteady(address string) *steady {
	transport := &http.Transport{MaxConnsPerHost: connections, MaxIdleConnsPerHost: connections}
	return &steady{"http://" + address + prefix, &http.Client{Transport: transport, Timeout: servers.Patience}}
}

// settle has every user make each request once, so that all that is created at
// first use exists.
func (s *steady) settle(ctx context.Context) error {
	for n := range users * len(turns) {
		if err := s.send(ctx, n); err != nil {
			return err
		}
	}
	return nil
}

// run makes requests for some time. Each is made when it is due, whether those
// before have an answer or not, so that one that waits hides none.
func (s *steady) run(ctx context.Context, length time.Duration) waits {
	times := make([]time.Duration, int(length.Seconds()*steadyRate))
	errs := make([]error, len(times))
	var running sync.WaitGroup
	start := time.Now()
	for n := range times {
		time.Sleep(time.Until(start.Add(time.Duration(n) * time.Second / steadyRate)))
		running.Go(func() {
			due := time.Now()
			errs[n] = s.send(ctx, n)
			times[n] = time.Since(due)
		})
	}
	running.Wait()
	slices.Sort(times)
	failed := len(errs) - len(slices.DeleteFunc(errs, func(err error) bool { return err != nil }))
	return waits{times, failed}
}

// turn is a request of a well-behaved user.
type turn struct {
	method, path string
	body         func(user, n int) string
}

// turns are what each user does, one after the other.
var turns = []turn{
	{http.MethodGet, "/pushrules/", func(int, int) string { return "" }},
	{http.MethodPut, "/pushrules/global/override/.m.rule.master/enabled", func(_, n int) string {
		return fmt.Sprintf(`{"enabled":%t}`, n/(4*users)%2 == 0)
	}},
	{http.MethodGet, "/pushers", func(int, int) string { return "" }},
	{http.MethodPost, "/pushers/set", func(user, n int) string {
		return pusherBody(fmt.Sprint("steady-", user), fmt.Sprint("Phone ", n))
	}},
}

// send makes the nth request.
func (s *steady) send(ctx context.Context, n int) error {
	user, turn := n%users, turns[n/users%len(turns)]
	return s.do(ctx, fmt.Sprint("demo-steady", user), turn, turn.body(user, n))
}

// errTooMany says that a client made more requests than it may.
var errTooMany = errors.New("too many requests")

// do makes a request. Any other answer than 200 is an error.
func (s *steady) do(ctx context.Context, token string, t turn, body string) error {
	r, err := http.NewRequestWithContext(ctx, t.method, s.base+t.path, strings.NewReader(body))
	if err != nil {
		return err
	}
	r.Header.Set("Authorization", "Bearer "+token)
	response, err := s.client.Do(r)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if response.StatusCode == http.StatusTooManyRequests {
		return errTooMany
	}
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s %s: %d %s", t.method, t.path, response.StatusCode, text)
	}
	return err
}
