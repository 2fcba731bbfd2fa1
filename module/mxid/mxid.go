// Package mxid holds the Matrix identifiers that the module interprets.
package mxid

import (
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"
)

// MaxUserIDBytes is the maximum length of a user id, sigil and domain included (Matrix
// specification, appendices, "User Identifiers").
const MaxUserIDBytes = 255

// UserID is a fully qualified Matrix user id, "@localpart:domain". The host
// authenticates users, so most code takes a UserID as valid; stores call
// [UserID.Validate] before they build keys.
type UserID string

// Validate returns an error for an invalid user id: sigil, domain, length or encoding.
// Historical ids with any characters in the localpart are valid (appendices,
// "Historical User IDs").
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
