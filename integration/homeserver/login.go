package main

import (
	"cmp"
	"context"
	"crypto/rand"
	"net/http"

	"github.com/labstack/echo/v4"
	"go.uber.org/zap"

	"github.com/pushfx/pushfx/integration/homeserver/sessions"
	"github.com/pushfx/pushfx/module/fault"
	"github.com/pushfx/pushfx/module/mxid"
)

// passwordType is the only login type and the only stage of user-interactive authentication.
const passwordType = "m.login.password"

const randomDeviceChars = 10

func (a *api) loginFlows(c echo.Context) error {
	type flow struct {
		Type string `json:"type"`
	}
	return c.JSON(http.StatusOK, map[string][]flow{"flows": {{passwordType}}})
}

// loginRequest is the body of POST /login. The host ignores the device's display name.
type loginRequest struct {
	passwordLogin
	DeviceID string `json:"device_id"`
}

// logIn serves POST /login (Matrix specification, "Login"). There is no registration: the first login creates the user
// and stores the default push rules.
func (a *api) logIn(c echo.Context) error {
	var request loginRequest
	if _, err := readObject(c, &request); err != nil {
		return err
	}
	user, err := request.userOf(a.sessions)
	if err != nil {
		return err
	}
	device := request.DeviceID
	if device == "" {
		device = rand.Text()[:randomDeviceChars]
	}
	if !sessions.ValidDevice(device) {
		return badRequest("M_INVALID_PARAM", "The device_id must be up to 255 printable ASCII characters without spaces.")
	}
	if err := a.limits.password(c, user); err != nil {
		return err
	}
	ctx := c.Request().Context()
	token, err := a.sessions.LogIn(ctx, user, *request.Password, device)
	if err != nil {
		return err
	}
	logFailed(a.log, "login", user, a.host.EnsureDefaults(ctx, user))
	logFailed(a.log, "login", user, a.removeLeftPushers(ctx, user))
	return c.JSON(http.StatusOK, map[string]any{"user_id": user, "access_token": token, "device_id": device})
}

// removeLeftPushers removes the pushers of devices without a session. They exist if Redis failed during a logout, after
// the session had ended.
func (a *api) removeLeftPushers(ctx context.Context, user mxid.UserID) error {
	devices, err := a.sessions.Devices(ctx, user)
	if err != nil {
		return err
	}
	return a.host.RetainDevicePushers(ctx, user, devices...)
}

// logFailed logs that a call of the module failed in a login, logout or sync. The client gets no error: the host has
// done its own part, and the token may already be invalid. The next login, sync or read of the rules repeats the call.
func logFailed(log *zap.Logger, at string, user mxid.UserID, err error) {
	if err != nil {
		log.Warn("push: a call failed", zap.String("at", at), zap.String("user_id", string(user)), zap.String("error", fault.Details(err)))
	}
}

// passwordLogin is defined in the Matrix specification, "Login".
type passwordLogin struct {
	Type       string `json:"type"`
	Identifier struct {
		Type string `json:"type"`
		User string `json:"user"`
	} `json:"identifier"`
	User     string  `json:"user"` // deprecated form of identifier
	Password *string `json:"password"`
}

// userOf returns the user of a login, or an error that names the missing field.
func (l passwordLogin) userOf(users *sessions.Sessions) (mxid.UserID, error) {
	name := cmp.Or(l.Identifier.User, l.User)
	switch {
	case l.Type == "":
		return "", missing("type")
	case l.Type != passwordType:
		return "", badRequest("M_UNKNOWN", "Bad login type.")
	case l.Password == nil:
		return "", missing("password")
	case l.Identifier.Type != "" && l.Identifier.Type != "m.id.user":
		return "", sessions.ErrWrongPassword // users have no third-party ids here
	case name == "":
		return "", missing("identifier.user")
	}
	user, valid := users.User(name)
	if !valid {
		return "", sessions.ErrWrongPassword // as for any unknown user
	}
	return user, nil
}
