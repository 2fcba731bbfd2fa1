package assembly

import (
	"context"
	"errors"
	"slices"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/delivery"
	"github.com/pushfx/pushfx/module/handover"
	"github.com/pushfx/pushfx/module/match"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/unread"
)

var errNoDelivery = errors.New("pushfx: there is no Notifier without delivery: include pushfx.Delivery beside pushfx.Module, or set Options.Delivery")

type noNotifier struct{}

func (noNotifier) Decide(context.Context, module.Event, []match.Member) (module.Decisions, error) {
	return nil, errNoDelivery
}

func (noNotifier) Notify(context.Context, module.Event, module.Decisions) error {
	return errNoDelivery
}

func (noNotifier) UpdateBadges(context.Context, ...mxid.UserID) error { return errNoDelivery }

// NotifierOf returns a Notifier and an error. Without delivery, each call of the
// Notifier returns the error. An fx host that asks for a Notifier gets the error at
// start.
func NotifierOf(d *delivery.Delivery) (module.Notifier, error) {
	if d == nil {
		return noNotifier{}, errNoDelivery
	}
	return d, nil
}

var errnoUnread = errors.New("pushfx: there is no UnreadService without unread counts: include pushfx.Unread beside pushfx.Module, or set Options.Unread")

// noUnread is the UnreadService of a host without unread counts: its calls fail.
type noUnread struct{}

func (noUnread) States(_ context.Context, events []module.UserEvent) []module.Result[module.UnreadState] {
	return slices.Repeat([]module.Result[module.UnreadState]{{Err: errnoUnread}}, len(events))
}

func (noUnread) Add(context.Context, module.Place, module.Decisions) error { return errnoUnread }

func (noUnread) Read(context.Context, mxid.UserID, string, string, int64) error { return errnoUnread }

func (noUnread) Forget(context.Context, string, int64, []mxid.UserID) error { return errnoUnread }

func (noUnread) Rooms(context.Context, mxid.UserID, ...string) (map[string]module.RoomCounts, error) {
	return nil, errnoUnread
}

func (noUnread) Retain(context.Context, mxid.UserID, ...string) error { return errnoUnread }

func (noUnread) List(context.Context, mxid.UserID, module.UnreadQuery) (module.UnreadPage, error) {
	return module.UnreadPage{}, errnoUnread
}

// UnreadOf returns the UnreadService of an app. An app that asks for one without pushfx.Unread
// gets an error at start.
func UnreadOf(s *unread.Service) (module.UnreadService, error) {
	if s == nil {
		return nil, errnoUnread
	}
	return s, nil
}

// EventsOf returns the EventService of an app. An app that asks for one without pushfx.Delivery gets
// the error of its Notifier at start.
func EventsOf(notifier module.Notifier, unread *Counts) module.EventService {
	if unread == nil {
		return handover.New(notifier, nil)
	}
	return handover.New(notifier, unread.Service)
}
