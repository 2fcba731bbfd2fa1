package main

import (
	"errors"
	"maps"
	"net/http"

	"github.com/labstack/echo/v4"
	"github.com/labstack/echo/v4/middleware"
	"go.uber.org/zap"
)

// logRequests logs requests at debug level. It logs the route, because path and query may
// contain tokens and rule ids.
func logRequests(log *zap.Logger) echo.MiddlewareFunc {
	return middleware.RequestLoggerWithConfig(middleware.RequestLoggerConfig{
		HandleError: true, // so that the status is known
		LogMethod:   true, LogRoutePath: true, LogStatus: true, LogLatency: true,
		LogValuesFunc: func(_ echo.Context, v middleware.RequestLoggerValues) error {
			log.Debug("request", zap.String("method", v.Method), zap.String("route", v.RoutePath),
				zap.Int("status", v.Status), zap.Duration("latency", v.Latency))
			return nil
		},
	})
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
