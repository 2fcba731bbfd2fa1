package main

import (
	"net/http"

	"github.com/labstack/echo/v4"

	"github.com/pushfx/pushfx/handlers"
	"github.com/pushfx/pushfx/module/mxid"
)

// accountData serves the types of account data that the module does not: none of
// them can be set.
type accountData struct{}

func newAccountData() *accountData { return &accountData{} }

// Register implements [handlers.RouteGroup].
func (a *accountData) Register(g *echo.Group, _ handlers.Dialect, auth ...echo.MiddlewareFunc) {
	g.Any("/user/:userId/account_data/:type", a.getOther, auth...)
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
	who := callerOf(c)
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
