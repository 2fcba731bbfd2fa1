package main

import (
	"net/http"
	"strings"

	"github.com/labstack/echo/v4"

	"github.com/pushfx/pushfx/handlers"
	"github.com/pushfx/pushfx/module/mxid"
)

// Tokens are "demo-<localpart>" or "demo-<localpart>/<device>".
const (
	tokenPrefix   = "demo-"
	defaultDevice = "DEMO"

	maxDeviceBytes = 255
)

// newAuth returns the middleware that finds out who makes a request, and tells
// the module with [handlers.WithRequester]. A real homeserver looks the token
// up; here it names the user.
func newAuth(serverName string) echo.MiddlewareFunc {
	return func(next echo.HandlerFunc) echo.HandlerFunc {
		return func(c echo.Context) error {
			token := accessToken(c.Request())
			if token == "" {
				return &matrixError{status: http.StatusUnauthorized, errcode: "M_MISSING_TOKEN", text: "Missing access token."}
			}
			who, known := requesterOf(token, serverName)
			if !known {
				return &matrixError{status: http.StatusUnauthorized, errcode: "M_UNKNOWN_TOKEN", text: "Unknown access token."}
			}
			c.SetRequest(c.Request().WithContext(handlers.WithRequester(c.Request().Context(), who)))
			return next(c)
		}
	}
}

// accessToken returns a request's token, empty where it has none. It stands in
// the Authorization header or, from old clients, in the query (Matrix
// specification, "Using access tokens").
func accessToken(r *http.Request) string {
	scheme, token, _ := strings.Cut(r.Header.Get(echo.HeaderAuthorization), " ")
	if strings.EqualFold(scheme, "Bearer") {
		return strings.TrimSpace(token)
	}
	return r.URL.Query().Get("access_token")
}

// requesterOf returns who a token belongs to.
func requesterOf(token, serverName string) (who handlers.Requester, known bool) {
	name, found := strings.CutPrefix(token, tokenPrefix)
	localpart, device, named := strings.Cut(name, "/")
	if !named {
		device = defaultDevice
	}
	who = handlers.Requester{User: mxid.UserID("@" + localpart + ":" + serverName), Device: device}
	return who, found && isLocalpart(localpart) && isDevice(device) && who.User.Validate() == nil
}

// isLocalpart reports whether a text can be a localpart (Matrix specification,
// appendices, "User Identifiers"). A slash can be in one too, but in a token
// it ends the localpart.
func isLocalpart(text string) bool {
	return text != "" && !strings.ContainsFunc(text, func(r rune) bool {
		return !isLower(r) && !isDigit(r) && !strings.ContainsRune("._=-+", r)
	})
}

// isDevice reports whether a text can be a device id, for which the
// specification sets no grammar: here, printable ASCII without spaces.
func isDevice(text string) bool {
	return text != "" && len(text) <= maxDeviceBytes && !strings.ContainsFunc(text, func(r rune) bool {
		return r <= ' ' || r > '~'
	})
}
