package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"github.com/labstack/echo/v4"
	"go.uber.org/zap"

	"github.com/pushfx/pushfx/module/fault"
)

// matrixError is an error in the form that Matrix clients understand (Matrix
// specification, "Standard error response").
type matrixError struct {
	status  int
	errcode string
	text    string
	cause   error // for the log, or nil; never shown
}

func (e *matrixError) Error() string {
	if e.cause == nil {
		return e.errcode + ": " + e.text
	}
	return fmt.Sprintf("%s: %s: %v", e.errcode, e.text, e.cause)
}

func (e *matrixError) Unwrap() error { return e.cause }

// newErrorHandler returns the host's error handler: whatever a handler or
// middleware returns is answered in the Matrix form, and logged once where it
// is the server's fault. The module answers its own errors.
func newErrorHandler(log *zap.Logger) echo.HTTPErrorHandler {
	return func(err error, c echo.Context) {
		if c.Response().Committed {
			return
		}
		answer := matrixErrorOf(err)
		gone := errors.Is(c.Request().Context().Err(), context.Canceled)
		if answer.status >= http.StatusInternalServerError && !gone {
			log.Error("request failed", append(panicFields(err),
				zap.String("method", c.Request().Method),
				zap.String("route", c.Path()),
				zap.Int("status", answer.status),
				zap.Error(err))...)
		}
		if err := c.JSON(answer.status, map[string]string{"errcode": answer.errcode, "error": answer.text}); err != nil {
			log.Debug("answer not sent", zap.Error(err))
		}
	}
}

// matrixErrorOf gives any error its Matrix form.
func matrixErrorOf(err error) *matrixError {
	var ours *matrixError
	var module *fault.Error
	var http *echo.HTTPError
	switch {
	case errors.As(err, &ours):
		return ours
	case errors.As(err, &module):
		return matrixErrorOfFault(module)
	case errors.As(err, &http):
		return matrixErrorOfHTTP(http)
	}
	return internalError()
}

// matrixErrorOfFault is for the errors of the module's services where the host
// calls them itself, which it does to read only.
func matrixErrorOfFault(f *fault.Error) *matrixError {
	switch f.Kind {
	case fault.Unavailable:
		return &matrixError{status: http.StatusServiceUnavailable, errcode: "M_UNKNOWN", text: f.Text}
	case fault.Database:
		return &matrixError{status: http.StatusInternalServerError, errcode: "M_UNKNOWN", text: f.Text}
	}
	return internalError()
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

func internalError() *matrixError {
	return &matrixError{status: http.StatusInternalServerError, errcode: "M_UNKNOWN", text: "Internal server error."}
}
