package hosttest

import (
	"encoding/json"
	"fmt"
)

// String is "STATUS BODY".
func (a Answer) String() string { return fmt.Sprintf("%d %s", a.Status, a.Body) }

// Failure returns an error in the form of [Answer.String].
func Failure(status int, errcode, text string) string {
	quoted, err := json.Marshal(text)
	if err != nil {
		panic(err)
	}
	return fmt.Sprintf(`%d {"errcode":"%s","error":%s}`, status, errcode, quoted)
}

// The answers, with the texts of the contract.
var (
	Done = `200 {}`

	EventMissing  = Failure(404, "M_NOT_FOUND", "PushRules event not found.")
	RuleMissing   = Failure(404, "M_NOT_FOUND", "Push rule not found.")
	AnchorMissing = Failure(404, "M_NOT_FOUND", "The before or after rule could not be found.")

	IDReserved    = Failure(400, "M_INVALID_PARAM", "Rule IDs starting with a dot are reserved for server-default rules.")
	IDInvalid     = Failure(400, "M_INVALID_PARAM", "Rule ID containing invalid characters.")
	AnchorDefault = Failure(400, "M_INVALID_PARAM", "Can't place a push rule relatively to a server-default rule.")
	AnchorOrder   = Failure(400, "M_INVALID_PARAM", "The before rule has a higher priority than the after rule.")
	DeleteDefault = Failure(400, "M_INVALID_PARAM", "Cannot delete a server-default pushrule.")
	ScopeUnknown  = Failure(400, "M_INVALID_PARAM", "Scopes other than 'global' are not supported.")
	KindUnknown   = Failure(400, "M_INVALID_PARAM", "Unknown push rule kind.")

	Unrecognized     = Failure(404, "M_UNRECOGNIZED", "Unrecognized request.")
	MethodNotAllowed = Failure(405, "M_UNRECOGNIZED", "Method not allowed.")
	TokenMissing     = Failure(401, "M_MISSING_TOKEN", "Missing access token.")
	BodyTooLarge     = Failure(413, "M_TOO_LARGE", "Request body too large.")
)

// Unavailable is the answer while the storage is away.
var Unavailable = Failure(503, "M_UNKNOWN", "The server cannot reach its storage, try again later.")
