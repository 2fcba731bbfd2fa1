package sessions

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"strings"

	"github.com/pushfx/pushfx/handlers"
	"github.com/pushfx/pushfx/module/mxid"
)

// A token has one of two forms. A token with TokenPrefix is for curl: "demo-<localpart>" names
// its user, has no session, and stays valid for ever. A login returns a token of the other form:
// "session-<localpart>/<device>/<secret>".
const (
	TokenPrefix   = "demo-"
	sessionPrefix = "session-"
	defaultDevice = "DEMO"

	// MaxDeviceBytes is the longest device id.
	MaxDeviceBytes = 255
)

// Caller is the user, device and session of a request.
type Caller struct {
	handlers.Requester
	secret string // of the session; empty for a token without a session
}

type callerKey struct{}

// WithCaller puts the caller into a context, for [handlers.WithRequester] and [CallerFrom].
func WithCaller(ctx context.Context, who Caller) context.Context {
	return handlers.WithRequester(context.WithValue(ctx, callerKey{}, who), who.Requester)
}

// CallerFrom returns the caller in a context, or the zero caller.
func CallerFrom(ctx context.Context) Caller {
	who, _ := ctx.Value(callerKey{}).(Caller)
	return who
}

// callerOf parses a token. It does not check whether the session exists.
func callerOf(token, serverName string) (who Caller, valid bool) {
	localpart, isDemo := strings.CutPrefix(token, TokenPrefix)
	device := defaultDevice
	if !isDemo {
		rest, found := strings.CutPrefix(token, sessionPrefix)
		end := strings.LastIndexByte(rest, '/')
		if !found || end < 0 || end == len(rest)-1 {
			return Caller{}, false
		}
		localpart, device, _ = strings.Cut(rest[:end], "/")
		who.secret = rest[end+1:]
	}
	user, valid := userID(localpart, serverName)
	who.Requester = handlers.Requester{User: user, Device: device}
	return who, valid && ValidDevice(device)
}

func sessionToken(localpart, device, secret string) string {
	return sessionPrefix + localpart + "/" + device + "/" + secret
}

// hashSecret returns the stored form of a session's secret. The secret is random and long, so
// a plain hash is enough.
func hashSecret(secret string) string {
	sum := sha256.Sum256([]byte(secret))
	return hex.EncodeToString(sum[:])
}

func userID(localpart, serverName string) (user mxid.UserID, valid bool) {
	user = mxid.UserID("@" + localpart + ":" + serverName)
	return user, isLocalpart(localpart) && user.Validate() == nil
}

// User returns the user of this server with the given localpart or full id.
func (s *Sessions) User(name string) (user mxid.UserID, valid bool) {
	if id, full := strings.CutPrefix(name, "@"); full {
		localpart, server, _ := strings.Cut(id, ":")
		user, valid = userID(localpart, s.serverName)
		return user, valid && server == s.serverName
	}
	return userID(name, s.serverName)
}

// Localpart returns the localpart of a user id.
func Localpart(user mxid.UserID) string {
	localpart, _, _ := strings.Cut(strings.TrimPrefix(string(user), "@"), ":")
	return localpart
}

// isLocalpart reports whether a text can be a localpart (Matrix specification, appendices,
// "User Identifiers"). It refuses the slash that the specification allows, because a slash
// ends the localpart in tokens.
func isLocalpart(text string) bool {
	return text != "" && !strings.ContainsFunc(text, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < '0' || r > '9') && !strings.ContainsRune("._=-+", r)
	})
}

// ValidDevice reports whether a text can be a device id. The specification has no grammar for device ids; this host
// accepts printable ASCII without spaces.
func ValidDevice(text string) bool {
	return text != "" && len(text) <= MaxDeviceBytes && !strings.ContainsFunc(text, func(r rune) bool {
		return r <= ' ' || r > '~'
	})
}
