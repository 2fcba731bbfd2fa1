package handlers

import "context"

// getAll serves GET /pushrules/.
func (p *pushRuleRoutes) getAll(d Dialect) endpoint {
	return func(ctx context.Context, r request) (answer, error) {
		content, err := p.rules.Content(ctx, r.who.User)
		if err != nil {
			return answer{}, err
		}
		return d.all(content.Rules), nil
	}
}

// getGlobal serves GET /pushrules/global/.
func (p *pushRuleRoutes) getGlobal(d Dialect) endpoint {
	return func(ctx context.Context, r request) (answer, error) {
		content, err := p.rules.Content(ctx, r.who.User)
		if err != nil {
			return answer{}, err
		}
		return d.global(content.Rules), nil
	}
}
