package main

import (
	"context"
	"fmt"
	"net/http"
	"slices"

	"github.com/labstack/echo/v4"

	"github.com/pushfx/pushfx/integration/homeserver/sessions"
)

var emptyObject = struct{}{}

// logout, like password change and deactivation, ends a session before it calls the module, so that a concurrent request
// of the session cannot set a pusher afterwards. See [forgetting] for deactivation.
func (a *api) logout(c echo.Context) error {
	ctx, who := toTheEnd(c)
	if err := a.sessions.End(ctx, who.User, who.Device); err != nil {
		return err
	}
	logFailed(a.log, "logout", who.User, a.host.RemoveDevicePushers(ctx, who.User, who.Device))
	return c.JSON(http.StatusOK, emptyObject)
}

func (a *api) logoutAll(c echo.Context) error {
	ctx, who := toTheEnd(c)
	if err := a.sessions.EndAll(ctx, who.User); err != nil {
		return err
	}
	logFailed(a.log, "logout of all devices", who.User, a.host.KeepOnlyDevicePushers(ctx, who.User, ""))
	return c.JSON(http.StatusOK, emptyObject)
}

type passwordRequest struct {
	NewPassword   *string        `json:"new_password"`
	LogoutDevices *bool          `json:"logout_devices"`
	Auth          *passwordLogin `json:"auth"`
}

func (a *api) changePassword(c echo.Context) error {
	var request passwordRequest
	if _, err := readObject(c, &request); err != nil {
		return err
	}
	if done, err := a.authenticated(c, request.Auth); err != nil || !done {
		return err
	}
	switch {
	case request.NewPassword == nil:
		return missing("new_password")
	case *request.NewPassword == "":
		return badRequest("M_WEAK_PASSWORD", "The password is empty.")
	case len(*request.NewPassword) > sessions.MaxPasswordBytes:
		return badRequest("M_INVALID_PARAM", fmt.Sprintf("The password has more than %d bytes.", sessions.MaxPasswordBytes))
	}
	ctx, who := toTheEnd(c)
	others := sessions.Others(request.LogoutDevices == nil || *request.LogoutDevices)
	if err := a.sessions.SetPassword(ctx, who.User, *request.NewPassword, who.Device, others); err != nil {
		return err
	}
	if others == sessions.EndOthers {
		logFailed(a.log, "password change", who.User, a.host.KeepOnlyDevicePushers(ctx, who.User, who.Device))
	}
	return c.JSON(http.StatusOK, emptyObject)
}

func (a *api) deactivate(c echo.Context) error {
	var request struct {
		Auth *passwordLogin `json:"auth"`
	}
	if _, err := readObject(c, &request); err != nil {
		return err
	}
	if done, err := a.authenticated(c, request.Auth); err != nil || !done {
		return err
	}
	ctx, who := toTheEnd(c)
	if err := a.forgetting.deactivate(ctx, who.User); err != nil {
		return err
	}
	return c.JSON(http.StatusOK, map[string]string{"id_server_unbind_result": "no-support"})
}

// toTheEnd returns the caller, and a context that does not end when the client disconnects: the client cannot repeat
// the request, because its token is no longer valid. Each step has its own deadline.
func toTheEnd(c echo.Context) (context.Context, sessions.Caller) {
	ctx := c.Request().Context()
	return context.WithoutCancel(ctx), sessions.CallerFrom(ctx)
}

func whoami(c echo.Context) error {
	who := callerOf(c)
	return c.JSON(http.StatusOK, map[string]any{
		"user_id":   who.User,
		"device_id": who.Device,
		"is_guest":  false,
	})
}

// threePIDs lists the user's e-mail address, for which clients set pushers, if the host sends mail.
func (a *api) threePIDs(c echo.Context) error {
	all := []map[string]any{}
	if a.cfg.mail != "" {
		all = append(all, map[string]any{"medium": "email", "address": mailAddress(callerOf(c).User), "validated_at": 0, "added_at": 0})
	}
	return c.JSON(http.StatusOK, map[string]any{"threepids": all})
}

// devices lists the user's devices. Clients compare them with the devices of pushers.
func (a *api) devices(c echo.Context) error {
	ctx := c.Request().Context()
	ids, err := a.sessions.Devices(ctx, sessions.CallerFrom(ctx).User)
	if err != nil {
		return err
	}
	slices.Sort(ids)
	all := make([]map[string]string, len(ids))
	for i, id := range ids {
		all[i] = map[string]string{"device_id": id}
	}
	return c.JSON(http.StatusOK, map[string]any{"devices": all})
}

// capabilities says that users can do all that a client assumes by default, and what the module adds.
func (a *api) capabilities(c echo.Context) error {
	return c.JSON(http.StatusOK, map[string]any{"capabilities": a.push.Capabilities()})
}
