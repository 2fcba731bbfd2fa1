package handlers

import (
	"context"
	"net/http"

	"github.com/pushfx/pushfx/module/fault"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/pusher"
	"github.com/pushfx/pushfx/module/strictjson"
)

// list serves GET /pushers.
func (p *pusherRoutes) list(ctx context.Context, r request) (answer, error) {
	pushers, err := p.pushers.List(ctx, r.who.User)
	if err != nil {
		return answer{}, err
	}
	if p.server.cfg.MSC3881 {
		pushers = withMSC3881(pushers)
	}
	return wrap("pushers", string(pushers.AppendJSON(nil))), nil
}

func withMSC3881(pushers pusher.List) pusher.List {
	var shown []pusher.Pusher
	for _, p := range pushers.All() {
		shown = append(shown, p.WithMSC3881())
	}
	return pusher.NewList(shown...)
}

// set serves POST /pushers/set.
func (p *pusherRoutes) set(d Dialect) endpoint {
	return func(ctx context.Context, r request) (answer, error) {
		var change pusher.Change
		if err := r.parse(func(reader *strictjson.Reader) (err error) {
			change, err = readPusherChange(reader, d.pusherForm())
			return err
		}); err != nil {
			return answer{}, err
		}
		if change.Pusher == nil {
			return emptyObject, p.pushers.Delete(ctx, r.who.User, change.Key)
		}
		set := *change.Pusher
		set.Device = r.who.Device
		if err := p.pushers.Set(ctx, r.who.User, set, change.Others); err != nil || !set.Kind.NeedsAck() {
			return emptyObject, err
		}
		return p.activation(ctx, r.who.User, set.Key)
	}
}

// activation answers 201 for a pusher that needs to be activated (MSC4174).
func (p *pusherRoutes) activation(ctx context.Context, user mxid.UserID, key pusher.Key) (answer, error) {
	list, err := p.pushers.List(ctx, user)
	if set, found := list.Pusher(key); found && set.IsInactive() {
		return answer{json: "{}", status: http.StatusCreated}, err
	}
	return emptyObject, err
}

// ack serves POST /pushers/ack (MSC4174).
func (p *pusherRoutes) ack(ctx context.Context, r request) (answer, error) {
	var app, token string
	err := r.parse(func(reader *strictjson.Reader) error {
		return reader.Object(func(name string) (err error) {
			switch name {
			case "app_id":
				app, err = reader.String()
			case "ack_token":
				token, err = reader.String()
			default:
				err = reader.Skip()
			}
			return err
		}, "app_id", "ack_token")
	})
	if err != nil {
		return answer{}, err
	}
	return emptyObject, p.pushers.Activate(ctx, r.who.User, app, token)
}

// unstableError is an error whose code has an unstable name at an unstable path.
type unstableError struct{ error }

func (e unstableError) Unwrap() error { return e.error }

func (p *pusherRoutes) unstableAck(ctx context.Context, r request) (answer, error) {
	a, err := p.ack(ctx, r)
	if kind := fault.KindOf(err); kind == fault.UnknownAckToken || kind == fault.ExpiredAckToken {
		err = unstableError{err}
	}
	return a, err
}

// readPusherChange accepts two forms of the body in each dialect: the change at the top
// level, as in the Matrix specification, or in {"action": {...}}, as in the service
// document.
func readPusherChange(r *strictjson.Reader, form pusher.Form) (change pusher.Change, err error) {
	start := r.Offset()
	wrapped := false
	err = r.Object(func(name string) (err error) {
		if name != "action" {
			return r.Skip()
		}
		wrapped = true
		change, err = pusher.ReadChange(r, form)
		return err
	})
	if err != nil || wrapped {
		return change, err
	}
	return pusher.ReadChange(strictjson.NewReader(r.Since(start)), form)
}
