package main

import (
	"encoding/json"
	"errors"
	"net/http"
	"time"

	"github.com/labstack/echo/v4"
	"go.uber.org/zap"

	"github.com/pushfx/pushfx/handlers"
	"github.com/pushfx/pushfx/module/fault"
)

// matrixError is an error in the form that Matrix clients understand (Matrix
// specification, "Standard error response").
type matrixError struct {
	status  int
	errcode string
	text    string

	retryAfter time.Duration // 0 where it does not help to wait
}

func (e *matrixError) Error() string { return e.errcode + ": " + e.text }

// newErrorHandler returns the host's error handler: whatever a handler or
// middleware returns is answered in the Matrix form, and logged once where it
// is the server's fault. The module's endpoints answer their own errors.
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
		var ours *matrixError
		if errors.As(err, &ours) && ours.retryAfter > 0 {
			c.Response().Header().Set(echo.HeaderRetryAfter, retryAfter(ours.retryAfter))
		}
		if err := c.JSONBlob(status, body); err != nil {
			log.Debug("answer not sent", zap.String("error", fault.Details(err)))
		}
	}
}

// errorReply returns the status and the JSON body for any error: the host's
// own, one of echo, or one of the module's services.
func errorReply(err error) (status int, body []byte) {
	var ours *matrixError
	var http *echo.HTTPError
	switch {
	case errors.As(err, &ours):
		return ours.reply()
	case errors.As(err, &http):
		return matrixErrorOfHTTP(http).reply()
	}
	return handlers.ErrorReply(err)
}

func (e *matrixError) reply() (status int, body []byte) {
	body, _ = json.Marshal(struct { // strings and numbers always can
		Errcode    string `json:"errcode"`
		Error      string `json:"error"`
		RetryAfter int64  `json:"retry_after_ms,omitempty"`
	}{e.errcode, e.text, e.retryAfter.Milliseconds()})
	return e.status, body
}

// matrixErrorOfHTTP is for the errors of echo itself.
func matrixErrorOfHTTP(err *echo.HTTPError) *matrixError {
	switch err.Code {
	case http.StatusNotFound:
		return &matrixError{status: err.Code, errcode: "M_UNRECOGNIZED", text: "Unrecognized request."}
	case http.StatusMethodNotAllowed:
		return &matrixError{status: err.Code, errcode: "M_UNRECOGNIZED", text: "Method not allowed."}
	}
	return &matrixError{status: err.Code, errcode: "M_UNKNOWN", text: http.StatusText(err.Code)}
}
