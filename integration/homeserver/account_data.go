package main

import (
	"net/http"

	"github.com/labstack/echo/v4"

	"github.com/pushfx/pushfx/handlers"
	"github.com/pushfx/pushfx/integration/homeserver/rooms"
	"github.com/pushfx/pushfx/integration/homeserver/sessions"
	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/mxid"
)

// accountData serves the list of ignored users. It refuses to store other types of account data.
type accountData struct {
	store *sessions.Store
	rooms *rooms.Store
	waker *waker
}

func newAccountData(store *sessions.Store, rooms *rooms.Store, waker *waker) *accountData {
	return &accountData{store, rooms, waker}
}

// Register implements [handlers.RouteGroup].
func (a *accountData) Register(g *echo.Group, _ handlers.Dialect, auth ...echo.MiddlewareFunc) {
	g.GET("/user/:userId/account_data/"+sessions.IgnoredType, a.getIgnored, auth...)
	g.PUT("/user/:userId/account_data/"+sessions.IgnoredType, a.putIgnored, auth...)
	g.Any("/user/:userId/account_data/:type", a.other, auth...)
	g.Any("/user/:userId/rooms/:roomId/account_data/:type", a.other, auth...)
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
	text := texts[user]
	if text == "" {
		return notFound("Account data not found.")
	}
	return c.JSONBlob(http.StatusOK, []byte(text))
}

func (a *accountData) putIgnored(c echo.Context) error {
	user, err := owner(c)
	if err != nil {
		return err
	}
	body, err := readObject(c, new(sessions.Ignored))
	if err != nil {
		return err
	}
	ctx := c.Request().Context()
	if err := a.store.SetIgnored(ctx, user, body); err != nil {
		return err
	}
	if err := a.rooms.AccountDataChanged(ctx, user); err != nil {
		return err
	}
	a.waker.wake(user)
	return c.JSON(http.StatusOK, emptyObject)
}

// other serves all other types. It refuses to set types that the server controls (Matrix specification, "Client
// Config"), also in encodings of m.push_rules that do not reach the module, and answers 404 for the rest, because the
// host stores none.
func (a *accountData) other(c echo.Context) error {
	kind, err := pathParam(c, "type")
	if err != nil {
		return echo.ErrNotFound
	}
	if _, err := owner(c); err != nil {
		return err
	}
	switch changes := c.Request().Method != http.MethodGet; {
	case changes && kind == module.AccountDataType:
		return module.ErrServerControlled
	case changes && kind == fullyRead:
		return &matrixError{
			status: http.StatusMethodNotAllowed, errcode: "M_BAD_JSON", text: "Cannot set m.fully_read through this API. Use /read_markers.",
		}
	case changes:
		return echo.ErrNotFound
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
