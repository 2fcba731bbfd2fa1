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
	"github.com/pushfx/pushfx/integration/homeserver/rooms"
	"github.com/pushfx/pushfx/integration/homeserver/sessions"
	"github.com/pushfx/pushfx/module/fault"
)

// matrixError has the form that Matrix clients understand (Matrix specification, "Standard
// error response").
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
		if refused, found := refusalOf(err); found && refused.retryAfter > 0 {
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
	if refused, found := refusalOf(err); found {
		return refused.reply()
	}
	return handlers.ErrorReply(err)
}

// refusalOf returns the host's own answer to an error; found is false if the module answers
// it.
func refusalOf(err error) (refused *matrixError, found bool) {
	var http *echo.HTTPError
	switch {
	case errors.As(err, &refused):
		return refused, true
	case errors.As(err, &http):
		return matrixErrorOfHTTP(http), true
	case errors.Is(err, sessions.ErrWrongPassword):
		return &matrixError{status: 403, errcode: "M_FORBIDDEN", text: "Invalid username or password."}, true
	case errors.Is(err, sessions.ErrTooMuchData):
		return &matrixError{status: 413, errcode: "M_TOO_LARGE", text: "The user has too much account data."}, true
	case errors.Is(err, rooms.ErrTooManyMembers):
		return &matrixError{status: 400, errcode: "M_INVALID_PARAM", text: "The room has too many members."}, true
	case errors.Is(err, sessions.ErrDeactivated):
		return &matrixError{status: 403, errcode: "M_USER_DEACTIVATED", text: "This account has been deactivated."}, true
	}
	return nil, false
}

func (e *matrixError) reply() (status int, body []byte) {
	body, _ = json.Marshal(struct { // never fails for strings and numbers
		Errcode    string `json:"errcode"`
		Error      string `json:"error"`
		RetryAfter int64  `json:"retry_after_ms,omitempty"`
	}{e.errcode, e.text, e.retryAfter.Milliseconds()})
	return e.status, body
}

// tooMany makes a client wait before its next request (Matrix specification, "Rate
// limiting").
func tooMany(wait time.Duration) *matrixError {
	return &matrixError{
		status: http.StatusTooManyRequests, errcode: "M_LIMIT_EXCEEDED", text: "Too many requests.",
		retryAfter: max(wait, time.Millisecond),
	}
}

func matrixErrorOfHTTP(err *echo.HTTPError) *matrixError {
	switch err.Code {
	case http.StatusNotFound:
		return &matrixError{status: err.Code, errcode: "M_UNRECOGNIZED", text: "Unrecognized request."}
	case http.StatusMethodNotAllowed:
		return &matrixError{status: err.Code, errcode: "M_UNRECOGNIZED", text: "Method not allowed."}
	}
	return &matrixError{status: err.Code, errcode: "M_UNKNOWN", text: http.StatusText(err.Code)}
}
