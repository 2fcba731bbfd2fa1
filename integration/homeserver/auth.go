package main

import (
	"cmp"
	"context"
	"net/http"
	"strings"

	"github.com/labstack/echo/v4"
)

// newAuth returns the middleware that finds out who makes a request, and tells
// the module and the host's own endpoints. Those who fail are strangers.
func newAuth(sessions *sessions, limits *limits) echo.MiddlewareFunc {
	return func(next echo.HandlerFunc) echo.HandlerFunc {
		return func(c echo.Context) error {
			ctx := c.Request().Context()
			who, err := sessions.requester(ctx, accessToken(c.Request()))
			if err != nil {
				if status, _ := errorReply(err); status < http.StatusInternalServerError {
					return cmp.Or(limits.stranger(c), err)
				}
				return err
			}
			c.SetRequest(c.Request().WithContext(withCaller(ctx, who)))
			return next(c)
		}
	}
}

// requester returns who a token belongs to, empty where there is none.
func (s *sessions) requester(ctx context.Context, token string) (caller, error) {
	if token == "" {
		return caller{}, &matrixError{status: http.StatusUnauthorized, errcode: "M_MISSING_TOKEN", text: "Missing access token."}
	}
	return s.authenticate(ctx, token)
}

// accessToken returns a request's token, empty where it has none. It stands in
// the Authorization header or, from old clients, in the query (Matrix
// specification, "Using access tokens").
func accessToken(r *http.Request) string {
	scheme, token, _ := strings.Cut(r.Header.Get(echo.HeaderAuthorization), " ")
	if strings.EqualFold(scheme, "Bearer") {
		return strings.TrimSpace(token)
	}
	return r.URL.Query().Get("access_token")
}
