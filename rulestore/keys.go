package rulestore

import (
	format "github.com/pushfx/pushfx/module/stored"

	"github.com/pushfx/pushfx/module/mxid"
)

// key is the key of a user's event, without the prefix.
func key(user mxid.UserID) string { return format.Keys{}.Rules(user) }
