package main

import (
	"net/http"
	"strings"

	"github.com/labstack/echo/v4"
)

// newAuth returns the middleware that finds out who makes a request, and tells
// the module and the host's own endpoints.
func newAuth(sessions *sessions) echo.MiddlewareFunc {
	return func(next echo.HandlerFunc) echo.HandlerFunc {
		return func(c echo.Context) error {
			token := accessToken(c.Request())
			if token == "" {
				return &matrixError{status: http.StatusUnauthorized, errcode: "M_MISSING_TOKEN", text: "Missing access token."}
			}
			ctx := c.Request().Context()
			who, err := sessions.authenticate(ctx, token)
			if err != nil {
				return err
			}
			c.SetRequest(c.Request().WithContext(withCaller(ctx, who)))
			return next(c)
		}
	}
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
