package module_test

import (
	"context"
	"log"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/pusher"
	"github.com/pushfx/pushfx/module/pushrule"
)

// What a homeserver calls from its own code.
func ExampleHostService() {
	var service module.HostService // Push.Host of package pushfx, or out of the fx container
	h := &homeserver{service}
	if err := h.registered(context.Background(), "@alice:example.org"); err != nil {
		log.Print(err)
	}
}

// homeserver is the part of a host that calls the module.
type homeserver struct{ push module.HostService }

func (h *homeserver) registered(ctx context.Context, user mxid.UserID) error {
	return h.push.EnsureDefaults(ctx, user)
}

func (h *homeserver) loggedIn(ctx context.Context, user mxid.UserID, devices []string) error {
	return h.push.RetainDevicePushers(ctx, user, devices...)
}

func (h *homeserver) loggedOut(ctx context.Context, user mxid.UserID, device string) error {
	return h.push.RemoveDevicePushers(ctx, user, device)
}

func (h *homeserver) loggedOutEverywhere(ctx context.Context, user mxid.UserID) error {
	return h.push.KeepOnlyDevicePushers(ctx, user, "")
}

func (h *homeserver) changedPassword(ctx context.Context, user mxid.UserID, device string) error {
	return h.push.KeepOnlyDevicePushers(ctx, user, device)
}

func (h *homeserver) deactivated(ctx context.Context, user mxid.UserID) error {
	return h.push.ForgetUser(ctx, user)
}

func (h *homeserver) upgradedRoom(ctx context.Context, members []mxid.UserID, oldRoom, newRoom string) error {
	for _, user := range members {
		if err := h.push.CopyRoomRules(ctx, user, oldRoom, newRoom); err != nil {
			return err
		}
	}
	return nil
}

func (h *homeserver) notify(ctx context.Context, members []mxid.UserID) {
	rules, pushers := h.push.Rulesets(ctx, members), h.push.Pushers(ctx, members)
	for _, user := range members {
		if rules[user].Err != nil || pushers[user].Err != nil {
			continue // try this one again later
		}
		deliver(rules[user].Value, pushers[user].Value)
	}
}

// deliver evaluates the rules, and sends notifications to the pushers.
func deliver(pushrule.Ruleset, pusher.List) {}
