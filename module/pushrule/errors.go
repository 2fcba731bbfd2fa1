package pushrule

import "github.com/pushfx/pushfx/module/fault"

// The refusals of the push rule operations, with the service document's texts.
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

// Unreadable is the error for a stored event that is not valid push rules content.
// Clients see the cause, so it names places in the event and never values.
func Unreadable(cause error) error {
	return fault.New(fault.Database, "Invalid push rules account data event in database: "+cause.Error())
}
