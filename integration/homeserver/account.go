package main

import (
	"context"
	"fmt"
	"net/http"
	"slices"

	"github.com/labstack/echo/v4"
	"go.uber.org/zap"

	"github.com/pushfx/pushfx"
	"github.com/pushfx/pushfx/handlers"
	"github.com/pushfx/pushfx/integration/homeserver/sessions"
	"github.com/pushfx/pushfx/module"
)

// account serves logout, password change and deactivation. It ends a session before it calls the module, so that a
// concurrent request of the session cannot set a pusher afterwards. See [forgetting] for deactivation.
type account struct {
	sessions *sessions.Sessions
	cfg      config
	limits   *limits
	host     module.HostService
	push     *pushfx.Push
	forget   *forgetting
	log      *zap.Logger
}

func newAccount(
	cfg config, sessions *sessions.Sessions, limits *limits, host module.HostService, push *pushfx.Push, forget *forgetting, log *zap.Logger,
) *account {
	return &account{sessions, cfg, limits, host, push, forget, log}
}

// Register implements [handlers.RouteGroup].
func (a *account) Register(g *echo.Group, _ handlers.Dialect, auth ...echo.MiddlewareFunc) {
	g.GET("/account/whoami", whoami, auth...)
	g.GET("/capabilities", a.capabilities, auth...)
	g.GET("/account/3pid", a.threePIDs, auth...)
	g.GET("/devices", a.devices, auth...)
	g.POST("/logout", a.logout, auth...)
	g.POST("/logout/all", a.logoutAll, auth...)
	g.POST("/account/password", a.changePassword, auth...)
	g.POST("/account/deactivate", a.deactivate, auth...)
}

var emptyObject = struct{}{}

func (a *account) logout(c echo.Context) error {
	ctx, who := toTheEnd(c)
	if err := a.sessions.End(ctx, who.User, who.Device); err != nil {
		return err
	}
	logFailed(a.log, "logout", who.User, a.host.RemoveDevicePushers(ctx, who.User, who.Device))
	return c.JSON(http.StatusOK, emptyObject)
}

func (a *account) logoutAll(c echo.Context) error {
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

func (a *account) changePassword(c echo.Context) error {
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
	if err := a.setPassword(ctx, who, request); err != nil {
		return err
	}
	return c.JSON(http.StatusOK, emptyObject)
}

func (a *account) setPassword(ctx context.Context, who sessions.Caller, request passwordRequest) error {
	if request.LogoutDevices != nil && !*request.LogoutDevices {
		return a.sessions.SetPassword(ctx, who.User, *request.NewPassword)
	}
	if err := a.sessions.SetPasswordAndEndOthers(ctx, who.User, *request.NewPassword, who.Device); err != nil {
		return err
	}
	logFailed(a.log, "password change", who.User, a.host.KeepOnlyDevicePushers(ctx, who.User, who.Device))
	return nil
}

func (a *account) deactivate(c echo.Context) error {
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
	if err := a.forget.deactivate(ctx, who.User); err != nil {
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
func (a *account) threePIDs(c echo.Context) error {
	all := []map[string]any{}
	if a.cfg.mail != "" {
		all = append(all, map[string]any{"medium": "email", "address": mailAddress(callerOf(c).User), "validated_at": 0, "added_at": 0})
	}
	return c.JSON(http.StatusOK, map[string]any{"threepids": all})
}

// devices lists the user's devices. Clients compare them with the devices of pushers.
func (a *account) devices(c echo.Context) error {
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
func (a *account) capabilities(c echo.Context) error {
	return c.JSON(http.StatusOK, map[string]any{"capabilities": a.push.Capabilities()})
}
