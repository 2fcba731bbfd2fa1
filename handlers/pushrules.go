package handlers

import "context"

// getAll serves GET /pushrules/.
func (p *PushRules) getAll(d dialect) endpoint {
	return func(ctx context.Context, r request) ([]byte, error) {
		rules, err := p.rules.Ruleset(ctx, r.who.User)
		if err != nil {
			return nil, err
		}
		return d.all(rules), nil
	}
}

// getGlobal serves GET /pushrules/global/.
func (p *PushRules) getGlobal(d dialect) endpoint {
	return func(ctx context.Context, r request) ([]byte, error) {
		rules, err := p.rules.Ruleset(ctx, r.who.User)
		if err != nil {
			return nil, err
		}
		return d.global(rules), nil
	}
}
