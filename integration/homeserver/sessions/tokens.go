package sessions

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"strings"

	"github.com/pushfx/pushfx/handlers"
	"github.com/pushfx/pushfx/module/mxid"
)

// There are two forms of tokens. Those with TokenPrefix are for curl:
// "demo-<localpart>" and "demo-<localpart>/<device>" name their user, have no
// session, and are never logged out. The others come from a login:
// "session-<localpart>/<device>/<secret>".
const (
	TokenPrefix   = "demo-"
	sessionPrefix = "session-"
	defaultDevice = "DEMO"

	// MaxDeviceBytes is how long a device id can be.
	MaxDeviceBytes = 255
)

// Caller is who makes a request, and with which session.
type Caller struct {
	handlers.Requester
	secret string // of the session; empty for a token that has none
}

// callerKey is the key of the caller in a request's context.
type callerKey struct{}

// WithCaller tells who makes a request: the module with
// [handlers.WithRequester], the host itself with all that it knows.
func WithCaller(ctx context.Context, who Caller) context.Context {
	return handlers.WithRequester(context.WithValue(ctx, callerKey{}, who), who.Requester)
}

// CallerFrom returns who makes a request, the zero caller if no one is known.
func CallerFrom(ctx context.Context) Caller {
	who, _ := ctx.Value(callerKey{}).(Caller)
	return who
}

// callerOf reads a token; whether its session exists is another question.
func callerOf(token, serverName string) (who Caller, valid bool) {
	name, stateless := strings.CutPrefix(token, TokenPrefix)
	if !stateless {
		rest, found := strings.CutPrefix(token, sessionPrefix)
		end := strings.LastIndexByte(rest, '/')
		if !found || end < 0 || end == len(rest)-1 {
			return Caller{}, false
		}
		name, who.secret = rest[:end], rest[end+1:]
	}
	localpart, device, named := strings.Cut(name, "/")
	if !named && stateless {
		device = defaultDevice
	}
	user, valid := userID(localpart, serverName)
	who.Requester = handlers.Requester{User: user, Device: device}
	return who, valid && ValidDevice(device)
}

// sessionToken returns the token of a session.
func sessionToken(localpart, device, secret string) string {
	return sessionPrefix + localpart + "/" + device + "/" + secret
}

// hashSecret returns what is stored of a session's secret, which is random and
// too long to be guessed from it.
func hashSecret(secret string) string {
	sum := sha256.Sum256([]byte(secret))
	return hex.EncodeToString(sum[:])
}

// userID returns the id of a user of this server.
func userID(localpart, serverName string) (user mxid.UserID, valid bool) {
	user = mxid.UserID("@" + localpart + ":" + serverName)
	return user, isLocalpart(localpart) && user.Validate() == nil
}

// User returns the user of this server with a localpart or full id.
func (s *Sessions) User(name string) (user mxid.UserID, valid bool) {
	if id, full := strings.CutPrefix(name, "@"); full {
		localpart, server, _ := strings.Cut(id, ":")
		user, valid = userID(localpart, s.serverName)
		return user, valid && server == s.serverName
	}
	return userID(name, s.serverName)
}

// localpartOf returns what stands before the server name in the id of a user of
// this server.
func localpartOf(user mxid.UserID) string {
	localpart, _, _ := strings.Cut(strings.TrimPrefix(string(user), "@"), ":")
	return localpart
}

// isLocalpart reports whether a text can be a localpart (Matrix specification,
// appendices, "User Identifiers"). A slash can be in one too, but in a token
// it ends the localpart.
func isLocalpart(text string) bool {
	return text != "" && !strings.ContainsFunc(text, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < '0' || r > '9') && !strings.ContainsRune("._=-+", r)
	})
}

// ValidDevice reports whether a text can be a device id, for which the
// specification sets no grammar: here, printable ASCII without spaces.
func ValidDevice(text string) bool {
	return text != "" && len(text) <= MaxDeviceBytes && !strings.ContainsFunc(text, func(r rune) bool {
		return r <= ' ' || r > '~'
	})
}
