package pushfx_test

import (
	"context"
	"log"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"
	"go.uber.org/fx"

	"github.com/pushfx/pushfx"
	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/pushrule"
)

// What the host replaces, wraps and adds.
func Example_replace() {
	_ = fx.Options(
		pushfx.Module,
		fx.Replace(fx.Annotate(&myRules{}, fx.As(new(module.RuleStore)))),
		fx.Decorate(func(s module.RuleService) module.RuleService { return audited{s} }),
		fx.Provide(pushfx.AsChangeListener(newWaker)),
		fx.Provide(fx.Annotate(newSessions, fx.As(new(module.Accounts)))),
		fx.Provide(
			fx.Annotate(prometheus.NewRegistry, fx.As(fx.Self()), fx.As(new(prometheus.Registerer))),
			newTracers,
		),
	)
}

// myRules is a store of the host's own; see integration/sqlstore for one.
type myRules struct{ module.RuleStore }

// audited is the module's service, with a log of deletions.
type audited struct{ module.RuleService }

func (a audited) Delete(ctx context.Context, user mxid.UserID, kind pushrule.Kind, id string) error {
	err := a.RuleService.Delete(ctx, user, kind, id)
	log.Printf("%s deleted a %s rule: %v", user, kind, err)
	return err
}

// waker wakes the syncs of a user.
type waker struct{}

func newWaker() *waker { return &waker{} }

func (*waker) PushRulesChanged(_ context.Context, user mxid.UserID, version int64) {}

// sessions tells who is logged in.
type sessions struct{}

func newSessions() *sessions { return &sessions{} }

func (*sessions) LoggedIn(_ context.Context, user mxid.UserID, device string) (bool, error) {
	return true, nil
}

func newTracers() trace.TracerProvider { return noop.NewTracerProvider() }
