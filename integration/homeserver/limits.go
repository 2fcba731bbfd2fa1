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
	"time"

	"github.com/labstack/echo/v4"
)

// limits keeps one client from taking what the others need. They bind nobody who
// is alone, and nobody who takes about as much as the others.
type limits struct {
	shares *shares
	turns  *turns
	wait   time.Duration // of a change for its durability, at most
}

// newLimits returns limits with a rate in requests a second, 0 for none.
// LongestWait is what a change may wait for its durability.
func newLimits(rate int, longestWait time.Duration) *limits {
	return &limits{newShares(rate), newTurns(), longestWait}
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

// stranger has a request of an address without a login wait until it may be
// answered.
func (l *limits) stranger(c echo.Context) error {
	address, _, _ := net.SplitHostPort(c.Request().RemoteAddr)
	leave, err := l.enter(c.Request().Context(), address)
	leave()
	return err
}

// ofUsers is the middleware for what needs a login. It comes after that of the
// authentication. A request waits for its turn when its body has arrived, so
// that a slow one is in nobody's way; a sync has none, as it may wait long.
func (l *limits) ofUsers(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		ctx := c.Request().Context()
		user := string(callerFrom(ctx).User)
		broken := l.receiveBody(c, user)
		leave, err := l.enter(ctx, user)
		if err = cmp.Or(broken, err); err != nil {
			leave()
			return err
		}
		if strings.HasSuffix(c.Path(), "/sync") {
			leave()
			return next(c)
		}
		start := time.Now()
		defer func() {
			l.shares.charge(user, max(0, time.Since(start)-l.wait), c.Response().Size)
			leave()
		}()
		return next(c)
	}
}

// nothing is the end of what was never begun.
func nothing() {}

// enter returns when a request may be served. Leave is to be called when it was.
func (l *limits) enter(ctx context.Context, who string) (leave func(), err error) {
	if l.shares.alone(who, time.Now()) {
		l.shares.take(who, time.Now())
		return nothing, nil
	}
	leave, err = l.turns.take(ctx, who)
	for err == nil {
		wait := l.shares.take(who, time.Now())
		if wait == 0 {
			return leave, nil
		}
		if pause(ctx, wait); ctx.Err() != nil {
			leave()
			err = tooMany(wait) // the client has gone
		}
	}
	return nothing, err
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

// receiveBody waits until the body of a PUT or POST has arrived, where the
// request may have to wait for its turn.
func (l *limits) receiveBody(c echo.Context, user string) error {
	r := c.Request()
	if r.ContentLength == 0 || l.shares.alone(user, time.Now()) || r.Method != http.MethodPut && r.Method != http.MethodPost {
		return nil
	}
	body, err := readBody(c, maxBodyBytes)
	if err != nil {
		return err
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	return nil
}

// retryAfter is a wait in the seconds of the Retry-After header.
func retryAfter(wait time.Duration) string { return strconv.Itoa(int(math.Ceil(wait.Seconds()))) }
