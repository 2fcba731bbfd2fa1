// Package mxid holds the Matrix identifiers that the module interprets.
package mxid

import (
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"
)

// MaxUserIDBytes is the longest user id, sigil and domain included
// (Matrix specification, appendices, "User Identifiers").
const MaxUserIDBytes = 255

// UserID is a fully qualified Matrix user id, "@localpart:domain". It is the
// host that authenticates users, so a UserID is taken as given; stores check
// with [UserID.Validate] what they build keys from.
type UserID string

// Validate reports what keeps the id from being a user id: the sigil, the
// domain, the length or the encoding. Historical ids with any characters in
// the localpart pass (appendices, "Historical User IDs").
func (u UserID) Validate() error {
	switch {
	case !strings.HasPrefix(string(u), "@"):
		return errors.New("user id does not start with @")
	case !strings.Contains(string(u), ":"):
		return errors.New("user id has no domain")
	case len(u) > MaxUserIDBytes:
		return fmt.Errorf("user id has %d bytes, at most %d are allowed", len(u), MaxUserIDBytes)
	case !utf8.ValidString(string(u)):
		return errors.New("user id is not valid UTF-8")
	}
	return nil
}
