package handlers

import (
	"context"

	"github.com/labstack/echo/v4"
)

// getAll serves GET /pushrules/.
func (p *PushRules) getAll(d dialect) endpoint {
	return func(ctx context.Context, _ echo.Context, who Requester) ([]byte, error) {
		rules, err := p.rules.Ruleset(ctx, who.User)
		if err != nil {
			return nil, err
		}
		return d.all(rules), nil
	}
}

// getGlobal serves GET /pushrules/global/.
func (p *PushRules) getGlobal(d dialect) endpoint {
	return func(ctx context.Context, _ echo.Context, who Requester) ([]byte, error) {
		rules, err := p.rules.Ruleset(ctx, who.User)
		if err != nil {
			return nil, err
		}
		return d.global(rules), nil
	}
}
