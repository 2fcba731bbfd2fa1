// Package handlers is the push rules and pushers API over HTTP: echo in, one
// service call, JSON out. The host mounts its route groups below its own
// authenticated groups; nothing here touches the host's middleware or error
// handler.
package handlers

import (
	"context"
	"maps"
	"net/http"
	"slices"
	"strings"

	"github.com/labstack/echo/v4"
	"go.uber.org/zap"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/observe"
)

// RouteGroup is a set of routes that a host mounts below a group of its own.
type RouteGroup interface {
	// Register adds the routes below g. It may be called more than once, with
	// a group for each version prefix: "/_matrix/client/r0" gets the service
	// document's wire form, every other the Matrix specification's. The group
	// needs the host's auth middleware; see [WithRequester].
	Register(g *echo.Group)
}

var (
	_ RouteGroup = (*PushRules)(nil)
	_ RouteGroup = (*Pushers)(nil)
)

// PushRules serves the nine push rule endpoints. It is safe for concurrent use.
type PushRules struct {
	server
	rules module.RuleService
}

// NewPushRules returns the push rule endpoints. It fails when cfg is not valid.
func NewPushRules(rules module.RuleService, cfg Config, log *zap.Logger) (*PushRules, error) {
	s, err := newServer(cfg, log)
	return &PushRules{s, rules}, err
}

// Register adds the push rule routes; see [RouteGroup].
func (p *PushRules) Register(g *echo.Group) {
	routes := p.tree(g, "/pushrules")
	d := dialectOf(routes.mounted)

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

// Pushers serves the two pusher endpoints. It is safe for concurrent use.
type Pushers struct {
	server
	pushers module.PusherService
}

// NewPushers returns the pusher endpoints. It fails when cfg is not valid.
func NewPushers(pushers module.PusherService, cfg Config, log *zap.Logger) (*Pushers, error) {
	s, err := newServer(cfg, log)
	return &Pushers{s, pushers}, err
}

// Register adds the pusher routes; see [RouteGroup].
func (p *Pushers) Register(g *echo.Group) {
	routes := p.tree(g, "/pushers")

	routes.add("/pushers", methods{http.MethodGet: p.list})
	routes.add("/pushers/set", methods{http.MethodPost: p.set(dialectOf(routes.mounted))})
}

// methods maps the methods of a path to their endpoints.
type methods map[string]endpoint

// tree is a tree of paths in which every path and method has an answer in the
// Matrix form: what is not served is answered 404 or 405.
type tree struct {
	server  *server
	group   *echo.Group
	root    string // "/pushrules"
	mounted string // the root's full path
	shapes  []shape
}

// shape is a served path and what it allows.
type shape struct {
	segments []string // those that start with a colon match anything
	allow    string   // for the Allow header
}

// tree returns the tree below root, which still serves nothing.
func (s *server) tree(g *echo.Group, root string) *tree {
	t := &tree{server: s, group: g, root: root}
	op := &observe.Operation{Kind: observe.Request, Verb: otherMethod}
	op.Name = g.RouteNotFound(root+"*", s.observe(op, t.unserved)).Path
	t.mounted = strings.TrimSuffix(op.Name, "*")
	return t
}

// add serves a path. Of two shapes that match a path, the later one tells what
// it allows.
func (t *tree) add(path string, served methods) {
	for method, do := range served {
		op := &observe.Operation{Kind: observe.Request, Verb: method}
		op.Name = t.group.Add(method, path, t.server.serve(op, do)).Path
	}
	allow := append(slices.Sorted(maps.Keys(served)), http.MethodOptions)
	t.shapes = append(t.shapes, shape{strings.Split(path, "/"), strings.Join(allow, ", ")})
}

// otherMethod stands for the methods that no route has, which clients choose.
const otherMethod = "OTHER"

// unserved answers what no route takes: 405 for another method of a served
// path (OPTIONS gets what is allowed), otherwise 404.
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

// allowed tells what a path allows; it is empty for one that is not served.
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
