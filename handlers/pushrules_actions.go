package handlers

import (
	"context"

	"github.com/labstack/echo/v4"

	"github.com/pushfx/pushfx/module/pushrule"
	"github.com/pushfx/pushfx/module/strictjson"
)

// getActions serves GET /pushrules/global/{kind}/{ruleId}/actions.
func (p *PushRules) getActions(ctx context.Context, c echo.Context, who Requester) ([]byte, error) {
	kind, id, err := pathRule(c)
	if err != nil {
		return nil, err
	}
	rule, err := p.rules.Rule(ctx, who.User, kind, id)
	if err != nil {
		return nil, err
	}
	return append(pushrule.AppendActions([]byte(`{"actions":`), rule.Actions), '}'), nil
}

// putActions serves PUT /pushrules/global/{kind}/{ruleId}/actions.
func (p *PushRules) putActions(ctx context.Context, c echo.Context, who Requester) ([]byte, error) {
	kind, id, err := pathKnownRule(c)
	if err != nil {
		return nil, err
	}
	var actions []pushrule.Action
	if err := p.readBody(c, func(r *strictjson.Reader) error {
		return r.Object(func(name string) (err error) {
			if name != "actions" {
				return r.Skip()
			}
			actions, err = pushrule.ReadActions(r)
			return err
		}, "actions")
	}); err != nil {
		return nil, err
	}
	return emptyObject, p.rules.SetActions(ctx, who.User, kind, id, actions)
}
