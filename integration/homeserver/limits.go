package main

import (
	"net"
	"time"

	"github.com/labstack/echo/v4"
	"github.com/labstack/echo/v4/middleware"
	"golang.org/x/time/rate"

	"github.com/pushfx/pushfx/integration/homeserver/sessions"
	"github.com/pushfx/pushfx/module/mxid"
)

const (
	// requestBurst is how many seconds' worth of requests can be made at once, as
	// clients do when they start.
	requestBurst = 2

	// passwordBurst is how many passwords can be tried in a row; then there is the
	// rate.
	passwordBurst = 10

	// forgotten is when a limiter forgets a client that made no more requests.
	forgotten = 3 * time.Minute
)

// limits are the rate limits of this instance: for the requests of each user,
// for those of each address that no valid token comes with, and for the passwords
// that are tried.
type limits struct {
	users     echo.MiddlewareFunc
	addresses echo.MiddlewareFunc
	passwords middleware.RateLimiterStore // nil is no limit
}

// newLimits returns limits in requests and in passwords a second, 0 for none.
func newLimits(requests, passwords int) *limits {
	l := &limits{
		users:     limitRequests(requests, func(c echo.Context) string { return string(callerOf(c).User) }),
		addresses: limitRequests(requests, addressOf),
	}
	if passwords > 0 {
		l.passwords = newRateLimiter(passwords, passwordBurst)
	}
	return l
}

func newRateLimiter(perSecond, burst int) middleware.RateLimiterStore {
	return middleware.NewRateLimiterMemoryStoreWithConfig(middleware.RateLimiterMemoryStoreConfig{
		Rate: rate.Limit(perSecond), Burst: burst, ExpiresIn: forgotten,
	})
}

// limitRequests returns the middleware that holds each client to a rate.
func limitRequests(perSecond int, client func(echo.Context) string) echo.MiddlewareFunc {
	if perSecond == 0 {
		return func(next echo.HandlerFunc) echo.HandlerFunc { return next }
	}
	return middleware.RateLimiterWithConfig(middleware.RateLimiterConfig{
		Store:               newRateLimiter(perSecond, requestBurst*perSecond),
		IdentifierExtractor: func(c echo.Context) (string, error) { return client(c), nil },
		DenyHandler:         func(echo.Context, string, error) error { return tooMany(time.Second / time.Duration(perSecond)) },
	})
}

// stranger answers a request that failed to authenticate, within the limit of
// its address.
func (l *limits) stranger(c echo.Context, err error) error {
	return l.addresses(func(echo.Context) error { return err })(c)
}

// password refuses to try another password after too many were tried for a user
// or from an address. Somebody who tries passwords of a user can keep that user
// from logging in meanwhile, but ends no session.
func (l *limits) password(c echo.Context, user mxid.UserID) error {
	if l.passwords == nil {
		return nil
	}
	for _, key := range []string{addressOf(c), string(user)} {
		if allowed, err := l.passwords.Allow(key); err != nil || !allowed {
			return tooMany(time.Second)
		}
	}
	return nil
}

// addressOf returns the address that a request comes from. Behind a proxy this would
// be the proxy's: set echo's IPExtractor there. Customers of IPv6 have a network each,
// to which a real host holds them.
func addressOf(c echo.Context) string {
	host, _, _ := net.SplitHostPort(c.Request().RemoteAddr)
	return host
}

// callerOf returns who makes a request.
func callerOf(c echo.Context) sessions.Caller { return sessions.CallerFrom(c.Request().Context()) }
