package integration

import (
	"context"
	"net/netip"
	"strings"
	"testing"

	"go.uber.org/fx"

	"github.com/pushfx/pushfx"
	"github.com/pushfx/pushfx/module/mxid"
)

// sendMail makes the host send mail; its users share one address.
func sendMail(c *pushfx.Config) {
	c.PusherPolicy.Email = func(_ context.Context, _ mxid.UserID, address string) (bool, error) {
		return address == "mine@example.org", nil
	}
}

func TestConfiguredLimits(t *testing.T) {
	t.Parallel()
	const room, pushers = "PUT /pushrules/global/room/", "POST /pushers/set"
	mail := func(address string) string {
		return pusherWith(`"kind":"email"`, `"app_id":"m.email"`, `"pushkey":"`+address+`"`, `"data":{}`)
	}
	for _, test := range []struct {
		name  string
		set   func(*pushfx.Config)
		steps []step
	}{
		{"MaxRules", func(c *pushfx.Config) { c.RuleLimits.MaxRules = 16 }, []step{ // 15 are default rules
			{room + "a", `{"actions":[]}`, done},
			{room + "b", `{"actions":[]}`, failure(400, "M_INVALID_PARAM", "A user has at most 16 push rules.")},
			{room + "a", `{"actions":["notify"]}`, done},
			{"DELETE /pushrules/global/room/a", "", done},
			{room + "b", `{"actions":[]}`, done},
		}},
		{"MaxSetBytes", func(c *pushfx.Config) { c.RuleLimits.MaxSetBytes = 4000 }, []step{
			{room + strings.Repeat("a", 1000), `{"actions":[]}`, failure(413, "M_TOO_LARGE", "Push rules larger than 4000 bytes.")},
			{room + "a", `{"actions":[]}`, done},
			{room + "a/actions", `{"actions":["` + strings.Repeat("x", 1000) + `"]}`, failure(413, "M_TOO_LARGE", "Push rules larger than 4000 bytes.")},
		}},
		{"MaxBodyBytes", func(c *pushfx.Config) { c.Handlers.MaxBodyBytes = 14 }, []step{
			{room + "a", `{"actions":[]}`, done},
			{room + "a", `{"actions":[]} `, bodyTooLarge},
		}},
		{"MaxJSONDepth", func(c *pushfx.Config) { c.Handlers.MaxJSONDepth = 3 }, []step{
			{room + "a", `{"actions":[{}]}`, done},
			{room + "a", `{"actions":[{"x":[]}]}`, failure(400, "M_NOT_JSON", "Not valid JSON: nested too deep")},
		}},
		{"MaxPushers", func(c *pushfx.Config) { c.PusherPolicy.MaxPushers = 1 }, []step{
			{pushers, pusherWith(), done},
			{pushers, pusherWith(`"pushkey":"other"`), failure(400, "M_INVALID_PARAM", "A user has at most 1 pushers.")},
		}},
		{"MaxListBytes", func(c *pushfx.Config) { c.PusherPolicy.MaxListBytes = 400 }, []step{
			{pushers, pusherWith(), done},
			{pushers, pusherWith(`"lang":"` + strings.Repeat(`\u0001`, 20) + `"`), failure(413, "M_TOO_LARGE", "Pushers larger than 400 bytes.")},
			{pushers, pusherWith(`"pushkey":"other"`), failure(413, "M_TOO_LARGE", "Pushers larger than 400 bytes.")},
			{pushers, pusherWith(`"lang":"` + strings.Repeat("x", 20) + `"`), done},
		}},
		{"MaxListBytes, a pusher that grows beside another", func(c *pushfx.Config) { c.PusherPolicy.MaxListBytes = 1000 }, []step{
			{pushers, pusherWith(), done},
			{pushers, pusherWith(`"pushkey":"other"`), done},
			{pushers, pusherWith(`"lang":"` + strings.Repeat("x", 450) + `"`), failure(413, "M_TOO_LARGE", "Pushers larger than 1000 bytes.")},
			{pushers, pusherWith(`"lang":"` + strings.Repeat("x", 50) + `"`), done},
		}},
		{"AllowHTTP", func(c *pushfx.Config) { c.PusherPolicy.AllowHTTP = true }, []step{
			{pushers, pusherWith(`"data":{"url":"http://push.example.org/_matrix/push/v1/notify"}`), done},
			{pushers, pusherWith(`"data":{"url":"ftp://push.example.org/_matrix/push/v1/notify"}`), failure(400, "M_INVALID_PARAM",
				"data.url must be an absolute https or http URL with the path /_matrix/push/v1/notify, without user info or fragment.")},
		}},
		{"AllowedPrefixes", func(c *pushfx.Config) {
			c.PusherPolicy.AllowedPrefixes = []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16")}
		}, []step{
			{pushers, pusherWith(`"data":{"url":"https://10.1.2.3/_matrix/push/v1/notify"}`), done},
			{pushers, pusherWith(`"data":{"url":"https://push.internal/_matrix/push/v1/notify"}`), done},
			{pushers, pusherWith(`"data":{"url":"https://10.2.0.1/_matrix/push/v1/notify"}`), failure(400, "M_INVALID_PARAM",
				"data.url must not have an IP address that is not public.")},
		}},
		{"Email", sendMail, []step{
			{pushers, mail("mine@example.org"), done},
			{pushers, mail("theirs@example.org"), failure(400, "M_INVALID_PARAM",
				"pushkey must be an email address that is confirmed to be the user's.")},
			{pushers, pusherWith(`"kind":"email"`), failure(400, "M_INVALID_PARAM", "app_id of an email pusher must be 'm.email'.")},
			{"GET /pushers", "", listed(mail("mine@example.org"))},
			{pushers, `{"kind":null,"app_id":"m.email","pushkey":"mine@example.org"}`, done},
			{"GET /pushers", "", listed()},
		}},
		{"MSC3881", func(c *pushfx.Config) { c.Handlers.MSC3881 = true }, []step{
			{pushers, pusherWith(), done},
			{"GET /pushers", "", listed(pusherWith(`"org.matrix.msc3881.enabled":true`, `"org.matrix.msc3881.device_id":"`+device+`"`))},
			{pushers, pusherWith(`"org.matrix.msc3881.enabled":false`, `"org.matrix.msc3881.device_id":"OTHER"`), done},
			{"GET /pushers", "", listed(pusherWith(`"org.matrix.msc3881.enabled":false`, `"org.matrix.msc3881.device_id":"`+device+`"`))},
			{pushers, pusherWith(`"enabled":false`), done},
			{"GET /pushers", "", listed(pusherWith(`"enabled":false`, `"org.matrix.msc3881.enabled":false`, `"org.matrix.msc3881.device_id":"`+device+`"`))},
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			s := newService(t, fx.Decorate(func(c pushfx.Config) pushfx.Config {
				test.set(&c)
				return c
			}))
			onBothPrefixes(t, func(t *testing.T, prefix string) { s.owner(t, prefix).takeAll(test.steps...) })
		})
	}
}
