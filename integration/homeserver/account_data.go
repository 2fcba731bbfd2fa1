package main

import (
	"net/http"

	"github.com/labstack/echo/v4"

	"github.com/pushfx/pushfx/handlers"
	"github.com/pushfx/pushfx/integration/homeserver/sessions"
	"github.com/pushfx/pushfx/module/mxid"
)

// accountData serves the list of ignored users. It refuses to store other types of account data.
type accountData struct{ store *sessions.Store }

func newAccountData(store *sessions.Store) *accountData { return &accountData{store} }

// Register implements [handlers.RouteGroup].
func (a *accountData) Register(g *echo.Group, _ handlers.Dialect, auth ...echo.MiddlewareFunc) {
	g.Any("/user/:userId/account_data/"+sessions.IgnoredType, methods{http.MethodGet: a.getIgnored, http.MethodPut: a.putIgnored}.serve, auth...)
	g.Any("/user/:userId/account_data/:type", a.getOther, auth...)
}

func (a *accountData) getIgnored(c echo.Context) error {
	user, err := owner(c)
	if err != nil {
		return err
	}
	texts, err := a.store.Ignored(c.Request().Context(), user)
	if err != nil {
		return err
	}
	text, found := texts[user]
	if !found {
		return notFound("Account data not found.")
	}
	return c.JSONBlob(http.StatusOK, []byte(text))
}

func (a *accountData) putIgnored(c echo.Context) error {
	user, err := owner(c)
	if err != nil {
		return err
	}
	body, err := readObject(c, maxBodyBytes, new(sessions.Ignored))
	if err != nil {
		return err
	}
	if err := a.store.SetIgnored(c.Request().Context(), user, body); err != nil {
		return err
	}
	return c.JSON(http.StatusOK, emptyObject)
}

// getOther answers 404 for every other type of account data, because the host stores none.
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

// owner returns the caller, and refuses a path of another user.
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
