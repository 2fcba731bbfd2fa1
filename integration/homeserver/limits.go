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
	// requestBurst is the burst in seconds of the rate. Clients need a burst when they
	// start.
	requestBurst = 2

	// passwordBurst is how many passwords can be tried in a row before the rate counts.
	passwordBurst = 10

	// forgotten is the time without requests after which a limiter forgets a client.
	forgotten = 3 * time.Minute
)

// limits are the rate limits of this instance. Each user has one. Each address has one
// for its requests without a valid token, and one for the passwords that it tries.
type limits struct {
	users     echo.MiddlewareFunc
	addresses echo.MiddlewareFunc
	passwords middleware.RateLimiterStore // nil is no limit
}

// newLimits returns limits in requests and passwords per second; 0 is no limit.
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

// limitRequests returns the middleware that limits the rate of each client.
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

// stranger answers a request that failed to authenticate. The request counts for the
// limit of its address.
func (l *limits) stranger(c echo.Context, err error) error {
	return l.addresses(func(echo.Context) error { return err })(c)
}

// password refuses another password after too many tries for a user or from an
// address. An attacker can thus keep a user from logging in, but ends no session.
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

// addressOf returns the address of a request's client. Behind a proxy, set echo's
// IPExtractor, because this would be the address of the proxy. An IPv6 customer has a
// whole network; a real host limits the network.
func addressOf(c echo.Context) string {
	host, _, _ := net.SplitHostPort(c.Request().RemoteAddr)
	return host
}

// callerOf returns the caller that authenticated the request.
func callerOf(c echo.Context) sessions.Caller { return sessions.CallerFrom(c.Request().Context()) }
