// Package handlers serves the push rules and pushers API over HTTP with echo. The host
// mounts its route groups; the package does not change the host's middleware or error
// handler.
package handlers

import (
	"context"
	"maps"
	"net/http"
	"slices"
	"strings"

	"github.com/labstack/echo/v4"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/observe"
)

// RouteGroup is a set of routes that a host mounts below one of its echo groups.
type RouteGroup interface {
	// Register adds the routes below g in the wire form d. Auth is the host's middleware
	// that calls [WithRequester]. It runs only for served routes, so an unknown path is
	// 404 for everyone. If the group has such middleware already, omit it; echo then runs
	// it for all paths below the group.
	//
	// Register may be called once for each version prefix.
	Register(g *echo.Group, d Dialect, auth ...echo.MiddlewareFunc)
}

var (
	_ RouteGroup = (*pushRuleRoutes)(nil)
	_ RouteGroup = (*pusherRoutes)(nil)
	_ RouteGroup = (*accountDataRoutes)(nil)
)

type pushRuleRoutes struct {
	server *Server
	rules  module.RuleService
}

func (p *pushRuleRoutes) Register(g *echo.Group, d Dialect, auth ...echo.MiddlewareFunc) {
	routes := p.server.tree(g, "/pushrules*", auth)

	routes.add("/pushrules", methods{http.MethodGet: p.getAll(d)})
	routes.add("/pushrules/", methods{http.MethodGet: p.getAll(d)})
	routes.add("/pushrules/global", methods{http.MethodGet: p.getGlobal(d)})
	routes.add("/pushrules/global/", methods{http.MethodGet: p.getGlobal(d)})
	routes.add("/pushrules/:scope/:kind/:ruleId", methods{http.MethodGet: p.getRule(d)})
	routes.add("/pushrules/global/:kind/:ruleId", methods{
		http.MethodGet:    p.getRule(d),
		http.MethodPut:    p.putRule(d),
		http.MethodDelete: p.deleteRule,
	})
	routes.add("/pushrules/global/:kind/:ruleId/enabled", methods{
		http.MethodGet: p.getEnabled,
		http.MethodPut: p.putEnabled,
	})
	routes.add("/pushrules/global/:kind/:ruleId/actions", methods{
		http.MethodGet: p.getActions,
		http.MethodPut: p.putActions,
	})
}

type pusherRoutes struct {
	server  *Server
	pushers module.PusherService
}

func (p *pusherRoutes) Register(g *echo.Group, d Dialect, auth ...echo.MiddlewareFunc) {
	routes := p.server.tree(g, "/pushers*", auth)

	routes.add("/pushers", methods{http.MethodGet: p.list})
	routes.add("/pushers/set", methods{http.MethodPost: p.set(d)})
	routes.add("/pushers/ack", methods{http.MethodPost: p.ack})
}

// RegisterUnstable adds the endpoints of groups that have other paths until their proposal is accepted
// to the host's group "/_matrix/client/unstable": POST org.matrix.msc4174/pushers/ack. Auth is as for
// [RouteGroup.Register].
func RegisterUnstable(g *echo.Group, groups []RouteGroup, auth ...echo.MiddlewareFunc) {
	for _, group := range groups {
		if p, isPushers := group.(*pusherRoutes); isPushers {
			routes := p.server.tree(g, "/org.matrix.msc4174/pushers/ack", auth)
			routes.add(routes.root, methods{http.MethodPost: p.unstableAck})
		}
	}
}

type methods map[string]endpoint

// tree answers all requests for its paths in the Matrix form. A path or method that is not
// served gets 404 or 405.
type tree struct {
	server *Server
	group  *echo.Group
	auth   []echo.MiddlewareFunc
	root   string // "/pushrules"
	shapes []shape

	notFound echo.HandlerFunc
}

type shape struct {
	segments []string // a segment that begins with a colon is a parameter: it matches any text
	allow    string   // for the Allow header
}

// tree returns an empty tree for the paths of a pattern: one path or, with a star at the
// end, all paths with that prefix.
func (s *Server) tree(g *echo.Group, pattern string, auth []echo.MiddlewareFunc) *tree {
	t := &tree{server: s, group: g, auth: auth, root: strings.TrimSuffix(pattern, "*")}
	op := &observe.Operation{Kind: observe.Request, Verb: otherMethod}
	unserved := s.observe(op, t.unserved)
	op.Name = g.RouteNotFound(pattern, unserved).Path
	if t.root == pattern {
		g.Any(pattern, unserved) // otherwise a wildcard route of the host could match other methods
	}
	t.notFound = s.observe(op, func(_ context.Context, c echo.Context) (refused, err error) {
		return s.refuse(c, Requester{}, errUnrecognized)
	})
	return t
}

// add serves a path, which may have parameters. If two added paths match a request, the
// later one determines the allowed methods.
func (t *tree) add(path string, served methods) {
	handlers := map[string]func(*observe.Operation) echo.HandlerFunc{}
	for method, do := range served {
		handlers[method] = func(op *observe.Operation) echo.HandlerFunc { return t.server.serve(op, do) }
	}
	t.handle(path, handlers)
}

func (t *tree) handle(path string, served map[string]func(*observe.Operation) echo.HandlerFunc) {
	for method, handler := range served {
		op := &observe.Operation{Kind: observe.Request, Verb: method}
		op.Name = t.group.Add(method, path, handler(op), append([]echo.MiddlewareFunc{t.onlyServed}, t.auth...)...).Path
	}
	allow := append(slices.Sorted(maps.Keys(served)), http.MethodOptions)
	t.shapes = append(t.shapes, shape{strings.Split(path, "/"), strings.Join(allow, ", ")})
}

// onlyServed answers paths with too many segments before the host's authentication: echo
// would put all remaining segments into the last parameter.
func (t *tree) onlyServed(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		for _, value := range c.ParamValues() {
			if value == "" || strings.Contains(value, "/") {
				return t.notFound(c)
			}
		}
		return next(c)
	}
}

// otherMethod is the label in metrics for all methods without a route, because clients
// can invent any number of methods.
const otherMethod = "OTHER"

// unserved answers requests without a route: 405 for another method of a served path
// (OPTIONS gets the allowed methods), otherwise 404.
func (t *tree) unserved(_ context.Context, c echo.Context) (refused, err error) {
	allow := t.allowed(t.root + c.Param("*"))
	if allow == "" {
		return t.server.refuse(c, Requester{}, errUnrecognized)
	}
	c.Response().Header().Set(echo.HeaderAllow, allow)
	if c.Request().Method == http.MethodOptions {
		return nil, c.NoContent(http.StatusNoContent)
	}
	return t.server.refuse(c, Requester{}, errMethodNotAllowed)
}

// allowed returns the allowed methods of a path, empty if the path is not served.
func (t *tree) allowed(path string) (allow string) {
	segments := strings.Split(path, "/")
	for _, s := range t.shapes {
		if slices.EqualFunc(s.segments, segments, func(want, got string) bool {
			return want == got || strings.HasPrefix(want, ":") && got != ""
		}) {
			allow = s.allow
		}
	}
	return allow
}
