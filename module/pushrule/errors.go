package pushrule

import "github.com/pushfx/pushfx/module/fault"

// The errors for clients, with the texts of the service's specification.
var (
	ErrEventNotFound   = fault.New(fault.NotFound, "PushRules event not found.")
	ErrRuleNotFound    = fault.New(fault.NotFound, "Push rule not found.")
	ErrAnchorNotFound  = fault.New(fault.NotFound, "The before or after rule could not be found.")
	ErrReservedID      = fault.New(fault.InvalidParam, "Rule IDs starting with a dot are reserved for server-default rules.")
	ErrInvalidID       = fault.New(fault.InvalidParam, "Rule ID containing invalid characters.")
	ErrAnchorIsDefault = fault.New(fault.InvalidParam, "Can't place a push rule relatively to a server-default rule.")
	ErrAnchorOrder     = fault.New(fault.InvalidParam, "The before rule has a higher priority than the after rule.")
	ErrInvalidData     = fault.New(fault.InvalidParam, "Invalid data.")
	ErrDeleteDefault   = fault.New(fault.InvalidParam, "Cannot delete a server-default pushrule.")
	ErrUnknownScope    = fault.New(fault.InvalidParam, "Scopes other than 'global' are not supported.")
	ErrUnknownKind     = fault.New(fault.InvalidParam, "Unknown push rule kind.")
)

// Unreadable returns the error for a stored event with invalid push rules. Clients see
// the cause, so it must name fields and never values.
func Unreadable(cause error) error {
	return fault.New(fault.Database, "Invalid push rules account data event in database: "+cause.Error())
}
