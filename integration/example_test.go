package integration

import (
	"context"
	"net/http"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/labstack/echo/v4"
	"github.com/redis/go-redis/v9"
	"go.uber.org/fx"
	"go.uber.org/zap"

	"github.com/pushfx/pushfx"
	"github.com/pushfx/pushfx/handlers"
	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/pushrule"
	"github.com/pushfx/pushfx/module/storetest"
	"github.com/pushfx/pushfx/rulestore"
)

// The ten lines with which a host includes the module.
func Example_include() {
	app := fx.New(
		pushfx.Module,
		fx.Provide(zap.NewProduction, newRedis, echo.New), // the host's own
		fx.Invoke(fx.Annotate(func(e *echo.Echo, groups []handlers.RouteGroup) {
			for _, group := range groups {
				group.Register(e.Group("/_matrix/client/v3", requireUser))
				group.Register(e.Group("/_matrix/client/r0", requireUser))
			}
		}, fx.ParamTags(``, pushfx.RouteGroups))),
	)
	_ = app // app.Run()
}

// The client of the host, with the settings that matter.
func newRedis() redis.UniversalClient {
	return redis.NewClusterClient(&redis.ClusterOptions{
		Addrs:                      []string{"10.0.0.1:6379", "10.0.0.2:6379", "10.0.0.3:6379"},
		ContextTimeoutEnabled:      true,                    // honour deadlines
		DialTimeout:                1200 * time.Millisecond, // leave time for a second try
		DialerRetries:              2,
		ReadTimeout:                time.Second,            // the same; less than DialTimeout
		PoolTimeout:                500 * time.Millisecond, // do not queue for a node that is silent
		ClusterStateReloadInterval: time.Second,            // notice a failover soon
	})
}

// The host's auth middleware says who the user is.
func requireUser(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		session, err := lookUp(c.Request().Header.Get("Authorization"))
		if err != nil {
			return c.JSON(http.StatusUnauthorized, map[string]string{"errcode": "M_UNKNOWN_TOKEN", "error": "Unknown token."})
		}
		who := handlers.Requester{User: mxid.UserID(session.UserID), Device: session.DeviceID}
		c.SetRequest(c.Request().WithContext(handlers.WithRequester(c.Request().Context(), who)))
		return next(c)
	}
}

type session struct{ UserID, DeviceID string }

func lookUp(string) (session, error) { return session{"@alice:example.org", "DEVICE"}, nil }

// Options are set by decorating the config.
func Example_options() {
	_ = fx.Decorate(func(c pushfx.Config) pushfx.Config {
		c.KeyPrefix = "hs1:"
		c.PusherPolicy.AllowHTTP = true // a push gateway in the same network
		return c
	})
}

// Every interface of package module can be replaced or wrapped.
func Example_replace() {
	_ = fx.Options(
		fx.Replace(fx.Annotate(&myRules{}, fx.As(new(module.RuleStore)))),
		fx.Decorate(func(s module.PusherStore) module.PusherStore { return audited{s} }),
		fx.Provide(pushfx.AsChangeListener(newSyncWaker)),
	)
}

type myRules struct{ module.RuleStore }

type audited struct{ module.PusherStore }

func newSyncWaker() syncWaker { return syncWaker{} }

// A listener hears of every change.
type syncWaker struct{}

func (syncWaker) PushRulesChanged(ctx context.Context, user mxid.UserID, content module.Content) {
	// wake the user's waiting /sync requests
}

// The module works without fx too: its constructors are plain functions.
func Example_withoutFx() {
	client, log, e := newRedis(), zap.NewNop(), echo.New()

	store, err := rulestore.New(client, rulestore.DefaultConfig())
	if err != nil {
		panic(err)
	}
	changes, err := module.NewChanges(store, module.DefaultChangesConfig(), newSyncWaker())
	if err != nil {
		panic(err)
	}
	go changes.Run(context.Background())
	rules := module.NewRuleService(store, changes, module.RuleOptions{Limits: pushrule.DefaultLimits()})
	routes, err := handlers.NewPushRules(rules, handlers.DefaultConfig(), log)
	if err != nil {
		panic(err)
	}
	routes.Register(e.Group("/_matrix/client/v3", requireUser))
}

// A host's own store runs the module's contract.
func testMyStore(t *testing.T) {
	storetest.Rules(t, func(*testing.T) module.RuleStore { return &myRules{} })
}

var _ = testMyStore

func TestEveryGoBlockOfTheReadmeIsCompiledHere(t *testing.T) {
	t.Parallel()
	readme, err := os.ReadFile("../README.md")
	if err != nil {
		t.Fatal(err)
	}
	code, err := os.ReadFile("example_test.go")
	if err != nil {
		t.Fatal(err)
	}
	spaces := regexp.MustCompile(`\s+`)
	flat := func(text string) string { return spaces.ReplaceAllString(text, " ") }
	blocks := regexp.MustCompile("(?s)```go\n(.*?)```").FindAllStringSubmatch(string(readme), -1)
	if len(blocks) < 5 {
		t.Fatalf("found %d Go blocks in the README", len(blocks))
	}
	for _, block := range blocks {
		if !strings.Contains(flat(string(code)), strings.TrimSpace(flat(block[1]))) {
			t.Errorf("not compiled in example_test.go:\n%s", block[1])
		}
	}
}
