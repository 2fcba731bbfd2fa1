package module_test

import (
	"context"

	"go.uber.org/zap"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/fault"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/pusher"
	"github.com/pushfx/pushfx/module/pushrule"
)

// What a homeserver calls from its own code.
func ExampleHostService() {
	var service module.HostService // Push.Host of package pushfx, or out of the fx container
	var pushers module.PusherService
	h := &homeserver{service, pushers, zap.NewExample()}
	h.registered(context.Background(), "@alice:example.org")
}

type homeserver struct {
	host    module.HostService
	pushers module.PusherService
	log     *zap.Logger
}

func (h *homeserver) registered(ctx context.Context, user mxid.UserID) {
	h.logFailed("registration", user, h.host.EnsureDefaults(ctx, user))
}

func (h *homeserver) loggedIn(ctx context.Context, user mxid.UserID, devices []string) {
	h.logFailed("login", user, h.host.RetainDevicePushers(ctx, user, devices...))
}

func (h *homeserver) loggedOut(ctx context.Context, user mxid.UserID, device string) {
	h.logFailed("logout", user, h.host.RemoveDevicePushers(ctx, user, device))
}

func (h *homeserver) loggedOutEverywhere(ctx context.Context, user mxid.UserID) {
	h.logFailed("logout of all devices", user, h.host.KeepOnlyDevicePushers(ctx, user, ""))
}

func (h *homeserver) changedPassword(ctx context.Context, user mxid.UserID, device string) {
	h.logFailed("password change", user, h.host.KeepOnlyDevicePushers(ctx, user, device))
}

func (h *homeserver) deactivated(ctx context.Context, user mxid.UserID) {
	h.logFailed("deactivation", user, h.host.ForgetUser(ctx, user))
}

func (h *homeserver) tookAddressAway(ctx context.Context, user mxid.UserID, address string) {
	key := pusher.Key{AppID: pusher.EmailAppID, Pushkey: address}
	h.logFailed("removal of an address", user, h.pushers.Delete(ctx, user, key))
}

// logFailed logs an error that must not reach the client.
func (h *homeserver) logFailed(at string, user mxid.UserID, err error) {
	if err != nil {
		h.log.Warn("push: a call failed", zap.String("at", at), zap.String("user_id", string(user)), zap.String("error", fault.Details(err)))
	}
}

func (h *homeserver) upgradedRoom(ctx context.Context, members []mxid.UserID, oldRoom, newRoom string) error {
	for _, user := range members {
		if err := h.host.CopyRoomRules(ctx, user, oldRoom, newRoom); err != nil {
			return err
		}
	}
	return nil
}

func (h *homeserver) notify(ctx context.Context, members []mxid.UserID) {
	rules, pushers := h.host.Rulesets(ctx, members), h.host.Pushers(ctx, members)
	for _, user := range members {
		if rules[user].Err != nil || pushers[user].Err != nil {
			continue // try this one again later
		}
		deliver(rules[user].Value.Rules, pushers[user].Value)
	}
}

func deliver(pushrule.Ruleset, pusher.List) {}
