// Package fault is the error vocabulary of the module: every refusal that a
// client may see is an [Error] with a [Kind] and the exact text to show.
//
// Pure code and services create faults; the handlers turn the kind into an
// HTTP status and a Matrix error code, in one table. Any other error is
// internal: it is logged with its cause, and the client sees a fixed text.
package fault

import (
	"errors"
	"strconv"
	"strings"
)

// Kind is the kind of an error in terms of the client API.
type Kind string

// The kinds, with the responses of the handlers.
const (
	NotFound         Kind = "not_found"          // 404 M_NOT_FOUND
	InvalidParam     Kind = "invalid_param"      // 400 M_INVALID_PARAM
	MissingParam     Kind = "missing_param"      // 400 M_MISSING_PARAM
	NotJSON          Kind = "not_json"           // 400 M_NOT_JSON
	BadJSON          Kind = "bad_json"           // 400 M_BAD_JSON
	TooLarge         Kind = "too_large"          // 413 M_TOO_LARGE
	MissingToken     Kind = "missing_token"      // 401 M_MISSING_TOKEN
	UnknownToken     Kind = "unknown_token"      // 401 M_UNKNOWN_TOKEN
	Forbidden        Kind = "forbidden"          // 403 M_FORBIDDEN, another user's data
	Unrecognized     Kind = "unrecognized"       // 404 M_UNRECOGNIZED
	MethodNotAllowed Kind = "method_not_allowed" // 405 M_UNRECOGNIZED
	ServerControlled Kind = "server_controlled"  // 405 M_BAD_JSON, account data that only the server sets
	UnknownAckToken  Kind = "unknown_ack_token"  // 400 M_UNKNOWN_ACTIVATION_TOKEN
	ExpiredAckToken  Kind = "expired_ack_token"  // 400 M_EXPIRED_ACTIVATION_TOKEN
	Database         Kind = "database"           // 500 M_UNKNOWN, unreadable stored data
	Unavailable      Kind = "unavailable"        // 503 M_UNKNOWN, the store cannot be reached in time
	Internal         Kind = "internal"           // 500 M_UNKNOWN, every error that is not a fault
)

// Kinds lists every kind.
func Kinds() []Kind {
	return []Kind{
		NotFound, InvalidParam, MissingParam, NotJSON, BadJSON, TooLarge, MissingToken, UnknownToken, Forbidden,
		Unrecognized, MethodNotAllowed, ServerControlled, UnknownAckToken, ExpiredAckToken, Database, Unavailable, Internal,
	}
}

// ErrNotConfirmed is wrapped by the error of a change that is stored without the
// durability that its store requires. A retry would only wait again, so there is none.
var ErrNotConfirmed = errors.New("the change is stored, but not confirmed")

// Error is a refusal fit to be shown to a client. Errors are immutable and
// safe for concurrent use; compare them with [errors.Is] and [KindOf].
type Error struct {
	Kind Kind
	Text string // shown to the client; contains no secrets or internals
	Err  error  // the cause for the log, or nil; see [Details]
}

// New returns a fault without a cause.
func New(kind Kind, text string) *Error { return &Error{Kind: kind, Text: text} }

// Wrap returns a fault whose cause goes to the log.
func Wrap(kind Kind, text string, cause error) *Error {
	return &Error{Kind: kind, Text: text, Err: cause}
}

// Error returns the text for the client without the cause, since hosts write it into
// responses.
func (e *Error) Error() string { return e.Text }

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// Details returns the text of any error for a log, followed by the causes of its
// faults, each after a colon, unless it has them already; "" for nil.
func Details(err error) string {
	if err == nil {
		return ""
	}
	text := err.Error()
	for _, cause := range causes(err) {
		if details := Details(cause); !strings.Contains(text, details) {
			text += ": " + details
		}
	}
	return text
}

// causes returns the causes of the first fault in each branch of a chain.
func causes(err error) []error {
	switch e := err.(type) {
	case *Error:
		if e.Err != nil {
			return []error{e.Err}
		}
	case interface{ Unwrap() error }:
		return causes(e.Unwrap())
	case interface{ Unwrap() []error }:
		var all []error
		for _, joined := range e.Unwrap() {
			all = append(all, causes(joined)...)
		}
		return all
	}
	return nil
}

// OtherVersionError says that another version of the module stored the data. This
// version does not read, change or remove it. It is the cause of a [Database] fault, or
// of an error at start.
type OtherVersionError struct {
	Data string // such as "push rules"
	Form string // as stored
}

// Error returns the stored value and its form.
func (e *OtherVersionError) Error() string {
	return e.Data + " of form " + strconv.Quote(e.Form) + ", of another version of the module"
}

// IsOtherVersion reports whether err's chain has an [OtherVersionError].
func IsOtherVersion(err error) bool {
	var other *OtherVersionError
	return errors.As(err, &other)
}

// KindOf returns the kind of the first fault in err's chain, or [Internal].
func KindOf(err error) Kind {
	var f *Error
	if errors.As(err, &f) {
		return f.Kind
	}
	return Internal
}
