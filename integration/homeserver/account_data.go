package main

import (
	"net/http"

	"github.com/labstack/echo/v4"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/mxid"
)

// accountData serves the one event of a user's account data that there is.
type accountData struct{ host module.HostService }

func newAccountData(host module.HostService) *accountData { return &accountData{host} }

// Register implements [handlers.RouteGroup].
func (a *accountData) Register(g *echo.Group) {
	g.Any("/user/:userId/account_data/"+module.AccountDataType,
		methods{http.MethodGet: a.get, http.MethodPut: a.refuse, http.MethodDelete: a.refuse}.serve)
	g.Any("/user/:userId/account_data/:type", a.getOther)
}

// get serves GET /user/{userId}/account_data/m.push_rules.
func (a *accountData) get(c echo.Context) error {
	user, err := owner(c)
	if err != nil {
		return err
	}
	content, err := a.host.AccountData(c.Request().Context(), user)
	if err != nil {
		return err
	}
	return c.JSONBlob(http.StatusOK, content)
}

// refuse refuses to change it (Matrix specification, "Client Config", "Server
// Behaviour": push rules are set through their own API).
func (a *accountData) refuse(c echo.Context) error {
	if _, err := owner(c); err != nil {
		return err
	}
	return module.ErrServerControlled
}

// getOther serves GET of all other types, none of which can be set.
func (a *accountData) getOther(c echo.Context) error {
	if _, err := pathParam(c, "type"); err != nil || c.Request().Method != http.MethodGet {
		return echo.ErrNotFound
	}
	if _, err := owner(c); err != nil {
		return err
	}
	return notFound("Account data not found.")
}

func notFound(text string) error {
	return &matrixError{status: http.StatusNotFound, errcode: "M_NOT_FOUND", text: text}
}

// owner returns the caller, who must be the user in the path.
func owner(c echo.Context) (mxid.UserID, error) {
	user, err := pathParam(c, "userId")
	if err != nil {
		return "", err
	}
	who := callerFrom(c.Request().Context())
	if user != string(who.User) {
		return "", forbidden()
	}
	return who.User, nil
}

func forbidden() error {
	return &matrixError{
		status:  http.StatusForbidden,
		errcode: "M_FORBIDDEN",
		text:    "Cannot access what belongs to other users.",
	}
}
