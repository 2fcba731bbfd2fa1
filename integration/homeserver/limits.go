package main

import (
	"bytes"
	"cmp"
	"context"
	"io"
	"math"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/labstack/echo/v4"
)

// The limits of what one client can take from the others.
const (
	// burst is how many requests one user, and one address without a login, can
	// make at once; then there is the rate.
	burst = 50

	// refusalPause is how long a request waits before it is refused. It makes
	// refusals cheap: a client that goes on at once gets no more than one a
	// second on each of its connections.
	refusalPause = time.Second

	// A request that takes longer than usual counts as more than one: the time
	// beyond counts this many times, up to a bound, so that no outage of the
	// Redis shuts a user out for long.
	usualTime  = 2 * time.Millisecond
	costFactor = 100
	maxCost    = 2 * time.Second
)

// limits keeps one client from taking what the others need: it bounds what each
// user has the host do, and each address where no user is known.
type limits struct {
	users, addresses *rates
	turns            *turns
	usual            time.Duration // of a request
}

// newLimits returns limits with a rate in requests a second, 0 for none.
// LongestWait is what a change may wait for its durability.
func newLimits(rate int, longestWait time.Duration) *limits {
	return &limits{newRates(rate), newRates(rate), newTurns(), usualTime + longestWait}
}

// ofStrangers is the middleware for what needs no login.
func (l *limits) ofStrangers(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		if err := l.stranger(c); err != nil {
			return err
		}
		return next(c)
	}
}

// stranger refuses a request of an address that makes too many without a login.
func (l *limits) stranger(c echo.Context) error {
	host, _, _ := net.SplitHostPort(c.Request().RemoteAddr)
	return refuse(c, l.addresses.take(host, time.Now()))
}

// ofUsers is the middleware for what needs a login. It comes after that of the
// authentication. A request waits for its turn when its body has arrived, so
// that a slow one is in nobody's way.
func (l *limits) ofUsers(next echo.HandlerFunc) echo.HandlerFunc {
	if l.users.interval == 0 {
		return next
	}
	return func(c echo.Context) error {
		user := string(callerFrom(c.Request().Context()).User)
		if strings.HasSuffix(c.Path(), "/sync") { // most of the time it waits for news
			if err := refuse(c, l.users.take(user, time.Now())); err != nil {
				return err
			}
			return next(c)
		}
		if err := receiveBody(c); err != nil {
			return cmp.Or(refuse(c, l.users.take(user, time.Now())), err)
		}
		leave, err := l.turns.take(c.Request().Context(), user)
		if err != nil {
			return err
		}
		start := time.Now()
		if wait := l.users.take(user, start); wait > 0 {
			leave() // the pause is not a part of the turn
			return refuse(c, wait)
		}
		defer leave()
		defer func() { l.users.charge(user, time.Since(start)-l.usual) }()
		return next(c)
	}
}

// refuse makes the client wait and returns the error for it, where it is to
// wait at all.
func refuse(c echo.Context, wait time.Duration) error {
	if wait <= 0 {
		return nil
	}
	pause(c.Request().Context(), refusalPause)
	return tooMany(wait)
}

// tooMany is the error for a client that can go on after some time (Matrix
// specification, "Rate limiting").
func tooMany(wait time.Duration) error {
	return &matrixError{
		status: http.StatusTooManyRequests, errcode: "M_LIMIT_EXCEEDED", text: "Too many requests.",
		retryAfter: max(wait, time.Millisecond),
	}
}

// pause waits that long, or until ctx ends.
func pause(ctx context.Context, length time.Duration) {
	timer := time.NewTimer(length)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}

// receiveBody waits until the body of a PUT or POST has arrived.
func receiveBody(c echo.Context) error {
	r := c.Request()
	if r.Method != http.MethodPut && r.Method != http.MethodPost {
		return nil
	}
	body, err := readBody(c, maxBodyBytes)
	if err != nil {
		return err
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	return nil
}

// rates bounds how many requests each key, a user or an address, makes. It
// forgets the keys that have all their requests back.
type rates struct {
	interval time.Duration // in which a key gets one back; 0 is no bound

	mu            sync.Mutex
	recent, older map[string]time.Time // when a key will have all back
	began         time.Time            // of recent
}

func newRates(rate int) *rates {
	r := &rates{recent: map[string]time.Time{}}
	if rate > 0 {
		r.interval = time.Second / time.Duration(rate)
	}
	return r
}

// charge has a request that took longer than usual count as more than one.
func (r *rates) charge(key string, beyond time.Duration) {
	cost := costFactor * min(beyond, maxCost/costFactor)
	if r.interval == 0 || cost <= 0 {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	back := r.back(key, now).Add(cost)
	if latest := now.Add(burst * r.interval); back.After(latest) {
		back = latest // or it could be forgotten too soon
	}
	r.recent[key] = back
}

// back is when a key will have all its requests back.
func (r *rates) back(key string, now time.Time) time.Time {
	back := now
	for _, keys := range []map[string]time.Time{r.recent, r.older} {
		if at := keys[key]; at.After(back) {
			back = at
		}
	}
	return back
}

// take takes one of the requests of a key. If there is none, it returns how
// long it is until there is one.
func (r *rates) take(key string, now time.Time) (wait time.Duration) {
	if r.interval == 0 {
		return 0
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	span := burst * r.interval
	if now.Sub(r.began) >= span { // what is older than that is whole again
		r.older, r.recent, r.began = r.recent, map[string]time.Time{}, now
	}
	back := r.back(key, now).Add(r.interval)
	if wait := back.Sub(now) - span; wait > 0 {
		return wait
	}
	r.recent[key] = back
	return 0
}

// turns has each user's requests served one at a time, so that no user has more
// than one core.
type turns struct {
	mu    sync.Mutex
	lines map[string]*line // of users with requests
}

// line is the requests of a user.
type line struct {
	turn    chan struct{} // has room for the one that is served
	present int
}

func newTurns() *turns { return &turns{lines: map[string]*line{}} }

// take waits for the turn of a request, for a while. Leave gives it back.
func (t *turns) take(ctx context.Context, user string) (leave func(), err error) {
	l := t.enter(user)
	timer := time.NewTimer(refusalPause)
	defer timer.Stop()
	select {
	case l.turn <- struct{}{}:
		return func() { <-l.turn; t.leave(user) }, nil
	case <-ctx.Done():
	case <-timer.C:
	}
	t.leave(user)
	return nil, tooMany(refusalPause)
}

func (t *turns) enter(user string) *line {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.lines[user] == nil {
		t.lines[user] = &line{turn: make(chan struct{}, 1)}
	}
	t.lines[user].present++
	return t.lines[user]
}

func (t *turns) leave(user string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.lines[user].present--; t.lines[user].present == 0 {
		delete(t.lines, user)
	}
}

// retryAfter is a wait in the seconds of the Retry-After header.
func retryAfter(wait time.Duration) string { return strconv.Itoa(int(math.Ceil(wait.Seconds()))) }
