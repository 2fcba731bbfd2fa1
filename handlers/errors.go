package handlers

import (
	"errors"
	"net/http"
	"strings"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/fault"
	"github.com/pushfx/pushfx/module/strictjson"
)

type wireError struct {
	status  int
	errcode string
}

func wireErrors(kind fault.Kind) (row wireError, found bool) {
	switch kind {
	case fault.NotFound:
		return wireError{http.StatusNotFound, "M_NOT_FOUND"}, true
	case fault.InvalidParam:
		return wireError{http.StatusBadRequest, "M_INVALID_PARAM"}, true
	case fault.MissingParam:
		return wireError{http.StatusBadRequest, "M_MISSING_PARAM"}, true
	case fault.NotJSON:
		return wireError{http.StatusBadRequest, "M_NOT_JSON"}, true
	case fault.BadJSON:
		return wireError{http.StatusBadRequest, "M_BAD_JSON"}, true
	case fault.TooLarge:
		return wireError{http.StatusRequestEntityTooLarge, "M_TOO_LARGE"}, true
	case fault.MissingToken:
		return wireError{http.StatusUnauthorized, "M_MISSING_TOKEN"}, true
	case fault.UnknownToken:
		return wireError{http.StatusUnauthorized, "M_UNKNOWN_TOKEN"}, true
	case fault.Forbidden:
		return wireError{http.StatusForbidden, "M_FORBIDDEN"}, true
	case fault.Unrecognized:
		return wireError{http.StatusNotFound, "M_UNRECOGNIZED"}, true
	case fault.MethodNotAllowed:
		return wireError{http.StatusMethodNotAllowed, "M_UNRECOGNIZED"}, true
	case fault.ServerControlled:
		return wireError{http.StatusMethodNotAllowed, "M_BAD_JSON"}, true
	case fault.UnknownAckToken:
		return wireError{http.StatusBadRequest, "M_UNKNOWN_ACTIVATION_TOKEN"}, true
	case fault.ExpiredAckToken:
		return wireError{http.StatusBadRequest, "M_EXPIRED_ACTIVATION_TOKEN"}, true
	case fault.Database, fault.Internal:
		return wireError{http.StatusInternalServerError, "M_UNKNOWN"}, true
	case fault.Unavailable:
		return wireError{http.StatusServiceUnavailable, "M_UNKNOWN"}, true
	}
	return wireError{http.StatusInternalServerError, "M_UNKNOWN"}, false
}

var (
	errUnrecognized     = fault.New(fault.Unrecognized, "Unrecognized request.")
	errMethodNotAllowed = fault.New(fault.MethodNotAllowed, "Method not allowed.")
	errForbidden        = fault.New(fault.Forbidden, "Cannot access what belongs to other users.")
)

// The errors of a host's authentication.
var (
	// ErrMissingToken is 401 M_MISSING_TOKEN.
	ErrMissingToken = fault.New(fault.MissingToken, "Missing access token.")

	// ErrUnknownToken, for an unknown or ended access token, is 401 M_UNKNOWN_TOKEN. The
	// services return it, too, for a session that ended during the request.
	ErrUnknownToken = module.ErrLoggedOut
)

const internalText = "Internal server error."

// ErrorReply returns the status and the JSON body for an error, in the Matrix form, for
// hosts that call the services directly. An error that is not the module's becomes a 500
// with a fixed text. Log errors with status 500 or above, with [fault.Details].
func ErrorReply(err error) (status int, body []byte) {
	text := internalText
	var f *fault.Error
	if errors.As(err, &f) {
		text = f.Text
	}
	row, _ := wireErrors(fault.KindOf(err))
	if isUnstable := new(unstableError); errors.As(err, isUnstable) {
		row.errcode = strings.Replace(row.errcode, "M_", "ORG.MATRIX.MSC4174_", 1)
	}
	body = strictjson.AppendString([]byte(`{"errcode":`), row.errcode)
	body = strictjson.AppendString(append(body, `,"error":`...), text)
	return row.status, append(body, '}')
}
