package main

import (
	"net/http"
	"net/netip"
	"net/url"
	"strings"

	"github.com/labstack/echo/v4"

	"github.com/pushfx/pushfx/integration/gateway/receiver"
)

// guard keeps web pages of other sites from using the demo's page, endpoints and push gateway through a visitor's
// browser. Programs other than browsers send no Origin header, so guard lets them pass. Other paths belong to Matrix,
// which lets pages of any origin call them (Matrix specification, "Web Browser Clients").
type guard struct {
	listen  string // the host name in -listen
	origins *http.CrossOriginProtection
}

func newGuard(cfg config) *guard {
	return &guard{(&url.URL{Host: cfg.listen}).Hostname(), http.NewCrossOriginProtection()}
}

func isDemoPath(path string) bool {
	return path == "/" || strings.HasPrefix(path, "/_demo/") || path == receiver.Path
}

func (g *guard) protect(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		if err := g.check(c.Request()); err != nil {
			return err
		}
		return next(c)
	}
}

func (g *guard) check(r *http.Request) error {
	path := r.URL.Path
	switch {
	case !isDemoPath(path):
		return nil
	case !g.hasName(r.Host):
		return forbidden("The demo does not know this host name. Use an IP address, or the name in -listen.")
	case path == "/":
		return nil // links from other sites may lead to the page
	case g.origins.Check(r) != nil:
		return forbidden("Pages of other sites cannot use the demo's endpoints.")
	case r.URL.Query().Has("access_token"):
		return badRequest("M_INVALID_PARAM", "Send the token in the Authorization header: addresses are logged.")
	}
	return nil
}

// hasName reports whether a Host header names this host. If an attacker's domain resolved to this machine, the browser
// would treat the attacker's page and this host as one origin (DNS rebinding). An address or localhost cannot be an
// attacker's domain.
func (g *guard) hasName(host string) bool {
	name := strings.ToLower(strings.TrimSuffix((&url.URL{Host: host}).Hostname(), "."))
	if name == "" {
		return false
	}
	if _, err := netip.ParseAddr(name); err == nil || name == "localhost" || strings.HasSuffix(name, ".localhost") {
		return true
	}
	return strings.EqualFold(name, g.listen)
}
