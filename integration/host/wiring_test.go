package host

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"go.uber.org/fx"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/pushfx/pushfx"
	"github.com/pushfx/pushfx/handlers"
	"github.com/pushfx/pushfx/integration/hosttest"
	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/feed"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/pusher"
	"github.com/pushfx/pushfx/module/pushrule"
	"github.com/pushfx/pushfx/module/storetest"
)

func TestTheModuleIsCompleteWithClientAndLogger(t *testing.T) {
	t.Parallel()
	_, client := hosttest.Embedded(t)
	err := fx.ValidateApp(
		fx.NopLogger,
		pushfx.Module,
		fx.Supply(zap.NewNop(), fx.Annotate(client, fx.As(new(redis.UniversalClient)))),
		fx.Invoke(
			fx.Annotate(func(groups []handlers.RouteGroup) {}, fx.ParamTags(pushfx.RouteGroups)),
			func(module.RuleStore, module.PusherStore, module.PushkeyIndex, pushfx.Config) {},
			func(module.RuleService, module.PusherService, module.HostService, module.SyncService, *feed.Feed) {
			},
		),
	)
	if err != nil {
		t.Fatal(err)
	}
}

type memoryRules struct{ module.RuleStore }

func newMemoryRules() *memoryRules { return &memoryRules{storetest.NewMemory().Rules()} }

type noPushers struct{ module.PusherStore }

func (noPushers) Load(context.Context, mxid.UserID) (pusher.List, error) { return pusher.List{}, nil }

func (noPushers) Update(context.Context, mxid.UserID, func(*pusher.List) error) error { return nil }

type noPushkeys struct{ module.PushkeyIndex }

func TestAHostReplacesTheStoresAndNeedsNoRedis(t *testing.T) {
	t.Parallel()
	nowhere := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})
	defer nowhere.Close()
	mine := newMemoryRules()
	h := hosttest.StartHost(t, nowhere,
		fx.Replace(fx.Annotate(mine, fx.As(new(module.RuleStore)))),
		fx.Replace(fx.Annotate(noPushers{}, fx.As(new(module.PusherStore)))),
		fx.Replace(fx.Annotate(noPushkeys{}, fx.As(new(module.PushkeyIndex)))),
	)
	if a := h.Do(hosttest.Alice, http.MethodGet, hosttest.V3+"/pushrules/", ""); a.Status != http.StatusOK {
		t.Errorf("got %d %s", a.Status, a.Body)
	}
	if content, _ := mine.Load(t.Context(), hosttest.Alice); !content.Found() {
		t.Error("the host's store was not used")
	}
	if a := h.Do(hosttest.Alice, http.MethodGet, hosttest.V3+"/pushers", ""); a.Body != `{"pushers":[]}` {
		t.Errorf("got %s", a.Body)
	}
}

type unlistedPushers struct{ module.PusherService }

