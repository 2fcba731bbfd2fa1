package handlers

import (
	"context"
	"strconv"

	"github.com/pushfx/pushfx/module/strictjson"
)

// getEnabled serves GET /pushrules/global/{kind}/{ruleId}/enabled.
func (p *PushRules) getEnabled(ctx context.Context, r request) ([]byte, error) {
	kind, id, err := pathRule(r)
	if err != nil {
		return nil, err
	}
	enabled, err := p.rules.Enabled(ctx, r.who.User, kind, id)
	if err != nil {
		return nil, err
	}
	return append(strconv.AppendBool([]byte(`{"enabled":`), enabled), '}'), nil
}

// putEnabled serves PUT /pushrules/global/{kind}/{ruleId}/enabled.
func (p *PushRules) putEnabled(ctx context.Context, r request) ([]byte, error) {
	kind, id, err := pathKnownRule(r)
	if err != nil {
		return nil, err
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
		return nil, err
	}
	return emptyObject, p.rules.SetEnabled(ctx, r.who.User, kind, id, enabled)
}
