package pushrule

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// ValidateID checks the id of a user's new rule: [ErrReservedID] if it starts with a
// dot; [ErrInvalidID] if it is empty, contains a slash, backslash or control character,
// or is not UTF-8 (Matrix specification, "PUT /pushrules/global/{kind}/{ruleId}").
func ValidateID(id string) error {
	switch {
	case isReserved(id):
		return ErrReservedID
	case !isWellFormed(id):
		return ErrInvalidID
	}
	return nil
}

func isWellFormed(id string) bool {
	return id != "" && utf8.ValidString(id) && !strings.ContainsAny(id, `/\`) && !strings.ContainsFunc(id, unicode.IsControl)
}
