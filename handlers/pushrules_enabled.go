package handlers

import (
	"context"
	"strconv"

	"github.com/labstack/echo/v4"

	"github.com/pushfx/pushfx/module/strictjson"
)

// getEnabled serves GET /pushrules/global/{kind}/{ruleId}/enabled.
func (p *PushRules) getEnabled(ctx context.Context, c echo.Context, who Requester) ([]byte, error) {
	kind, id, err := pathRule(c)
	if err != nil {
		return nil, err
	}
	enabled, err := p.rules.Enabled(ctx, who.User, kind, id)
	if err != nil {
		return nil, err
	}
	return append(strconv.AppendBool([]byte(`{"enabled":`), enabled), '}'), nil
}

// putEnabled serves PUT /pushrules/global/{kind}/{ruleId}/enabled.
func (p *PushRules) putEnabled(ctx context.Context, c echo.Context, who Requester) ([]byte, error) {
	kind, id, err := pathKnownRule(c)
	if err != nil {
		return nil, err
	}
	var enabled bool
	if err := p.readBody(c, func(r *strictjson.Reader) error {
		return r.Object(func(name string) (err error) {
			if name != "enabled" {
				return r.Skip()
			}
			enabled, err = r.Bool()
			return err
		}, "enabled")
	}); err != nil {
		return nil, err
	}
	return emptyObject, p.rules.SetEnabled(ctx, who.User, kind, id, enabled)
}
