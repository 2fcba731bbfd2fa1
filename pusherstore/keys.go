package pusherstore

import (
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/pusher"
	format "github.com/pushfx/pushfx/module/stored"
)

// The keys, without the prefix.
func key(user mxid.UserID) string           { return format.Keys{}.Pushers(user) }
func claimsKey(digest pusher.Digest) string { return format.Keys{}.Claims(digest) }

// unsettledKey is the key of what was postponed, with the prefix.
func unsettledKey(prefix string) string { return format.Keys{Prefix: prefix}.Unsettled() }
