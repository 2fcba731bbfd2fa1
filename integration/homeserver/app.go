package main

import (
	"io"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/fx"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/pushfx/pushfx"
	"github.com/pushfx/pushfx/integration/homeserver/data"
	"github.com/pushfx/pushfx/integration/homeserver/rooms"
	"github.com/pushfx/pushfx/integration/homeserver/sessions"
	"github.com/pushfx/pushfx/module"
)

// homeserver returns the whole host: its own parts and the module.
func homeserver(cfg config, db *data.DB, log *zap.Logger, stdout io.Writer) fx.Option {
	return fx.Options(
		fx.NopLogger,
		fx.StopTimeout(cfg.stopLimit()),
		fx.Supply(cfg, db, log, fx.Annotate(stdout, fx.As(new(io.Writer)))),
		fx.Provide(
			newRedis,
			newServers,
			newAuth,
			newAPI,
			newWaker,
			newDrain,
			newGuard,
			newOperators,
			newOutbox,
			newForgetting,
			newGateway,
			func(rooms *rooms.Store) module.NotifiedEvents { return notifiedEvents{rooms} },
			fx.Annotate(newMetrics, fx.As(fx.Self()), fx.As(new(prometheus.Registerer))),
			func(cfg config) *limits { return newLimits(int(cfg.userRate), int(cfg.passwordRate)) },
			rooms.New,
			fx.Annotate(func(cfg config, db *data.DB, waker *waker) *sessions.Sessions {
				return sessions.New(db, cfg.serverName, waker.wake)
			}, fx.As(fx.Self()), fx.As(new(module.Accounts))),
			fx.Annotate(newRouter, fx.ParamTags("", pushfx.RouteGroups)),
			pushfx.AsRouteGroup(func(a *api) *api { return a }),
		),
		pushfx.Module,
		pushfx.Delivery,
		pushfx.Unread,
		fx.Replace(cfg.module),
		fx.Decorate(newStates),
		fx.Invoke(mountDemo, startForgetting),
	)
}

// newLogger returns a logger that writes readable lines without stack traces.
func newLogger(w io.Writer, level zapcore.Level) *zap.Logger {
	format := zap.NewProductionEncoderConfig()
	format.EncodeTime = zapcore.ISO8601TimeEncoder
	format.EncodeLevel = zapcore.CapitalLevelEncoder
	return zap.New(zapcore.NewCore(zapcore.NewConsoleEncoder(format), zapcore.Lock(zapcore.AddSync(w)), level))
}
