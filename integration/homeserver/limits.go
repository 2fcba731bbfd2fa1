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
	// requestBurst times the rate is the number of requests that a client can make at once, as starting clients do.
	requestBurst = 2

	// passwordBurst is the number of passwords that can be tried at once.
	passwordBurst = 10

	// forgotten is the idle time after which a limiter forgets a client.
	forgotten = 3 * time.Minute
)

// limits has the rate limits of this instance: for the requests of each user, for the requests without a valid token of
// each address, and for the passwords of each user and address.
type limits struct {
	users     echo.MiddlewareFunc
	addresses echo.MiddlewareFunc
	passwords middleware.RateLimiterStore // nil: unlimited
}

// newLimits takes requests and passwords per second; 0 means unlimited.
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

// stranger refuses a request without a valid token, and counts it for the limit of its address.
func (l *limits) stranger(c echo.Context, err error) error {
	return l.addresses(func(echo.Context) error { return err })(c)
}

// password refuses a password after too many tries for a user or from an address. An attacker
// can thus prevent a user's login, but cannot end a session.
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

// addressOf returns the client's address. Behind a proxy, set echo's IPExtractor; otherwise this is the proxy's
// address. Real hosts should limit whole IPv6 networks, since one customer has many addresses.
func addressOf(c echo.Context) string {
	host, _, _ := net.SplitHostPort(c.Request().RemoteAddr)
	return host
}

func callerOf(c echo.Context) sessions.Caller { return sessions.CallerFrom(c.Request().Context()) }
