package main

import (
	"context"
	"crypto/rand"
	"net/http"
	"strings"
	"sync"

	"github.com/labstack/echo/v4"
	"go.uber.org/zap"

	"github.com/pushfx/pushfx/handlers"
	"github.com/pushfx/pushfx/module/fault"
	"github.com/pushfx/pushfx/module/mxid"
)

// serverName is the domain of all users.
const serverName = "localhost"

// users are the accounts with their sessions. A real host has them in its
// database.
type users struct {
	mu       sync.Mutex
	names    map[mxid.UserID]bool
	sessions map[string]handlers.Requester // by token
}

func newUsers() *users {
	return &users{names: map[mxid.UserID]bool{}, sessions: map[string]handlers.Requester{}}
}

// add makes a user with one device.
func (u *users) add(name string) (who handlers.Requester, token string, err error) {
	who = handlers.Requester{User: mxid.UserID("@" + name + ":" + serverName), Device: rand.Text()[:10]}
	u.mu.Lock()
	defer u.mu.Unlock()
	if name == "" || strings.Contains(name, ":") || who.User.Validate() != nil || u.names[who.User] {
		return who, "", fault.New(fault.InvalidParam, "The username cannot be had.")
	}
	token = rand.Text()
	u.names[who.User], u.sessions[token] = true, who
	return who, token, nil
}

// remove ends the session of a device.
func (u *users) remove(who handlers.Requester) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for token, session := range u.sessions {
		if session == who {
			delete(u.sessions, token)
		}
	}
}

// LoggedIn implements [module.Accounts].
func (u *users) LoggedIn(_ context.Context, user mxid.UserID, device string) (bool, error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, session := range u.sessions {
		if session.User == user && session.Device == device {
			return true, nil
		}
	}
	return device == "" && u.names[user], nil
}

// require is the middleware that tells the module who makes a request.
func (u *users) require(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		token, found := strings.CutPrefix(c.Request().Header.Get(echo.HeaderAuthorization), "Bearer ")
		if !found {
			return handlers.ErrMissingToken
		}
		u.mu.Lock()
		who, found := u.sessions[token]
		u.mu.Unlock()
		if !found {
			return handlers.ErrUnknownToken
		}
		c.SetRequest(c.Request().WithContext(handlers.WithRequester(c.Request().Context(), who)))
		return next(c)
	}
}

// register makes a user with one device, and their default push rules. The user
// exists already when the module is called, so its error is not the client's.
func (h *endpoints) register(c echo.Context) error {
	var request struct {
		Username string `json:"username"`
	}
	if err := c.Bind(&request); err != nil {
		return fault.New(fault.NotJSON, "Not valid JSON.")
	}
	who, token, err := h.users.add(request.Username)
	if err != nil {
		return err
	}
	h.logFailed("registration", who.User, h.push.Host.EnsureDefaults(c.Request().Context(), who.User))
	return c.JSON(http.StatusOK, map[string]any{"user_id": who.User, "device_id": who.Device, "access_token": token})
}

// logout ends the session first and then removes the pushers of its device, also
// when the client has hung up: its token is dead, so it cannot try again.
func (h *endpoints) logout(c echo.Context) error {
	who, _ := handlers.RequesterFrom(c.Request().Context())
	h.users.remove(who)
	ctx := context.WithoutCancel(c.Request().Context())
	h.logFailed("logout", who.User, h.push.Host.RemoveDevicePushers(ctx, who.User, who.Device))
	return c.JSON(http.StatusOK, struct{}{})
}

// logFailed logs an error that later calls make up for, so that the client need not
// see it. The first read of the whole set creates rules, and a host that has logins
// removes left pushers there; see [module.HostService.RetainDevicePushers].
func (h *endpoints) logFailed(at string, user mxid.UserID, err error) {
	if err != nil {
		h.log.Warn("push: a call failed", zap.String("at", at), zap.String("user_id", string(user)), zap.String("error", fault.Details(err)))
	}
}
