// Package logging writes a log line for what goes wrong beside requests. Those
// that fail are logged by package handlers.
package logging

import (
	"errors"

	"go.uber.org/zap"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/delivery"
	"github.com/pushfx/pushfx/module/fault"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/redisclient"
)

var _ redisclient.Reporter = Lines{}

// Lines writes to a logger. Messages are constant, and no line has a token, a
// pushkey, pusher data or a rule's contents.
type Lines struct{ log *zap.Logger }

// New returns lines for log.
func New(log *zap.Logger) Lines { return Lines{log} }

// Feed is the Report of [module.FeedOptions].
func (l Lines) Feed(err error) {
	if panicked := (*module.ListenerPanic)(nil); errors.As(err, &panicked) {
		l.log.Error("change listener panicked", zap.Error(err))
		return
	}
	l.log.Warn("change feed disconnected from Redis, reconnecting", zap.String("error", fault.Details(err)))
}

// Delivery is the Report of [delivery.Seams]. Which gateway it is stands in no
// line: it is a part of pusher data.
func (l Lines) Delivery(err error) {
	if errors.Is(err, delivery.ErrTooManyRejections) {
		l.log.Error("a push gateway rejects too many pushkeys, they are not removed")
		return
	}
	l.log.Warn("notifications are delayed", zap.String("error", fault.Details(err)))
}

// SettleFailed is that of [module.Options].
func (l Lines) SettleFailed(err error) {
	l.log.Warn("pushkeys are still to be settled", zap.String("error", fault.Details(err)))
}

// ImportRefused is that of [module.Options].
func (l Lines) ImportRefused(user mxid.UserID, r module.ImportResult) {
	l.log.Warn("rules or pushers of a user were not imported", zap.String("user_id", string(user)),
		zap.Int("rules", len(r.Rules.Refused)), zap.Int("pushers", len(r.Pushers.Refused)))
}

// Setting implements [redisclient.Reporter].
func (l Lines) Setting(advice redisclient.Advice, address string) {
	l.log.Warn("a setting of the Redis client will hurt", zap.String("option", advice.Option),
		zap.String("why", advice.String()), zap.String("redis", address))
}

// Shortage implements [redisclient.Reporter].
func (l Lines) Shortage(why string) {
	l.log.Warn("no change will be acknowledged", zap.String("why", why))
}

// Evicting implements [redisclient.Reporter].
func (l Lines) Evicting(err error) {
	l.log.Warn("Redis may evict keys", zap.String("error", fault.Details(err)))
}

// Clock implements [redisclient.Reporter].
func (l Lines) Clock(err error) {
	if differs := (*redisclient.ClockError)(nil); errors.As(err, &differs) {
		l.log.Warn("the clocks of this host and of Redis differ", zap.String("error", fault.Details(err)))
		return
	}
	l.log.Warn("the clock of Redis cannot be read", zap.String("error", fault.Details(err)))
}
