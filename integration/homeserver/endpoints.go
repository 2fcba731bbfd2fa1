package main

import (
	"net/http"

	"github.com/labstack/echo/v4"
)

// alive serves GET /healthz. It does not ask Redis, because a failure of Redis must not
// restart the host.
func alive(c echo.Context) error { return c.String(http.StatusOK, "ok\n") }

func versions(unstable map[string]bool) echo.HandlerFunc {
	return func(c echo.Context) error {
		return c.JSON(http.StatusOK, map[string]any{
			"versions": []string{
				"r0.6.1", "v1.1", "v1.2", "v1.3", "v1.4", "v1.5", "v1.6", "v1.7", "v1.8", "v1.9",
				"v1.10", "v1.11", "v1.12", "v1.13", "v1.14", "v1.15", "v1.16", "v1.17",
			},
			"unstable_features": unstable,
		})
	}
}
