package handlers

import (
	"context"

	"github.com/pushfx/pushfx/module/pushrule"
	"github.com/pushfx/pushfx/module/strictjson"
)

// getActions serves GET /pushrules/global/{kind}/{ruleId}/actions.
func (p *pushRuleRoutes) getActions(ctx context.Context, r request) (answer, error) {
	kind, id, err := pathRule(r.Context)
	if err != nil {
		return answer{}, err
	}
	rule, err := p.rules.Rule(ctx, r.who.User, kind, id)
	if err != nil {
		return answer{}, err
	}
	return wrap("actions", string(pushrule.AppendActions(nil, rule.Actions))), nil
}

// putActions serves PUT /pushrules/global/{kind}/{ruleId}/actions.
func (p *pushRuleRoutes) putActions(ctx context.Context, r request) (answer, error) {
	kind, id, err := pathKnownRule(r.Context)
	if err != nil {
		return answer{}, err
	}
	var actions []pushrule.Action
	if err := r.parse(func(reader *strictjson.Reader) error {
		return reader.Object(func(name string) (err error) {
			if name != "actions" {
				return reader.Skip()
			}
			actions, err = pushrule.ReadActions(reader)
			return err
		}, "actions")
	}); err != nil {
		return answer{}, err
	}
	return emptyObject, p.rules.SetActions(ctx, r.who.User, kind, id, actions)
}
