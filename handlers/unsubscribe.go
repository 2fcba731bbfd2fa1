package handlers

import (
	"context"
	"fmt"
	"html"
	"net/http"

	"github.com/labstack/echo/v4"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/observe"
)

var _ RouteGroup = (*unsubscribeRoutes)(nil)

// unsubscribePath begins as the paths of pushers do, so that hosts and proxies route it already.
const unsubscribePath = "/pushers/unsubscribe"

type unsubscribeRoutes struct {
	server *Server
	host   module.HostService
}

func (u *unsubscribeRoutes) Register(g *echo.Group, _ Dialect, _ ...echo.MiddlewareFunc) {
	routes := u.server.tree(g, unsubscribePath, nil)
	ask := func(op *observe.Operation) echo.HandlerFunc { return u.server.observe(op, u.ask) }
	routes.handle(routes.root, map[string]func(*observe.Operation) echo.HandlerFunc{
		http.MethodGet: ask, http.MethodHead: ask, // RFC 9110, 9.3.2
		http.MethodPost: func(op *observe.Operation) echo.HandlerFunc { return u.server.observe(op, u.stop) },
	})
}

// ask shows the button. It does not stop mails, since scanners open every link of a mail.
func (u *unsubscribeRoutes) ask(ctx context.Context, c echo.Context) (refused, err error) {
	ctx, cancel := context.WithTimeout(ctx, u.server.cfg.RequestTimeout)
	defer cancel()
	user, app, failed := u.host.MailUser(ctx, c.QueryParam("token"))
	if failed != nil {
		return u.fail(c, failed)
	}
	if app != "" {
		app = fmt.Sprintf(`<p>App: <bdi>%s</bdi></p>`, html.EscapeString(app))
	}
	return nil, showPage(c, http.StatusOK, fmt.Sprintf(askPage, html.EscapeString(string(user)), app))
}

// stop serves the button of the page, and the one click of mail programs (RFC 8058).
func (u *unsubscribeRoutes) stop(ctx context.Context, c echo.Context) (refused, err error) {
	ctx, cancel := context.WithTimeout(ctx, u.server.cfg.RequestTimeout)
	defer cancel()
	failed := u.host.Unsubscribe(ctx, c.QueryParam("token"))
	if failed == nil {
		return nil, showPage(c, http.StatusOK, donePage)
	}
	return u.fail(c, failed)
}

func (u *unsubscribeRoutes) fail(c echo.Context, failed error) (refused, err error) {
	status := u.server.logRefused(c, Requester{}, failed)
	if status < http.StatusInternalServerError {
		return failed, showPage(c, status, invalidPage)
	}
	return failed, showPage(c, status, laterPage)
}

const (
	askPage     = `<h1>No more emails to <bdi>%s</bdi>?</h1>%s<form method="post"><button>Stop these emails</button></form>`
	donePage    = `<h1>Done</h1><p>You get no more of these emails. You can turn them on again in the app.</p>`
	invalidPage = `<h1>This link does not work</h1><p>It is not complete, or it is too old. Use the link of a newer email, or the settings of the app.</p>`
	laterPage   = `<h1>That did not work</h1><p>Please try again later.</p>`
)

// showPage answers with a page that loads nothing and tells no other server its address.
func showPage(c echo.Context, status int, content string) error {
	header := c.Response().Header()
	header.Set("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'")
	header.Set("Referrer-Policy", "no-referrer")
	header.Set("Cache-Control", "no-store")
	header.Set("X-Robots-Tag", "noindex")
	header.Set("X-Content-Type-Options", "nosniff")
	return c.HTML(status, `<!DOCTYPE html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">`+
		`<meta name="color-scheme" content="light dark"><title>Emails</title>`+
		`<style>:root{color-scheme:light dark}body{font:18px/1.5 system-ui,sans-serif;max-width:34em;margin:15vh auto;padding:0 1em}button{font:inherit;padding:.5em 1em}</style>`+
		content+`</html>`)
}
