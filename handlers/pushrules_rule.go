package handlers

import (
	"cmp"
	"context"
	"net/url"
	"slices"

	"github.com/labstack/echo/v4"

	"github.com/pushfx/pushfx/module/pushrule"
	"github.com/pushfx/pushfx/module/strictjson"
)

// getRule serves GET /pushrules/{scope}/{kind}/{ruleId}.
func (p *pushRuleRoutes) getRule(d Dialect) endpoint {
	return func(ctx context.Context, r request) (answer, error) {
		kind, id, err := pathRule(r.Context)
		if err != nil {
			return answer{}, err
		}
		if err := checkScope(r.Context); err != nil {
			return answer{}, err
		}
		rule, err := p.rules.Rule(ctx, r.who.User, kind, id)
		if err != nil {
			return answer{}, err
		}
		return d.rule(rule, kind), nil
	}
}

// checkScope refuses every scope except global. Routes that name global have no scope
// parameter.
func checkScope(c echo.Context) error {
	if !slices.Contains(c.ParamNames(), "scope") {
		return nil
	}
	scope, err := pathParam(c, "scope")
	if err == nil && scope != "global" {
		err = pushrule.ErrUnknownScope
	}
	return err
}

// putRule serves PUT /pushrules/global/{kind}/{ruleId}.
func (p *pushRuleRoutes) putRule(d Dialect) endpoint {
	return func(ctx context.Context, r request) (answer, error) {
		kind, id, err := pathKnownRule(r.Context)
		if err != nil {
			return answer{}, err
		}
		if pushrule.ValidateID(id) != nil { // Put refuses the ID, whatever the body
			return emptyObject, p.rules.Put(ctx, r.who.User, kind, id, pushrule.Draft{}, pushrule.Position{})
		}
		parameters, err := query(r.Context)
		if err != nil {
			return answer{}, err
		}
		var body putRuleBody
		if err := r.parse(func(reader *strictjson.Reader) error { return body.read(reader, kind, d) }); err != nil {
			return answer{}, err
		}
		at := position(parameters, body.at)
		return emptyObject, p.rules.Put(ctx, r.who.User, kind, id, body.draft, at)
	}
}

// putRuleBody is the body of a PUT rule in either form: {"rule": {...}, "before": "...",
// "after": "..."} of the service document, or the rule's members at the top level, of the
// Matrix specification. Both accept enabled at the top level; enabled inside rule wins.
type putRuleBody struct {
	draft pushrule.Draft
	at    pushrule.Position
}

func (b *putRuleBody) read(r *strictjson.Reader, kind pushrule.Kind, d Dialect) error {
	var top pushrule.Draft
	var wrapped, unwrapped bool
	err := r.Object(func(name string) (err error) {
		switch name {
		case "rule":
			wrapped = true
			b.draft, err = pushrule.ReadDraft(r, kind)
		case "before":
			b.at.Before, err = readOptional(r)
		case "after":
			b.at.After, err = readOptional(r)
		default:
			unwrapped = unwrapped || name == "actions" || name == "conditions" || name == "pattern"
			err = top.ReadMember(r, name)
		}
		return err
	})
	switch {
	case err != nil:
		return err
	case wrapped:
		b.draft.Enabled = cmp.Or(b.draft.Enabled, top.Enabled)
		return nil
	case !unwrapped:
		return strictjson.Missing(d.required())
	}
	b.draft = top
	return b.draft.Complete(kind, "")
}

func readOptional(r *strictjson.Reader) (string, error) {
	if null, err := r.Null(); null {
		return "", err
	}
	return r.String()
}

// position reads before and after from the query, or else from the body.
func position(query url.Values, at pushrule.Position) pushrule.Position {
	if before := query.Get("before"); before != "" {
		at.Before = before
	}
	if after := query.Get("after"); after != "" {
		at.After = after
	}
	return at
}

// deleteRule serves DELETE /pushrules/global/{kind}/{ruleId}.
func (p *pushRuleRoutes) deleteRule(ctx context.Context, r request) (answer, error) {
	kind, id, err := pathKnownRule(r.Context)
	if err != nil {
		return answer{}, err
	}
	return emptyObject, p.rules.Delete(ctx, r.who.User, kind, id)
}
