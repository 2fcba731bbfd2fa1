package main

import (
	"crypto/sha256"
	_ "embed"
	"encoding/base64"
	"net/http"
	"regexp"
	"strings"

	"github.com/labstack/echo/v4"

	"github.com/pushfx/pushfx/integration/gateway/receiver"
)

var (
	//go:embed page.html
	pageFrame string
	//go:embed page.css
	pageStyle string
	//go:embed page.js
	pageScript string
	//go:embed browser.js
	browserScript string // with -web-push
)

// dense removes indentation, and lines of comments.
func dense(text string) string { return indents.ReplaceAllString(text, "") }

var indents = regexp.MustCompile(`(?m)^\s+|^//.*\n`)

// pagePolicy allows only the page's own script and style, and requests to this host. With
// Trusted Types, the browser refuses code that turns text into markup, such as innerHTML; the policy "worker" has the
// address of the service worker alone.
const pagePolicy = "default-src 'none'; script-src SCRIPT; style-src STYLE; connect-src 'self'; worker-src 'self'; img-src data:; frame-src 'self'" +
	"; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types TYPES"

// hashOf returns the hash of an element's text, in the policy's syntax.
func hashOf(text string) string {
	sum := sha256.Sum256([]byte(text))
	return "'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'"
}

// newPage returns the demo's page with its style and script, as one file.
func newPage(cfg config) echo.HandlerFunc {
	style, script, types := dense(pageStyle), dense(pageScript), "'none'"
	if cfg.webPush {
		script, types = script+dense(browserScript), "worker"
	}
	html := strings.NewReplacer("PAGE_CSS", style, "PAGE_JS", script).Replace(dense(pageFrame))
	policy := strings.NewReplacer("SCRIPT", hashOf(script), "STYLE", hashOf(style), "TYPES", types).Replace(pagePolicy)
	return func(c echo.Context) error {
		header := c.Response().Header()
		header.Set(echo.HeaderContentSecurityPolicy, policy)
		header.Set(echo.HeaderXContentTypeOptions, "nosniff")
		header.Set(echo.HeaderReferrerPolicy, "no-referrer")
		header.Set(echo.HeaderCacheControl, "no-cache")
		return c.HTML(http.StatusOK, html)
	}
}

// mountDemo adds the page's own endpoints, which need a token, and the push gateway, to which homeservers post without
// a token. Matrix has none of these endpoints.
func mountDemo(e *echo.Echo, auth echo.MiddlewareFunc, a *api, g *gateway, listening *servers) {
	stream := func(c echo.Context) error { return g.stream(c, listening.clients.url()+receiver.Path) }
	e.POST("/_demo/explain", a.explain, auth)
	e.POST("/_demo/send", a.send, auth)
	e.GET("/_demo/pushers", a.pusherStates, auth)
	e.PUT("/_demo/gateway", g.setStatus, auth)
	e.GET("/_demo/notifications", stream, auth)
	if g.inbox != nil {
		e.GET("/_demo/mails/:id", g.mail, a.limits.addresses) // a frame sends no token
	}
	if g.webPush {
		e.POST(pushPath+":id", g.push)
		e.DELETE(pushPath+":id", g.endPush, auth)
		e.GET("/_demo/worker.js", serveWorker, a.limits.addresses)
	}
	e.Any(receiver.Path, echo.WrapHandler(g.receiver))
}
