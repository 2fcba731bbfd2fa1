package handlers

import (
	"context"

	"github.com/pushfx/pushfx/module/pusher"
	"github.com/pushfx/pushfx/module/strictjson"
)

// list serves GET /pushers.
func (p *Pushers) list(ctx context.Context, r request) ([]byte, error) {
	pushers, err := p.pushers.List(ctx, r.who.User)
	if err != nil {
		return nil, err
	}
	return wrap("pushers", &pushers), nil
}

// set serves POST /pushers/set.
func (p *Pushers) set(ctx context.Context, r request) ([]byte, error) {
	var change pusher.Change
	if err := r.parse(func(reader *strictjson.Reader) (err error) {
		change, err = readPusherChange(reader)
		return err
	}); err != nil {
		return nil, err
	}
	if change.Pusher == nil {
		return emptyObject, p.pushers.Delete(ctx, r.who.User, change.Key)
	}
	set := *change.Pusher
	set.Device = r.who.Device
	return emptyObject, p.pushers.Set(ctx, r.who.User, set)
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
