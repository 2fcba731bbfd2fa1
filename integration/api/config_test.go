package api

import (
	"context"
	"net/netip"
	"strings"
	"testing"

	"go.uber.org/fx"

	"github.com/pushfx/pushfx"
	"github.com/pushfx/pushfx/integration/hosttest"
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
		return hosttest.PusherWith(`"kind":"email"`, `"app_id":"m.email"`, `"pushkey":"`+address+`"`, `"data":{}`)
	}
	for _, test := range []struct {
		name  string
		set   func(*pushfx.Config)
		steps []step
	}{
		{"MaxRules", func(c *pushfx.Config) { c.RuleLimits.MaxRules = 16 }, []step{ // 15 are default rules
			{room + "a", `{"actions":[]}`, hosttest.Done},
			{room + "b", `{"actions":[]}`, hosttest.Failure(400, "M_INVALID_PARAM", "A user has at most 16 push rules.")},
			{room + "a", `{"actions":["notify"]}`, hosttest.Done},
			{"DELETE /pushrules/global/room/a", "", hosttest.Done},
			{room + "b", `{"actions":[]}`, hosttest.Done},
		}},
		{"MaxSetBytes", func(c *pushfx.Config) { c.RuleLimits.MaxSetBytes = 4000 }, []step{
			{room + strings.Repeat("a", 1000), `{"actions":[]}`, hosttest.Failure(413, "M_TOO_LARGE", "Push rules larger than 4000 bytes.")},
			{room + "a", `{"actions":[]}`, hosttest.Done},
			{room + "a/actions", `{"actions":["` + strings.Repeat("x", 1000) + `"]}`, hosttest.Failure(413, "M_TOO_LARGE", "Push rules larger than 4000 bytes.")},
		}},
		{"MaxBodyBytes", func(c *pushfx.Config) { c.Handlers.MaxBodyBytes = 14 }, []step{
			{room + "a", `{"actions":[]}`, hosttest.Done},
			{room + "a", `{"actions":[]} `, hosttest.BodyTooLarge},
		}},
		{"MaxJSONDepth", func(c *pushfx.Config) { c.Handlers.MaxJSONDepth = 3 }, []step{
			{room + "a", `{"actions":[{}]}`, hosttest.Done},
			{room + "a", `{"actions":[{"x":[]}]}`, hosttest.Failure(400, "M_NOT_JSON", "Not valid JSON: nested too deep")},
		}},
		{"MaxPushers", func(c *pushfx.Config) { c.PusherPolicy.MaxPushers = 1 }, []step{
			{pushers, hosttest.PusherWith(), hosttest.Done},
			{pushers, hosttest.PusherWith(`"pushkey":"other"`), hosttest.Failure(400, "M_INVALID_PARAM", "A user has at most 1 pushers.")},
		}},
		{"MaxListBytes", func(c *pushfx.Config) { c.PusherPolicy.MaxListBytes = 400 }, []step{
			{pushers, hosttest.PusherWith(), hosttest.Done},
			{pushers, hosttest.PusherWith(`"lang":"` + strings.Repeat(`\u0001`, 20) + `"`), hosttest.Failure(413, "M_TOO_LARGE", "Pushers larger than 400 bytes.")},
			{pushers, hosttest.PusherWith(`"pushkey":"other"`), hosttest.Failure(413, "M_TOO_LARGE", "Pushers larger than 400 bytes.")},
			{pushers, hosttest.PusherWith(`"lang":"` + strings.Repeat("x", 20) + `"`), hosttest.Done},
		}},
		{"MaxListBytes, a pusher that grows beside another", func(c *pushfx.Config) { c.PusherPolicy.MaxListBytes = 1000 }, []step{
			{pushers, hosttest.PusherWith(), hosttest.Done},
			{pushers, hosttest.PusherWith(`"pushkey":"other"`), hosttest.Done},
			{pushers, hosttest.PusherWith(`"lang":"` + strings.Repeat("x", 450) + `"`), hosttest.Failure(413, "M_TOO_LARGE", "Pushers larger than 1000 bytes.")},
			{pushers, hosttest.PusherWith(`"lang":"` + strings.Repeat("x", 50) + `"`), hosttest.Done},
		}},
		{"AllowHTTP", func(c *pushfx.Config) { c.PusherPolicy.AllowHTTP = true }, []step{
			{pushers, hosttest.PusherWith(`"data":{"url":"http://push.example.org/_matrix/push/v1/notify"}`), hosttest.Done},
			{pushers, hosttest.PusherWith(`"data":{"url":"ftp://push.example.org/_matrix/push/v1/notify"}`), hosttest.Failure(400, "M_INVALID_PARAM",
				"data.url must be an absolute https or http URL with the path /_matrix/push/v1/notify, without user info or fragment.")},
		}},
		{"AllowedPrefixes", func(c *pushfx.Config) {
			c.PusherPolicy.AllowedPrefixes = []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16")}
		}, []step{
			{pushers, hosttest.PusherWith(`"data":{"url":"https://10.1.2.3/_matrix/push/v1/notify"}`), hosttest.Done},
			{pushers, hosttest.PusherWith(`"data":{"url":"https://push.internal/_matrix/push/v1/notify"}`), hosttest.Done},
			{pushers, hosttest.PusherWith(`"data":{"url":"https://10.2.0.1/_matrix/push/v1/notify"}`), hosttest.Failure(400, "M_INVALID_PARAM",
				"data.url must not have an IP address that is not public.")},
		}},
		{"Email", sendMail, []step{
			{pushers, mail("mine@example.org"), hosttest.Done},
			{pushers, mail("theirs@example.org"), hosttest.Failure(400, "M_INVALID_PARAM",
				"pushkey must be an email address that is confirmed to be the user's.")},
			{pushers, hosttest.PusherWith(`"kind":"email"`), hosttest.Failure(400, "M_INVALID_PARAM", "app_id of an email pusher must be 'm.email'.")},
			{"GET /pushers", "", listed(mail("mine@example.org"))},
			{pushers, `{"kind":null,"app_id":"m.email","pushkey":"mine@example.org"}`, hosttest.Done},
			{"GET /pushers", "", listed()},
		}},
		{"MSC3881", func(c *pushfx.Config) { c.Handlers.MSC3881 = true }, []step{
			{pushers, hosttest.PusherWith(), hosttest.Done},
			{"GET /pushers", "", listed(hosttest.PusherWith(`"org.matrix.msc3881.enabled":true`, `"org.matrix.msc3881.device_id":"`+hosttest.Device+`"`))},
			{pushers, hosttest.PusherWith(`"org.matrix.msc3881.enabled":false`, `"org.matrix.msc3881.device_id":"OTHER"`), hosttest.Done},
			{"GET /pushers", "", listed(hosttest.PusherWith(`"org.matrix.msc3881.enabled":false`, `"org.matrix.msc3881.device_id":"`+hosttest.Device+`"`))},
			{pushers, hosttest.PusherWith(`"enabled":false`), hosttest.Done},
			{"GET /pushers", "", listed(hosttest.PusherWith(`"enabled":false`, `"org.matrix.msc3881.enabled":false`, `"org.matrix.msc3881.device_id":"`+hosttest.Device+`"`))},
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
