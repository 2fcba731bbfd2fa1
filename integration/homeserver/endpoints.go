package main

import (
	"net/http"
	"net/url"

	"github.com/labstack/echo/v4"

	"github.com/pushfx/pushfx/handlers"
	"github.com/pushfx/pushfx/module"
)

// health serves GET /healthz: the process is alive. Redis is not asked, so
// that its failure does not have the host restarted.
func health(c echo.Context) error {
	return c.String(http.StatusOK, "ok\n")
}

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

// whoami serves GET /account/whoami.
func whoami(c echo.Context) error {
	who, _ := handlers.RequesterFrom(c.Request().Context())
	return c.JSON(http.StatusOK, map[string]any{
		"user_id":   who.User,
		"device_id": who.Device,
		"is_guest":  false,
	})
}

// capabilities serves GET /capabilities: there is nothing here that a client
// could change beside push rules and pushers.
func capabilities(c echo.Context) error {
	type capability struct {
		Enabled bool `json:"enabled"`
	}
	return c.JSON(http.StatusOK, map[string]any{
		"capabilities": map[string]capability{
			"m.change_password": {false},
			"m.set_displayname": {false},
			"m.set_avatar_url":  {false},
			"m.3pid_changes":    {false},
			"m.get_login_token": {false},
		},
	})
}

// accountData serves the one event of a user's account data that there is.
type accountData struct{ rules module.RuleService }

// get serves GET /user/{userId}/account_data/m.push_rules: the stored content,
// repaired first where it needs that.
func (a accountData) get(c echo.Context) error {
	who, err := owner(c)
	if err != nil {
		return err
	}
	rules, err := a.rules.Ruleset(c.Request().Context(), who.User)
	if err != nil {
		return err
	}
	return c.JSONBlob(http.StatusOK, append(rules.AppendJSON([]byte(`{"global":`)), '}'))
}

// put refuses PUT on the same path (Matrix specification, "Server behaviour"
// of client config: push rules are set through their own API).
func (a accountData) put(c echo.Context) error {
	if _, err := owner(c); err != nil {
		return err
	}
	return &matrixError{
		status:  http.StatusMethodNotAllowed,
		errcode: "M_BAD_JSON",
		text:    "Cannot set m.push_rules through this API.",
	}
}

// owner returns the requester, who must be the user in the path.
func owner(c echo.Context) (handlers.Requester, error) {
	who, _ := handlers.RequesterFrom(c.Request().Context())
	user := c.Param("userId")
	if c.Request().URL.RawPath != "" { // only then the parameter is still encoded
		if decoded, err := url.PathUnescape(user); err == nil {
			user = decoded
		}
	}
	if user != string(who.User) {
		return who, &matrixError{
			status:  http.StatusForbidden,
			errcode: "M_FORBIDDEN",
			text:    "Cannot access the account data of other users.",
		}
	}
	return who, nil
}
