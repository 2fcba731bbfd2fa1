package main

import (
	"context"
	"encoding/json"
	"errors"
	"math"
	"net/http"
	"strconv"
	"time"

	"github.com/labstack/echo/v4"
	"go.uber.org/zap"

	"github.com/pushfx/pushfx/handlers"
	"github.com/pushfx/pushfx/integration/homeserver/sessions"
	"github.com/pushfx/pushfx/module/fault"
)

// matrixError is an answer that the module's faults do not have (Matrix specification, "Standard error response").
type matrixError struct {
	status  int
	errcode string
	text    string

	retryAfter time.Duration // 0 if waiting does not help
}

func (e *matrixError) Error() string { return e.errcode + ": " + e.text }

func clientIsGone(c echo.Context) bool {
	return errors.Is(c.Request().Context().Err(), context.Canceled)
}

// newErrorHandler returns the host's error handler. It answers errors of handlers and
// middleware in the Matrix form, and logs server errors once. The module's endpoints answer
// their own errors.
func newErrorHandler(log *zap.Logger) echo.HTTPErrorHandler {
	return func(err error, c echo.Context) {
		if c.Response().Committed {
			return
		}
		status, body := errorReply(err)
		if status >= http.StatusInternalServerError && !clientIsGone(c) {
			log.Error("request failed", append(panicFields(err),
				zap.String("method", c.Request().Method),
				zap.String("route", c.Path()),
				zap.Int("status", status),
				zap.String("error", fault.Details(err)))...)
		}
		var refused *matrixError
		if errors.As(err, &refused) && refused.retryAfter > 0 {
			seconds := int(math.Ceil(refused.retryAfter.Seconds()))
			c.Response().Header().Set(echo.HeaderRetryAfter, strconv.Itoa(seconds))
		}
		if err := c.JSONBlob(status, body); err != nil {
			log.Debug("answer not sent", zap.String("error", fault.Details(err)))
		}
	}
}

// errorReply returns status and JSON body for an error of the host, of echo or of the
// module's services.
func errorReply(err error) (status int, body []byte) {
	var refused *matrixError
	var unrouted *echo.HTTPError
	switch {
	case errors.As(err, &refused):
		body, _ = json.Marshal(struct { // never fails for strings and numbers
			Errcode    string `json:"errcode"`
			Error      string `json:"error"`
			RetryAfter int64  `json:"retry_after_ms,omitempty"`
		}{refused.errcode, refused.text, refused.retryAfter.Milliseconds()})
		return refused.status, body
	case errors.Is(err, sessions.ErrDeactivated):
		return errorReply(&matrixError{status: http.StatusForbidden, errcode: "M_USER_DEACTIVATED", text: "This account has been deactivated."})
	case !errors.As(err, &unrouted):
		return handlers.ErrorReply(err)
	case unrouted.Code == http.StatusMethodNotAllowed:
		return handlers.ErrorReply(fault.New(fault.MethodNotAllowed, "Method not allowed."))
	}
	return handlers.ErrorReply(fault.New(fault.Unrecognized, "Unrecognized request."))
}

func badRequest(errcode, text string) error {
	return &matrixError{status: http.StatusBadRequest, errcode: errcode, text: text}
}

func missing(field string) error { return fault.New(fault.MissingParam, "Missing field: "+field) }

func notFound(text string) error { return fault.New(fault.NotFound, text) }

func forbidden(text string) error { return fault.New(fault.Forbidden, text) }

func tooLarge(text string) error { return fault.New(fault.TooLarge, text) }

// tooMany makes a client wait before its next request (Matrix specification, "Rate
// limiting").
func tooMany(wait time.Duration) error {
	return &matrixError{
		status: http.StatusTooManyRequests, errcode: "M_LIMIT_EXCEEDED", text: "Too many requests.",
		retryAfter: max(wait, time.Millisecond),
	}
}
