package assembly

import (
	"errors"
	"strings"

	"github.com/pushfx/pushfx/handlers"
	"github.com/pushfx/pushfx/module/commit/rediscommit"
	"github.com/pushfx/pushfx/module/delivery"
	"github.com/pushfx/pushfx/module/delivery/channel/webpush"
	"github.com/pushfx/pushfx/module/feed"
	"github.com/pushfx/pushfx/module/pusher"
	"github.com/pushfx/pushfx/module/pushrule"
	"github.com/pushfx/pushfx/module/redisclient"
	"github.com/pushfx/pushfx/module/telemetry/metrics"
	"github.com/pushfx/pushfx/module/unread"
)

// Config has the fields of pushfx.Config, so that one converts to the other.
type Config struct {
	Redis        rediscommit.Config
	Servers      redisclient.Config
	Handlers     handlers.Config
	RuleLimits   pushrule.Limits
	PusherPolicy pusher.Policy
	Changes      feed.Config

	Delivery        delivery.Config
	DeliveryMetrics metrics.DeliveryConfig

	Mail    Mail
	WebPush webpush.Config

	Unread unread.Config

	Features     []pushrule.Feature
	DefaultRules []pushrule.DefaultRule
}

// Validate joins the errors of all invalid fields. Each begins with the path of the field.
func (c Config) Validate() error {
	return errors.Join(
		below("Config.Redis.", c.Redis.Validate()),
		below("Config.Servers.", c.Servers.Validate()),
		below("Config.Handlers.", c.Handlers.Validate()),
		below("Config.RuleLimits.", c.RuleLimits.Validate()),
		below("Config.PusherPolicy.", c.PusherPolicy.Validate()),
		below("Config.Changes.", c.Changes.Validate()),
		below("Config.Delivery.", c.Delivery.Validate()),
		below("Config.DeliveryMetrics.", c.DeliveryMetrics.Validate()),
		c.validateMail(),
		c.validateWebPush(),
		c.validateDefaults(),
	)
}

func (c Config) validateWebPush() error {
	if !c.WebPush.IsOn() {
		return nil
	}
	return below("Config.WebPush.", c.WebPush.Validate())
}

// UnstableFeatures returns what the config adds to unstable_features.
func (c Config) UnstableFeatures() map[string]bool {
	flags := map[string]bool{}
	if c.WebPush.IsOn() {
		flags["org.matrix.msc4174"] = true
	}
	for _, feature := range c.Features {
		if feature.Flag != "" {
			flags[feature.Flag] = true
		}
	}
	return flags
}

// Capabilities returns what the config adds to capabilities.
func (c Config) Capabilities() map[string]any {
	if !c.WebPush.IsOn() {
		return map[string]any{}
	}
	return map[string]any{"org.matrix.msc4174.webpush": map[string]any{"enabled": true, "vapid": c.WebPush.PublicKey()}}
}

// validateDefaults checks the features, and if they are valid the default rules.
func (c Config) validateDefaults() error {
	if _, err := pushrule.NewDefaults(c.Features); err != nil {
		return below("Config.Features: ", err)
	}
	_, err := pushrule.NewDefaults(c.Features, c.DefaultRules...)
	return below("Config.DefaultRules: ", err)
}

// below prefixes each line of an error with a path.
func below(path string, err error) error {
	if err == nil {
		return nil
	}
	return errors.New(path + strings.ReplaceAll(err.Error(), "\n", "\n"+path))
}