func TestAnInvalidConfigStopsTheStart(t *testing.T) {
	t.Parallel()
	var bad pushfx.Config
	bad.Redis.KeyPrefix = "{x}"
	bad.DefaultRules = []pushrule.DefaultRule{{Kind: pushrule.Override, ID: ".m.rule.master"}}
	bad.Redis.Durability.Replicas = -1
	err := bad.Validate()
	if err == nil {
		t.Fatal("the zero config is taken")
	}
	const want = `Config.Redis.Durability.Replicas is -1, want at least 0
Config.Redis.KeyPrefix is "{x}", want no braces
Config.Redis.OperationTimeout is 0s, want above 0 and at most 30s
Config.Servers.StartTimeout is 0s, want above 0
Config.Handlers.MaxBodyBytes is 0, want at least 1
Config.Handlers.MaxJSONDepth is 0, want 1 to 1000
Config.Handlers.RequestTimeout is 0s, want above 0
Config.RuleLimits.MaxSetBytes is 0, want at least 1
Config.RuleLimits.MaxRules is 0, want at least 1
Config.RuleLimits.MaxRuleIDBytes is 0, want at least 1
Config.RuleLimits.MaxPatternBytes is 0, want at least 1
Config.RuleLimits.MaxConditions is 0, want at least 1
Config.RuleLimits.MaxActions is 0, want at least 1
Config.PusherPolicy.MaxPushers is 0, want at least 1
Config.PusherPolicy.MaxListBytes is 0, want at least 1
Config.PusherPolicy.MaxPushkeyBytes is 0, want at least 1
Config.PusherPolicy.MaxAppIDChars is 0, want at least 1
Config.PusherPolicy.MaxDataBytes is 0, want at least 1
Config.PusherPolicy.MaxURLBytes is 0, want at least 1
Config.Changes.Recheck is 0s, want at least 1s
Config.Changes.MaxCachedRules is 0, want at least 1048576
Config.Changes.MaxQueued is 0, want at least 1
Config.Delivery.Shards is 0, want 1 to 1000
Config.Delivery.MaxInFlight is 0, want 16 to 65536
Config.Delivery.MaxPerGateway is 0, want 4 to 65536
Config.Delivery.MaxBacklog is 0, want 10 to 1000
Config.Delivery.MaxUserBytes is 0, want 1024 to 1073741824
Config.Delivery.MaxNotificationBytes is 0, want 1024 to 524288
Config.Delivery.MaxEventBytes is 0, want 1024 to 524288
Config.Delivery.RequestTimeout is 0s, want 35s to 1m5s
Config.Delivery.MaxAge is 0s, want 1s to 720h0m0s
Config.Delivery.CallAge is 0s, want 1s to 2m0s
Config.Delivery.Content is "", want "full", "names" or "none"
Config.Mail.Sending.Delay is 0s, want 1s to 12h
Config.Mail.Sending.MaxEvents is 0, want 1 to 200
Config.Mail.Sending.Content is "", want "full" or "names"
Config.DefaultRules: default rule ".m.rule.master": want an id that is unique among the default rules of all kinds`
	if got := err.Error(); got != want {
		t.Errorf("got:\n%s\nwant:\n%s", got, want)
	}
	if err := pushfx.DefaultConfig().Validate(); err != nil {
		t.Errorf("the default config is refused: %v", err)
	}
	_, client := hosttest.Embedded(t)
	app := hosttest.Startable(client, fx.Decorate(func(pushfx.Config) pushfx.Config { return bad }))
	if err := app.Err(); err == nil || !strings.Contains(err.Error(), "pushfx: invalid config") {
		t.Errorf("got error %v", err)
	}
}

func TestAStoppedRedisStopsTheStart(t *testing.T) {
	t.Parallel()
	const address = "127.0.0.1:1"                                                              // no server of another test takes it
	client := redis.NewClient(&redis.Options{Addr: address, MaxRetries: -1, DialerRetries: 1}) // a busy machine has no time for more
	defer client.Close()
	err := hosttest.Startable(client).Start(t.Context())
	if err == nil || !strings.Contains(err.Error(), "Redis at "+address+" does not answer") ||
		!strings.Contains(err.Error(), "connection refused") {
		t.Errorf("got error %v, want one with the address and the cause", err)
	}
}

func TestASilentRedisStopsTheStartInTime(t *testing.T) {
	t.Parallel()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	address := listener.Addr().String()
	for name, client := range map[string]redis.UniversalClient{
		"standalone":           redis.NewClient(&redis.Options{Addr: address, ReadTimeout: hosttest.Never, MaxRetries: -1}),
		"cluster":              redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{address}, ReadTimeout: hosttest.Never}),
		"with deadlines":       redis.NewClient(&redis.Options{Addr: address, ReadTimeout: hosttest.Never, ContextTimeoutEnabled: true}),
		"cluster at deadlines": redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{address}, ReadTimeout: hosttest.Never, ContextTimeoutEnabled: true}),
	} {
		t.Run(name, func(t *testing.T) {
			defer client.Close()
			app := hosttest.Startable(client, fx.Decorate(func(c pushfx.Config) pushfx.Config {
				c.Servers.StartTimeout = 100 * time.Millisecond
				return c
			}))
			began := time.Now()
			err := app.Start(t.Context())
			if err == nil || !strings.Contains(err.Error(), address) {
				t.Errorf("got error %v, want one with the address", err)
			}
			if took := time.Since(began); took > hosttest.Slack {
				t.Errorf("the start took %v", took)
			}
		})
	}
}

