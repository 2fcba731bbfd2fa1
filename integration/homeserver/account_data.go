package main

import (
	"net/http"
	"strings"

	"github.com/labstack/echo/v4"

	"github.com/pushfx/pushfx/integration/homeserver/rooms"
	"github.com/pushfx/pushfx/integration/homeserver/sessions"
	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/fault"
	"github.com/pushfx/pushfx/module/mxid"
)

// accountDataPlace returns the owner, the room and the type of the account data in a path. The room is empty for global data.
func (a *api) accountDataPlace(c echo.Context) (user mxid.UserID, room, kind string, err error) {
	if kind, err = pathParam(c, "type"); err != nil {
		return "", "", "", err
	}
	if user, err = owner(c); err != nil {
		return "", "", "", err
	}
	if len(kind) > rooms.MaxIDBytes || strings.Contains(kind, "\x00") {
		return "", "", "", badRequest("M_INVALID_PARAM", "Invalid type.")
	}
	if c.Param("roomId") == "" {
		return user, "", kind, nil
	}
	if room, err = pathParam(c, "roomId"); err == nil && !rooms.ValidID(room, "!") {
		err = badRequest("M_INVALID_PARAM", "Invalid room id.")
	}
	return user, room, kind, err
}

func (a *api) accountData(c echo.Context) error {
	user, room, kind, err := a.accountDataPlace(c)
	if err != nil {
		return err
	}
	content, err := a.sessions.AccountDataOf(c.Request().Context(), user, room, kind)
	if err != nil {
		return err
	}
	if content == "" {
		return notFound("Account data not found.")
	}
	return c.JSONBlob(http.StatusOK, []byte(content))
}

func (a *api) setAccountData(c echo.Context) error {
	user, room, kind, err := a.accountDataPlace(c)
	if err != nil {
		return err
	}
	if err := setByServer(kind); err != nil {
		return err
	}
	var shape any = new(struct{})
	if kind == sessions.IgnoredType {
		shape = new(sessions.Ignored)
	}
	content, err := readObject(c, shape)
	if err != nil {
		return err
	}
	ctx := c.Request().Context()
	err = a.sessions.SetAccountData(ctx, user, sessions.AccountData{Room: room, Type: kind, Content: content})
	if err != nil {
		return err
	}
	if err := a.rooms.AccountDataChanged(ctx, user, room, kind); err != nil {
		return err
	}
	a.waker.wake(user)
	return c.JSON(http.StatusOK, emptyObject)
}

// setByServer refuses to set types that the server controls (Matrix specification, "Client Config"), also in encodings
// of m.push_rules that do not reach the module.
func setByServer(kind string) error {
	switch kind {
	case module.AccountDataType:
		return module.ErrServerControlled
	case fullyRead:
		return fault.New(fault.ServerControlled, "Cannot set m.fully_read through this API. Use /read_markers.")
	}
	return nil
}

const foreign = "Cannot access what belongs to other users."

// owner returns the caller, and refuses a path of another user.
func owner(c echo.Context) (mxid.UserID, error) {
	user, err := pathParam(c, "userId")
	if err != nil {
		return "", err
	}
	who := callerOf(c)
	if user != string(who.User) {
		return "", forbidden(foreign)
	}
	return who.User, nil
}
