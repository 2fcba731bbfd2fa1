package main

import (
	"context"
	"errors"
	"maps"
	"net/http"
	"strings"
	"time"

	"github.com/labstack/echo/v4"
	"github.com/labstack/echo/v4/middleware"
	"go.uber.org/zap"
)

// statusGone is the status in the log if a client closed its connection before the answer, as in the logs of nginx. The
// server has not failed.
const statusGone = 499

func clientIsGone(c echo.Context) bool {
	return errors.Is(c.Request().Context().Err(), context.Canceled)
}

// logRequests logs requests at debug level. It logs the route, because path and query may
// contain tokens and rule ids. It logs the path only if no route matches.
func logRequests(log *zap.Logger) echo.MiddlewareFunc {
	return func(next echo.HandlerFunc) echo.HandlerFunc {
		return func(c echo.Context) error {
			start := time.Now()
			if err := next(c); err != nil {
				c.Error(err) // the error handler answers now, so that the status is known
			}
			status := c.Response().Status
			if status >= http.StatusInternalServerError && clientIsGone(c) {
				status = statusGone
			}
			if entry := log.Check(zap.DebugLevel, "request"); entry != nil {
				fields := []zap.Field{
					zap.String("method", c.Request().Method),
					zap.String("route", c.Path()),
					zap.Int("status", status),
					zap.Duration("latency", time.Since(start)),
				}
				if strings.HasSuffix(c.Path(), "*") { // no route matches
					fields = append(fields, zap.String("path", beginning(c.Request().URL.Path)))
				}
				entry.Write(fields...)
			}
			return nil
		}
	}
}

func beginning(path string) string {
	const enough = 200
	return path[:min(len(path), enough)]
}

// allowBrowsers adds the headers that let web clients of any origin read answers, and answers
// OPTIONS before all other handlers (Matrix specification, "Web Browser Clients"). The demo's
// own paths serve one origin only; see [guard].
func allowBrowsers() echo.MiddlewareFunc {
	allowed := map[string][]string{ // canonical header names; all answers share the values
		echo.HeaderAccessControlAllowOrigin:  {"*"},
		echo.HeaderAccessControlAllowMethods: {"GET, POST, PUT, DELETE, OPTIONS"},
		echo.HeaderAccessControlAllowHeaders: {"X-Requested-With, Content-Type, Authorization"},
	}
	// Echo calls this function for each request.
	return func(next echo.HandlerFunc) echo.HandlerFunc {
		return func(c echo.Context) error {
			if !isDemoPath(c.Request().URL.Path) {
				maps.Copy(c.Response().Header(), allowed)
			}
			if c.Request().Method == http.MethodOptions {
				return c.NoContent(http.StatusNoContent)
			}
			return next(c)
		}
	}
}

type panicError struct {
	cause error
	stack []byte
}

func (e *panicError) Error() string { return "panic: " + e.cause.Error() }

func recoverPanics() echo.MiddlewareFunc {
	return middleware.RecoverWithConfig(middleware.RecoverConfig{
		DisableStackAll: true, DisableErrorHandler: true,
		LogErrorFunc: func(_ echo.Context, err error, stack []byte) error { return &panicError{err, stack} },
	})
}

func panicFields(err error) []zap.Field {
	var panicked *panicError
	if !errors.As(err, &panicked) {
		return nil
	}
	return []zap.Field{zap.ByteString("stack", panicked.stack)}
}
