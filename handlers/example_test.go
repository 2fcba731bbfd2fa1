package handlers_test

import (
	"errors"
	"net/http"

	"github.com/labstack/echo/v4"

	"github.com/pushfx/pushfx/handlers"
	"github.com/pushfx/pushfx/module/mxid"
)

// The host's authentication tells the module which user makes a request. Given to
// Register, it runs only for requests that the module serves.
func ExampleWithRequester() {
	var group handlers.RouteGroup // one of pushfx.Push.Groups, or of the fx group pushfx.RouteGroups
	e := echo.New()
	group.Register(e.Group("/_matrix/client/v3"), handlers.V3, requireUser)
	group.Register(e.Group("/_matrix/client/r0"), handlers.R0, requireUser)
}

func requireUser(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		session, err := sessionOf(c.Request().Header.Get("Authorization"))
		if err != nil {
			return c.JSON(http.StatusUnauthorized, map[string]string{"errcode": "M_UNKNOWN_TOKEN", "error": "Unknown token."})
		}
		who := handlers.Requester{User: mxid.UserID(session.UserID), Device: session.DeviceID}
		c.SetRequest(c.Request().WithContext(handlers.WithRequester(c.Request().Context(), who)))
		return next(c)
	}
}

type session struct{ UserID, DeviceID string }

func sessionOf(authorization string) (session, error) {
	if authorization != "Bearer token" {
		return session{}, errors.New("no such session")
	}
	return session{"@alice:example.org", "PHONE"}, nil
}
