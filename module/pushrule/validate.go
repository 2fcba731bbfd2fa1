package pushrule

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// ValidateID checks the id of a rule that a user wants to create or replace:
// [ErrReservedID] if it starts with a dot, [ErrInvalidID] if it is
// empty, has a slash, backslash or control character, or is not UTF-8
// (Matrix specification, "PUT /pushrules/global/{kind}/{ruleId}").
func ValidateID(id string) error {
	switch {
	case isReserved(id):
		return ErrReservedID
	case !isWellFormed(id):
		return ErrInvalidID
	}
	return nil
}

// isWellFormed reports whether an id, a server-default rule's without its dot,
// is not empty and has only what rule ids may have.
func isWellFormed(id string) bool {
	return id != "" && utf8.ValidString(id) && !strings.ContainsAny(id, `/\`) && !strings.ContainsFunc(id, unicode.IsControl)
}
