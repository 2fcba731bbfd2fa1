package main

import (
	"context"
	"crypto/rand"
	"errors"
	"net/http"

	"github.com/labstack/echo/v4"
)

// authenticated asks for the caller's password (Matrix specification,
// "User-Interactive Authentication API"). Where it is not given it answers the
// request, and done is false. The one stage is done in one request, so there is
// nothing to remember of it: any session will do.
func authenticated(c echo.Context, sessions *sessions, auth *passwordLogin) (done bool, err error) {
	if auth == nil || auth.Type == "" { // only the session: how far has it come?
		return false, c.JSON(http.StatusUnauthorized, challenge())
	}
	err = checkCaller(c.Request().Context(), sessions, auth)
	var refused *matrixError
	if !errors.As(err, &refused) || refused.status == http.StatusBadRequest && auth.Type == passwordType {
		return err == nil, err
	}
	answer := challenge()
	answer["errcode"], answer["error"] = refused.errcode, refused.text
	return false, c.JSON(http.StatusUnauthorized, answer)
}

// checkCaller refuses a login that is not the caller's.
func checkCaller(ctx context.Context, sessions *sessions, auth *passwordLogin) error {
	user, err := auth.userOf(sessions.serverName)
	if err != nil {
		return err
	}
	if user != callerFrom(ctx).User {
		return errWrongPassword
	}
	return sessions.checkPassword(ctx, user, *auth.Password)
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
