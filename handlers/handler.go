package handlers

import (
	"net/http"

	"github.com/labstack/echo/v4"
	"go.uber.org/zap"

	"github.com/pushfx/pushfx/module/fault"
)

// Auth is a host's authentication: who makes a request. Its error is answered as
// [ErrorReply] says and changes nothing; see [ErrMissingToken] and
// [ErrUnknownToken].
type Auth func(*http.Request) (Requester, error)

// Handler serves route groups below a path prefix, for hosts whose router is not
// echo. Every other path is 404 M_UNRECOGNIZED. The prefix is empty if the host
// strips it.
func Handler(prefix string, d Dialect, auth Auth, log *zap.Logger, groups ...RouteGroup) http.Handler {
	e := echo.New()
	e.HTTPErrorHandler = func(_ error, c echo.Context) {
		status, body := ErrorReply(errUnrecognized)
		_ = c.JSONBlob(status, body) // the client is gone
	}
	for _, group := range groups {
		group.Register(e.Group(prefix), d, auth.middleware(log))
	}
	return e
}

// middleware puts the requester into the request's context.
func (auth Auth) middleware(log *zap.Logger) echo.MiddlewareFunc {
	return func(next echo.HandlerFunc) echo.HandlerFunc {
		return func(c echo.Context) error {
			who, err := auth(c.Request())
			if err != nil {
				status, body := ErrorReply(err)
				if status >= http.StatusInternalServerError {
					log.Error("the host could not authenticate a request", zap.String("route", c.Path()), zap.String("error", fault.Details(err)))
				}
				return c.JSONBlob(status, body)
			}
			c.SetRequest(c.Request().WithContext(WithRequester(c.Request().Context(), who)))
			return next(c)
		}
	}
}
