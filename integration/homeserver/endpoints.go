package main

import (
	"net/http"

	"github.com/labstack/echo/v4"
)

// wellKnown serves GET /.well-known/matrix/client. The server is reached in
// the way that the client has reached it now.
func wellKnown(c echo.Context) error {
	type homeserver struct {
		BaseURL string `json:"base_url"`
	}
	return c.JSON(http.StatusOK, map[string]homeserver{
		"m.homeserver": {c.Scheme() + "://" + c.Request().Host},
	})
}

// versions serves GET /_matrix/client/versions.
func versions(c echo.Context) error {
	return c.JSON(http.StatusOK, map[string]any{
		"versions": []string{
			"r0.6.1", "v1.1", "v1.2", "v1.3", "v1.4", "v1.5", "v1.6", "v1.7", "v1.8", "v1.9",
			"v1.10", "v1.11", "v1.12", "v1.13", "v1.14", "v1.15", "v1.16", "v1.17",
		},
		"unstable_features": map[string]bool{},
	})
}
