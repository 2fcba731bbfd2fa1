package assembly

import (
	"errors"
	"fmt"
	"maps"

	"github.com/pushfx/pushfx/handlers"
	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/delivery/channel/webpush"
	"github.com/pushfx/pushfx/module/feed"
	"github.com/pushfx/pushfx/module/mail"
	"github.com/pushfx/pushfx/module/pusher"
	"github.com/pushfx/pushfx/module/service"
	"github.com/pushfx/pushfx/module/telemetry/metrics"
	"github.com/pushfx/pushfx/module/unread"
	"github.com/pushfx/pushfx/module/unread/redisunread"
	"github.com/pushfx/pushfx/pusherstore"
	"github.com/pushfx/pushfx/rulestore"
)

// RuleStore returns the store of push rules on Redis.
func (b *Builder) RuleStore() (module.RuleStore, error) {
	b.servers.Require("push rules", "GET", b.keys().Rules("@"))
	return rulestore.New(b.redis())
}

// PusherStore returns the store of pushers on Redis.
func (b *Builder) PusherStore() (module.PusherStore, error) {
	b.servers.Require("pushers", "HLEN", b.keys().Pushers("@"))
	return pusherstore.New(b.redis())
}

// PushkeyIndex returns the index of pushkeys on Redis.
func (b *Builder) PushkeyIndex() (module.PushkeyIndex, error) {
	b.servers.Require("pushkeys", "GET", b.keys().Pushkey(""))
	return pusherstore.NewIndex(b.redis())
}

// Stores adds the stores on Redis that the host has not replaced.
func (b *Builder) Stores(s module.Stores, withUnread bool) (module.Stores, error) {
	var errs [4]error
	if s.Rules == nil {
		s.Rules, errs[0] = b.RuleStore()
	}
	if s.Pushers == nil {
		s.Pushers, errs[1] = b.PusherStore()
	}
	if s.Pushkeys == nil {
		s.Pushkeys, errs[2] = b.PushkeyIndex()
	}
	if s.Unread == nil && withUnread {
		s.Unread, errs[3] = b.UnreadStore()
	}
	if s.Now == nil {
		s.Now = b.servers.Clock().Now
	}
	return s, errors.Join(errs[:]...)
}

// JoinStores is Stores for a container. Unread may be nil.
func (b *Builder) JoinStores(
	rules module.RuleStore, pushers module.PusherStore, pushkeys module.PushkeyIndex, unread module.UnreadStore,
) (module.Stores, error) {
	return b.Stores(module.Stores{Rules: rules, Pushers: pushers, Pushkeys: pushkeys, Unread: unread}, false)
}

// UnreadStore returns the store of unread counts on Redis.
func (b *Builder) UnreadStore() (module.UnreadStore, error) {
	b.servers.Require("unread counts", "LRANGE", b.keys().Unread("@"), 0, 0)
	return redisunread.New(b.redis())
}

// Unread returns the service of unread counts.
func (b *Builder) Unread(store module.UnreadStore) *unread.Service {
	b.metrics.AddUnread()
	return unread.New(store, b.host.Config.Unread, b.host.Config.Delivery.MaxAge, b.servers.Clock().Now, b.observer)
}

// Health returns the health of the servers.
func (b *Builder) Health() module.Health { return b.servers }

// Feed returns the watch of changes, which notifies the listeners.
func (b *Builder) Feed(stores module.Stores, rules []module.ChangeListener, pushers []module.PusherListener) (*feed.Feed, error) {
	for _, listener := range rules {
		if listener == nil {
			return nil, fmt.Errorf("pushfx: a ChangeListener is nil: %s", noNil)
		}
		b.note("ChangeListener", listener, nil)
	}
	for _, listener := range pushers {
		if listener == nil {
			return nil, fmt.Errorf("pushfx: a PusherListener is nil: %s", noNil)
		}
		b.note("PusherListener", listener, nil)
	}
	stores.Rules = service.ObservedRules(stores.Rules, b.observer)
	changes, err := feed.New(stores, b.host.Config.Changes, b.observer, feed.Listeners{Rules: rules, Pushers: pushers})
	if err == nil {
		b.metrics.Add(metrics.Feed(changes.Stats)...)
	}
	return changes, err
}

// Service returns the services. Accounts and source may be nil. Channels check the pushers of their
// kinds.
func (b *Builder) Service(
	stores module.Stores, changes *feed.Feed, accounts module.Accounts, source module.ImportSource, channels []module.Channel,
) *service.Service {
	b.note("Accounts", accounts, nil)
	b.note("ImportSource", source, nil)
	cfg := b.host.Config
	kinds := pusher.Kinds{}
	maps.Copy(kinds, cfg.PusherPolicy.Kinds)
	if cfg.WebPush.IsOn() {
		policy := cfg.PusherPolicy
		policy.AllowedPrefixes = cfg.WebPush.AllowedPrefixes
		kinds[pusher.WebPush], kinds[pusher.UnstableWebPush] = policy.CheckWebPush, policy.CheckWebPush
	}
	cfg.PusherPolicy.Kinds = kinds
	for _, channel := range channels {
		b.note("Channel", channel, nil)
		if channel == nil || isNil(channel) {
			b.nils = append(b.nils, fmt.Errorf("pushfx: a Channel is nil: %s", noNil))
			continue
		}
		kinds[channel.Kind()] = channel.CheckPusher
		b.channels = append(b.channels, channel)
	}
	return service.New(stores, changes, service.Options{
		Defaults: b.defaults, Limits: cfg.RuleLimits, Policy: cfg.PusherPolicy, Accounts: accounts, ImportSource: source,
		Observer: b.observer, Mail: b.mailTokens(), Activation: activation{webpush.New(cfg.WebPush, nil, nil), b},
	})
}

func (b *Builder) mailTokens() *mail.Tokens {
	if b.host.Config.Mail.Texts.Key == "" {
		return nil
	}
	return mail.NewTokens(b.host.Config.Mail.Texts.Key)
}

// Groups are the module's route groups, without the host's.
type Groups []handlers.RouteGroup

var errEventsWithoutUnread = errors.New("pushfx: a NotifiedEvents needs unread counts: include pushfx.Unread, or provide no NotifiedEvents")

// Groups returns the route groups. Without events, GET /notifications is not served.
func (b *Builder) Groups(
	rules module.RuleService, pushers module.PusherService, host module.HostService, unread *Counts, events module.NotifiedEvents,
) (Groups, error) {
	all := Groups{b.server.PushRules(rules), b.server.Pushers(pushers), b.server.AccountData(host)}
	if b.host.Config.Mail.Texts.Key != "" {
		all = append(all, b.server.Unsubscribe(host))
	}
	if events == nil {
		return all, nil
	}
	if unread == nil {
		return nil, errEventsWithoutUnread
	}
	b.hasNotifications = true
	b.note("NotifiedEvents", events, nil)
	return append(all, b.server.Notifications(unread.Service, events)), nil
}
