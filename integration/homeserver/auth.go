package main

import (
	"context"
	"net/http"
	"strings"

	"github.com/labstack/echo/v4"

	"github.com/pushfx/pushfx/handlers"
	"github.com/pushfx/pushfx/integration/homeserver/sessions"
)

// newAuth returns the middleware that authenticates requests. It puts the caller into the context, for the module and
// the host's own endpoints. A valid request counts for the rate limit of its user, an invalid one for the limit of its
// address.
func newAuth(users *sessions.Sessions, limits *limits) echo.MiddlewareFunc {
	return func(next echo.HandlerFunc) echo.HandlerFunc {
		limited := limits.users(next)
		return func(c echo.Context) error {
			ctx := c.Request().Context()
			who, err := requester(ctx, users, accessToken(c.Request()))
			if err != nil {
				if status, _ := errorReply(err); status < http.StatusInternalServerError {
					return limits.stranger(c, err)
				}
				return err
			}
			c.SetRequest(c.Request().WithContext(sessions.WithCaller(ctx, who)))
			return limited(c)
		}
	}
}

func requester(ctx context.Context, users *sessions.Sessions, token string) (sessions.Caller, error) {
	if token == "" {
		return sessions.Caller{}, handlers.ErrMissingToken
	}
	return users.Authenticate(ctx, token)
}

// accessToken returns the token of a request, empty for none. It comes from the Authorization
// header or, from old clients, in the query (Matrix specification, "Using access tokens").
func accessToken(r *http.Request) string {
	scheme, token, _ := strings.Cut(r.Header.Get(echo.HeaderAuthorization), " ")
	if strings.EqualFold(scheme, "Bearer") {
		return strings.TrimSpace(token)
	}
	return r.URL.Query().Get("access_token")
}
