package handlers

import (
	"context"

	"github.com/labstack/echo/v4"

	"github.com/pushfx/pushfx/module/pusher"
	"github.com/pushfx/pushfx/module/strictjson"
)

// list serves GET /pushers.
func (p *Pushers) list(ctx context.Context, _ echo.Context, who Requester) ([]byte, error) {
	pushers, err := p.pushers.List(ctx, who.User)
	if err != nil {
		return nil, err
	}
	return wrap("pushers", &pushers), nil
}

// set serves POST /pushers/set.
func (p *Pushers) set(ctx context.Context, c echo.Context, who Requester) ([]byte, error) {
	var change pusher.Change
	if err := p.readBody(c, func(r *strictjson.Reader) (err error) {
		change, err = readPusherChange(r)
		return err
	}); err != nil {
		return nil, err
	}
	if change.Pusher == nil {
		return emptyObject, p.pushers.Delete(ctx, who.User, change.Key)
	}
	set := *change.Pusher
	set.Device = who.Device
	return emptyObject, p.pushers.Set(ctx, who.User, set)
}

// readPusherChange reads the body of a POST /pushers/set in either form: the
// service document's {"action": {...}}, or the Matrix specification's, where
// the pusher's members stand at the top.
func readPusherChange(r *strictjson.Reader) (change pusher.Change, err error) {
	start := r.Offset()
	wrapped := false
	err = r.Object(func(name string) (err error) {
		if name != "action" {
			return r.Skip()
		}
		wrapped = true
		change, err = pusher.ReadChange(r)
		return err
	})
	if err != nil || wrapped {
		return change, err
	}
	return pusher.ReadChange(strictjson.NewReader(r.Since(start)))
}
