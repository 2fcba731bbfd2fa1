package stored

import (
	"strconv"
	"strings"

	"github.com/pushfx/pushfx/module/mxid"
)

// Channel is where hosts publish every change of push rules, as a [Message].
func (k Keys) Channel() string { return k.Prefix + "push_rules_changed" }

// Message is what is published of a change, "VERSION USER".
func Message(user mxid.UserID, version int64) string {
	return strconv.FormatInt(version, 10) + " " + string(user)
}

// ReadMessage reads a message. Anything else is not found.
func ReadMessage(message string) (user mxid.UserID, version int64, found bool) {
	number, name, _ := strings.Cut(message, " ")
	version, err := strconv.ParseInt(number, 10, 64)
	user = mxid.UserID(name)
	return user, version, err == nil && version > 0 && version < isForeign && user.Validate() == nil
}
