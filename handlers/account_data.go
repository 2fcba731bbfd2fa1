package handlers

import (
	"context"
	"net/http"

	"github.com/labstack/echo/v4"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/fault"
)

type accountDataRoutes struct {
	server *Server
	host   module.HostService
}

func (a *accountDataRoutes) Register(g *echo.Group, _ Dialect, auth ...echo.MiddlewareFunc) {
	routes := a.server.tree(g, "/user/:userId/account_data/"+module.AccountDataType, auth)
	routes.add(routes.root, methods{
		http.MethodGet:    a.get,
		http.MethodPut:    a.refuse,
		http.MethodDelete: a.refuse,
	})
	ofRoom := a.server.tree(g, "/user/:userId/rooms/:roomId/account_data/"+module.AccountDataType, auth)
	ofRoom.add(ofRoom.root, methods{
		http.MethodGet:    a.getOfRoom,
		http.MethodPut:    a.refuse,
		http.MethodDelete: a.refuse,
	})
}

func (a *accountDataRoutes) get(ctx context.Context, r request) (answer, error) {
	if err := ownPath(r); err != nil {
		return answer{}, err
	}
	content, err := a.host.AccountData(ctx, r.who.User)
	return answer{json: string(content)}, err
}

var errNoAccountData = fault.New(fault.NotFound, "Account data not found.")

// getOfRoom answers that a room has no push rules.
func (a *accountDataRoutes) getOfRoom(_ context.Context, r request) (answer, error) {
	if err := ownPath(r); err != nil {
		return answer{}, err
	}
	return answer{}, errNoAccountData
}

// refuse serves PUT and DELETE of both paths.
func (a *accountDataRoutes) refuse(_ context.Context, r request) (answer, error) {
	if err := ownPath(r); err != nil {
		return answer{}, err
	}
	return answer{}, module.ErrServerControlled
}

func ownPath(r request) error {
	user, err := pathParam(r.Context, "userId")
	if err == nil && user != string(r.who.User) {
		err = errForbidden
	}
	return err
}