// Each harmful setting of the host's client gives one warning, and the client of the README gives none.
func TestHarmfulClientSettingsLogWarnings(t *testing.T) {
	t.Parallel()
	server, _ := hosttest.Embedded(t)
	for name, test := range map[string]struct {
		client redis.UniversalClient
		want   []string // the options
	}{
		"good": {redis.NewClient(&redis.Options{
			Addr: server.Addr(), ContextTimeoutEnabled: true, DialTimeout: 2 * time.Second, ReadTimeout: time.Second,
		}), nil},
		"bad": {redis.NewClient(&redis.Options{
			Addr: server.Addr(), DialTimeout: time.Second, ReadTimeout: 4 * time.Second,
		}), []string{"ContextTimeoutEnabled", "ReadTimeout"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			defer test.client.Close()
			core, logs := observer.New(zapcore.WarnLevel)
			app := hosttest.Startable(test.client, fx.Replace(zap.New(core)))
			if err := app.Start(t.Context()); err != nil {
				t.Fatal(err)
			}
			defer app.Stop(t.Context())
			var got []string
			for _, entry := range logs.All() {
				fields := entry.ContextMap()
				got = append(got, fmt.Sprint(fields["option"]))
				if why := fmt.Sprint(fields["why"]); !strings.Contains(why, "set "+got[len(got)-1]+" to ") || fields["redis"] != server.Addr() {
					t.Errorf("got %v", fields)
				}
			}
			if !slices.Equal(got, test.want) {
				t.Errorf("got warnings of %v, want %v", got, test.want)
			}
		})
	}
}

// The test is not parallel, so that goroutines of other tests do not disturb it.
func TestNothingOfTheModuleRunsAfterStop(t *testing.T) {
	_, client := hosttest.Embedded(t)
	app := hosttest.Startable(client)
	if err := app.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := app.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	running := stacksOfTheModule()
	for end := time.Now().Add(hosttest.Never); len(running) > 0 && time.Now().Before(end); { // some goroutines may be about to end
		time.Sleep(time.Millisecond)
		running = stacksOfTheModule()
	}
	if len(running) > 0 {
		t.Errorf("still running:\n%s", strings.Join(running, "\n\n"))
	}
}

func stacksOfTheModule() (running []string) {
	stacks := make([]byte, 1<<20)
	stacks = stacks[:runtime.Stack(stacks, true)]
	for stack := range strings.SplitSeq(string(stacks), "\n\n") {
		if strings.Contains(stack, hosttest.ModulePath) && !strings.Contains(stack, hosttest.ModulePath+"/integration") {
			running = append(running, stack)
		}
	}
	return running
}

// zap.NewProduction adds a stack to each error. The stack of a failed request shows net/http and echo, and is ten
// times longer than the line.
func TestLogLinesHaveANameAndNoStack(t *testing.T) {
	t.Parallel()
	server, client := hosttest.Embedded(t)
	var changes *feed.Feed
	h := hosttest.StartHost(t, client, fx.Populate(&changes))
	hosttest.Eventually(t, "the host watches", func() bool { return changes.Stats().Watching })
	h.Logs.TakeAll() // the lines of the start
	server.SetError("ERR for the test")
	h.Do(hosttest.Alice, http.MethodGet, hosttest.V3+"/pushrules/", "")
	entries := h.TakeLogged()
	if len(entries) != 1 || entries[0].LoggerName != "push" || entries[0].Level != zap.ErrorLevel || entries[0].Stack != "" {
		t.Errorf("got log %v, want one error of the logger push without a stack", entries)
	}
}
