package main

import (
	"crypto/rand"
	"net/http"

	"github.com/labstack/echo/v4"

	"github.com/pushfx/pushfx/integration/homeserver/sessions"
)

// authenticated asks for the caller's password (Matrix specification,
// "User-Interactive Authentication API"). If the request has none, it is
// answered, and done is false. One request completes the one stage, so no session
// is stored: any name of a session is taken.
func (a *account) authenticated(c echo.Context, auth *passwordLogin) (done bool, err error) {
	if auth == nil || auth.Type == "" { // only the session: how far has it come?
		return false, c.JSON(http.StatusUnauthorized, challenge())
	}
	err = a.checkCaller(c, auth)
	refused, isRefusal := refusalOf(err)
	if !isRefusal || refused.status == http.StatusTooManyRequests || refused.status == http.StatusBadRequest && auth.Type == passwordType {
		return err == nil, err
	}
	answer := challenge()
	answer["errcode"], answer["error"] = refused.errcode, refused.text
	return false, c.JSON(http.StatusUnauthorized, answer)
}

// checkCaller refuses a login that is not the caller's.
func (a *account) checkCaller(c echo.Context, auth *passwordLogin) error {
	user, err := auth.userOf(a.sessions)
	if err != nil {
		return err
	}
	ctx := c.Request().Context()
	if user != sessions.CallerFrom(ctx).User {
		return sessions.ErrWrongPassword
	}
	if err := a.limits.password(c, user); err != nil {
		return err
	}
	return a.sessions.CheckPassword(ctx, user, *auth.Password)
}

// challenge says what there is to do.
func challenge() map[string]any {
	type flow struct {
		Stages []string `json:"stages"`
	}
	return map[string]any{
		"flows":   []flow{{[]string{passwordType}}},
		"params":  map[string]any{},
		"session": rand.Text(),
	}
}
