package pushrule

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// ValidateID checks the id of a rule that a user wants to create or replace:
// [ErrReservedID] where it starts with a dot, [ErrInvalidID] where it is
// empty, has a slash, backslash or control character, or is not UTF-8
// (Matrix specification, "PUT /pushrules/global/{kind}/{ruleId}").
func ValidateID(id string) error {
	switch {
	case isReserved(id):
		return ErrReservedID
	case id == "", !utf8.ValidString(id), strings.ContainsAny(id, `/\`), strings.ContainsFunc(id, unicode.IsControl):
		return ErrInvalidID
	}
	return nil
}
