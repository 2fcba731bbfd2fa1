// Package logging logs problems outside requests; its API may change at any time. Package
// handlers logs failed requests.
package logging

import (
	"errors"

	"go.uber.org/zap"

	"github.com/pushfx/pushfx/module/delivery"
	"github.com/pushfx/pushfx/module/fault"
	"github.com/pushfx/pushfx/module/observe"
	"github.com/pushfx/pushfx/module/redisclient"
	"github.com/pushfx/pushfx/module/service"
)

// Observer logs each [observe.Problem] with a constant message. No line contains a token,
// a pushkey, pusher data or rule contents. Other reports go to the embedded observer.
type Observer struct {
	observe.Observer
	log *zap.Logger
}

// New returns an observer that writes to log.
func New(log *zap.Logger, next observe.Observer) Observer { return Observer{next, log} }

// Report implements [observe.Observer].
func (o Observer) Report(problem observe.Problem, err error) {
	write := o.log.Warn
	if problem.IsFault() {
		write = o.log.Error
	}
	if problem.IsRoutine() {
		write = o.log.Info
	}
	write(problem.String(), fields(problem, err)...)
	o.Observer.Report(problem, err)
}

func fields(problem observe.Problem, err error) []zap.Field {
	var refused *service.ImportRefused
	var setting *redisclient.SettingError
	var late *delivery.LateError
	var removed *service.RemovedPusher
	var rejected *delivery.RejectedError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &refused):
		return []zap.Field{zap.String("user_id", string(refused.User)),
			zap.Int("rules", len(refused.Result.Rules.Refused)), zap.Int("pushers", len(refused.Result.Pushers.Refused))}
	case errors.As(err, &late):
		return []zap.Field{zap.String("pusher", late.Pusher), zap.Duration("age", late.Age), zap.String("cause", string(late.Cause)),
			zap.Int("failures", late.Attempts), zap.String("last", late.Last)}
	case errors.As(err, &removed):
		return []zap.Field{zap.String("user_id", string(removed.User)), zap.String("pusher", delivery.PusherID(removed.User, removed.Key)),
			zap.String("app_id", removed.Key.AppID), zap.String("device_id", removed.Device)}
	case errors.As(err, &setting):
		return []zap.Field{zap.String("option", setting.Option), zap.String("why", setting.String()), zap.String("redis", setting.Address)}
	case errors.As(err, &rejected):
		return []zap.Field{zap.String("user_id", string(rejected.User)), zap.String("pusher", rejected.Pusher),
			zap.String("app_id", rejected.App), zap.String("device_id", rejected.Device), zap.String("gateway", rejected.Gateway)}
	case problem == observe.NoDurability:
		return []zap.Field{zap.String("why", err.Error())}
	}
	return []zap.Field{zap.String("error", fault.Details(err))}
}
