package main

import (
	"crypto/rand"
	"encoding/json"
	"net/http"

	"github.com/labstack/echo/v4"

	"github.com/pushfx/pushfx/integration/homeserver/sessions"
)

// authenticated checks the caller's password (Matrix specification, "User-Interactive Authentication API"). It answers
// a request without a password, or with a wrong one, with the challenge, and done is false. The only stage needs one
// request, so the host stores no authentication session and accepts any session name.
func (a *api) authenticated(c echo.Context, auth *passwordLogin) (done bool, err error) {
	answer := map[string]any{
		"flows":   []map[string][]string{{"stages": {passwordType}}},
		"params":  emptyObject,
		"session": rand.Text(),
	}
	if auth != nil && auth.Type != "" { // otherwise the client asks for the state of its session
		err := a.checkCaller(c, auth)
		status, refusal := errorReply(err)
		if err == nil || status == http.StatusTooManyRequests || status >= http.StatusInternalServerError {
			return err == nil, err
		}
		if err := json.Unmarshal(refusal, &answer); err != nil {
			return false, err
		}
	}
	return false, c.JSON(http.StatusUnauthorized, answer)
}

func (a *api) checkCaller(c echo.Context, auth *passwordLogin) error {
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
