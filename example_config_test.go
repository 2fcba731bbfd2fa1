package pushfx_test

import (
	"net/netip"

	"go.uber.org/fx"

	"github.com/pushfx/pushfx"
	"github.com/pushfx/pushfx/module/pushrule"
)

// Options are set by decorating the config. Without fx, change what
// DefaultConfig returns.
func ExampleConfig() {
	_ = fx.Decorate(func(c pushfx.Config) pushfx.Config {
		c.Redis.KeyPrefix = "hs1:"
		c.PusherPolicy.AllowHTTP = true // a push gateway in the same network
		c.PusherPolicy.AllowedPrefixes = []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16")}
		return c
	})
}

// Default rules of the host's own stand beside those of the specification.
func ExampleConfig_defaultRules() {
	_ = fx.Decorate(func(c pushfx.Config) pushfx.Config {
		c.DefaultRules = append(c.DefaultRules, pushrule.DefaultRule{
			Kind:       pushrule.Underride,
			ID:         ".org.example.rule.poll",
			Actions:    []pushrule.Action{`"notify"`},
			Conditions: []pushrule.Condition{`{"kind":"event_match","key":"type","pattern":"m.poll.start"}`},
			Before:     ".m.rule.message",
		})
		return c
	})
}
