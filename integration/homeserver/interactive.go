package main

import (
	"crypto/rand"
	"net/http"

	"github.com/labstack/echo/v4"

	"github.com/pushfx/pushfx/integration/homeserver/sessions"
)

// authenticated asks for the caller's password (Matrix specification,
// "User-Interactive Authentication API"). If the request has no password, it answers
// with the challenge, and done is false. There is one stage, which one request
// completes; so no session is stored, and any session name is accepted.
func (a *account) authenticated(c echo.Context, auth *passwordLogin) (done bool, err error) {
	if auth == nil || auth.Type == "" { // the client asks for the state of its session
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

// checkCaller refuses the login of another user.
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

// challenge lists the stages that the client must complete.
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
