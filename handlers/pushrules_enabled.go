package handlers

import (
	"context"
	"strconv"

	"github.com/pushfx/pushfx/module/strictjson"
)

// getEnabled serves GET /pushrules/global/{kind}/{ruleId}/enabled.
func (p *pushRuleRoutes) getEnabled(ctx context.Context, r request) (answer, error) {
	kind, id, err := pathRule(r.Context)
	if err != nil {
		return answer{}, err
	}
	enabled, err := p.rules.Enabled(ctx, r.who.User, kind, id)
	if err != nil {
		return answer{}, err
	}
	return wrap("enabled", strconv.FormatBool(enabled)), nil
}

// putEnabled serves PUT /pushrules/global/{kind}/{ruleId}/enabled.
func (p *pushRuleRoutes) putEnabled(ctx context.Context, r request) (answer, error) {
	kind, id, err := pathKnownRule(r.Context)
	if err != nil {
		return answer{}, err
	}
	var enabled bool
	if err := r.parse(func(reader *strictjson.Reader) error {
		return reader.Object(func(name string) (err error) {
			if name != "enabled" {
				return reader.Skip()
			}
			enabled, err = reader.Bool()
			return err
		}, "enabled")
	}); err != nil {
		return answer{}, err
	}
	return emptyObject, p.rules.SetEnabled(ctx, r.who.User, kind, id, enabled)
}
