// Package hosttest starts hosts for tests: in the process of the test ([StartHost]), and the demo host ([StartDemo]).
package hosttest

import (
	"context"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/labstack/echo/v4"
	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
	"go.uber.org/fx"
	"go.uber.org/fx/fxtest"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/pushfx/pushfx"
	"github.com/pushfx/pushfx/handlers"
	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/mail"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/pusher"
	"github.com/pushfx/pushfx/module/redistest"
	"github.com/pushfx/pushfx/module/stored"
)

// Host is a homeserver in the test's process, on a real listener.
type Host struct {
	T    testing.TB
	URL  string // "http://127.0.0.1:port"
	HTTP *http.Client
	Logs *observer.ObservedLogs
}

// StartHost includes the module as any host does. The bearer token is the user id. Options come after the
// module's.
func StartHost(t testing.TB, client redis.UniversalClient, options ...fx.Option) *Host {
	t.Helper()
	core, logs := observer.New(zap.DebugLevel)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	app := fxtest.New(t,
		fx.NopLogger,
		pushfx.Module,
		fx.Supply(zap.New(withoutStart{core}, zap.AddStacktrace(zap.ErrorLevel)), fx.Annotate(client, fx.As(new(redis.UniversalClient)))),
		fx.Provide(echo.New),
		fx.Invoke(
			fx.Annotate(Mount, fx.ParamTags("", pushfx.RouteGroups)),
			func(lc fx.Lifecycle, e *echo.Echo) {
				server := &http.Server{Handler: e, ReadHeaderTimeout: 5 * time.Second}
				lc.Append(fx.StartStopHook(func() { go func() { _ = server.Serve(listener) }() }, server.Shutdown))
			},
		),
		fx.Options(options...),
	)
	app.RequireStart()
	t.Cleanup(app.RequireStop)
	transport := &http.Transport{MaxIdleConnsPerHost: Writers}
	t.Cleanup(transport.CloseIdleConnections) // before the stop, which would wait for them
	return &Host{t, "http://" + listener.Addr().String(), &http.Client{Transport: transport}, logs}
}

// Mount mounts the module on both prefixes. The bearer token is the user id.
func Mount(e *echo.Echo, groups []handlers.RouteGroup) {
	for _, group := range groups {
		group.Register(e.Group(V3), handlers.V3, authenticate)
		group.Register(e.Group(R0), handlers.R0, authenticate)
	}
	handlers.RegisterUnstable(e.Group("/_matrix/client/unstable"), groups, authenticate)
}

func authenticate(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		token, found := strings.CutPrefix(c.Request().Header.Get("Authorization"), "Bearer ")
		if found {
			who := handlers.Requester{User: mxid.UserID(token), Device: Device}
			c.SetRequest(c.Request().WithContext(handlers.WithRequester(c.Request().Context(), who)))
		}
		return next(c)
	}
}

// Two users.
const (
	Alice = "@alice:example.org"
	Bob   = "@bob:example.org"
)

// Device is the device of each request.
const Device = "DEV"

// The prefixes of all paths.
const (
	R0 = "/_matrix/client/r0"
	V3 = "/_matrix/client/v3"
)

// Embedded starts a Redis in the process of the test.
func Embedded(t testing.TB) (*miniredis.Miniredis, redis.UniversalClient) {
	t.Helper()
	server := miniredis.RunT(t)
	client := redis.NewClient(&redis.Options{
		Addr: server.Addr(), ContextTimeoutEnabled: true, DialTimeout: time.Second / 2, ReadTimeout: time.Second,
	})
	t.Cleanup(func() { client.Close() })
	return server, client
}

// withoutStart leaves out the log entry of each start.
type withoutStart struct{ zapcore.Core }

func (c withoutStart) With(fields []zapcore.Field) zapcore.Core {
	return withoutStart{c.Core.With(fields)}
}

func (c withoutStart) Check(entry zapcore.Entry, to *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	if entry.Message == "pushfx is ready" {
		return to
	}
	return c.Core.Check(entry, to)
}

// TakeLogged returns the log entries of requests since the last call. It leaves out the entry of a broken watch,
// which may appear at any time without a Redis.
func (h *Host) TakeLogged() []observer.LoggedEntry {
	return slices.DeleteFunc(h.Logs.TakeAll(), func(entry observer.LoggedEntry) bool {
		return entry.Message == "change feed disconnected from Redis, reconnecting"
	})
}

// Answer is what a host answers to a request.
type Answer struct {
	Status int
	Header http.Header
	Body   string
}

// Do sends a request as a user. The path is sent byte for byte. An empty user sends no token.
func (h *Host) Do(user, method, path, body string) Answer {
	h.T.Helper()
	a, err := h.Try(context.Background(), user, method, path, body)
	if err != nil {
		h.T.Fatal(err)
	}
	return a
}

// Try is Do for requests that may fail.
func (h *Host) Try(ctx context.Context, user, method, path, body string) (Answer, error) {
	return ask(ctx, h.HTTP, user, method, h.URL+path, body)
}

// ask sends a request. An empty token is not sent.
func ask(ctx context.Context, client *http.Client, token, method, url, body string) (Answer, error) {
	req, err := http.NewRequestWithContext(ctx, method, url, strings.NewReader(body))
	if err != nil {
		return Answer{}, err
	}
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	res, err := client.Do(req)
	if err != nil {
		return Answer{}, err
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	return Answer{res.StatusCode, res.Header, string(text)}, err
}

// SetTimeouts takes Never as the longest timeout that the module allows.
func SetTimeouts(c *pushfx.Config, timeout time.Duration) {
	timeout = min(timeout, 30*time.Second)
	c.Handlers.RequestTimeout, c.Redis.OperationTimeout = timeout, timeout
}

// Ask sends "PUT /path body" as a user; the request calls the user Alice.
func (h *Host) Ask(t *testing.T, user, request string) Answer {
	t.Helper()
	method, rest, _ := strings.Cut(strings.ReplaceAll(request, Alice, user), " ")
	path, body, _ := strings.Cut(rest, " ")
	ctx, cancel := context.WithTimeout(t.Context(), Never)
	defer cancel()
	a, err := h.Try(ctx, user, method, V3+path, body)
	if err != nil {
		t.Errorf("%s: %v", request, err)
	}
	return a
}

// Timeouts of the tests: not reached by default, even on a busy machine, and short where a test needs them.
const (
	Never = 5 * time.Minute
	Soon  = 400 * time.Millisecond
	Slack = 5 * time.Second // how late an answer may come on a busy machine
)

// EventKey returns the key of a user's rules.
func EventKey(user string) string { return "account_data:{" + user + "}:m.push_rules" }

// PushersKey returns the key of a user's pushers.
func PushersKey(user string) string { return "pushers:{" + user + "}" }

var users atomic.Int64

// NewUser returns a user whom no other test has.
func NewUser() string { return fmt.Sprintf("@user%d:example.org", users.Add(1)) }

// AliceMail is the address to which the host of [WithMail] sends mails.
const AliceMail = "alice@example.com"

// WithMail configures a host that sends mail by a server, a second after an event.
func WithMail(c pushfx.Config, server string) pushfx.Config {
	c.Mail.Server.URL, c.Mail.Server.From, c.Mail.Server.EnvelopeFrom = "smtp://"+server, "Example Chat <push@example.org>", "bounces@example.org"
	c.Mail.Texts = mail.Config{AppName: "Example Chat", ClientURL: "https://app.example.org/#/room/", PublicURL: "http://public.example.org", Key: "hush-key of the links"}
	c.Mail.Sending.Delay, c.Mail.Sending.Repeat = time.Second, 0
	c.PusherPolicy.Email = func(_ context.Context, _ mxid.UserID, address string) (bool, error) { return address == AliceMail, nil }
	return c
}

// ModulePath is the path of the module in imports.
const ModulePath = "github.com/pushfx/pushfx"

// Writers is how many changes tests make at the same time.
const Writers = 50

// StartPush starts a [pushfx.Push], as a host without fx does.
func StartPush(t *testing.T, p *pushfx.Push) {
	t.Helper()
	if err := p.Check(t.Context()); err != nil {
		t.Fatal(err)
	}
	RunPush(t, p)
}

// RunPush runs the background work of a Push until stop is called or the test ends.
func RunPush(tb testing.TB, p *pushfx.Push) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		p.Run(ctx)
	}()
	stop = func() {
		cancel()
		<-ended
	}
	tb.Cleanup(stop)
	return stop
}

// SharedPusher returns a pusher of an app that all users have.
func SharedPusher(pushkey string) pusher.Pusher {
	return pusher.Pusher{Key: pusher.Key{AppID: "app", Pushkey: pushkey}, Kind: pusher.HTTP, Device: "DEVICE",
		Data: `{"url":"https://push.example.org/_matrix/push/v1/notify"}`}
}

// The client settings of the demo host; see package redisurl.
const (
	DemoDialTimeout = 1200 * time.Millisecond
	DemoDialTries   = 2
	DemoReplyLimit  = time.Second
	DemoPoolLimit   = 500 * time.Millisecond
	DemoTopologyAge = time.Second
)

// NoMaintenance saves a connection the question whether its server announces its maintenance.
func NoMaintenance() *maintnotifications.Config {
	return &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
}

// WithoutRevision returns stored rules without their revision, and the revision.
func WithoutRevision(event string) (string, stored.Revision) {
	open, text, found := strings.Cut(event, `,"revision":`)
	if !found {
		return event, stored.Revision{}
	}
	return open + "}", stored.ReadRevision(strings.TrimSuffix(text, "}"))
}

// WithoutRevisionFields takes the revision out of stored pushers.
func WithoutRevisionFields(fields map[string]string) stored.Revision {
	revision := stored.ReadRevision(fields["revision"])
	delete(fields, "revision")
	return revision
}

// RoomEvents are the events of a host, by position.
type RoomEvents map[int64]string

// Events implements [module.NotifiedEvents].
func (r RoomEvents) Events(_ context.Context, _ mxid.UserID, places []module.RoomPosition) (events []string, err error) {
	for _, place := range places {
		events = append(events, r[place.Position])
	}
	return events, nil
}

// HTTPPusher returns a pusher as JSON.
func HTTPPusher(appID, pushkey string) string {
	return `{"kind":"http","app_id":"` + appID + `","pushkey":"` + pushkey + `","app_display_name":"App",` +
		`"device_display_name":"Phone","lang":"en","data":{"url":"https://push.example.org/_matrix/push/v1/notify"}}`
}

// Recorder is a listener of push rules or pushers. It sends what it is called with.
type Recorder chan string

// AllMissed is what a [Recorder] sends for changes that may have been missed.
const AllMissed = "all"

// PushRulesChanged implements [module.ChangeListener].
func (r Recorder) PushRulesChanged(ctx context.Context, user mxid.UserID) { r.Send(ctx, string(user)) }

// PushRulesMissed implements [module.ChangeListener].
func (r Recorder) PushRulesMissed(ctx context.Context) { r.Send(ctx, AllMissed) }

// PushersChanged implements [module.PusherListener].
func (r Recorder) PushersChanged(ctx context.Context, user mxid.UserID) { r.Send(ctx, string(user)) }

// PushersMissed implements [module.PusherListener].
func (r Recorder) PushersMissed(ctx context.Context) { r.Send(ctx, AllMissed) }

// Send sends a text, unless the context ends before.
func (r Recorder) Send(ctx context.Context, text string) {
	select {
	case r <- text:
	case <-ctx.Done():
	}
}

// Want waits for the next call. The first one tells that the watch has begun: a change before that needs no call of its own.
func (r Recorder) Want(t *testing.T, when, want string) {
	t.Helper()
	select {
	case got := <-r:
		if got != want {
			t.Fatalf("%s: got %q, want %q", when, got, want)
		}
	case <-time.After(Never):
		t.Fatalf("%s: not notified", when)
	}
}

// OfPushers gives the listener to a host.
func (r Recorder) OfPushers() fx.Option {
	return fx.Provide(pushfx.AsPusherListener(func() Recorder { return r }))
}

// Startable returns an app with the module, not started.
func Startable(client redis.UniversalClient, options ...fx.Option) *fx.App {
	return fx.New(
		fx.NopLogger,
		pushfx.Module,
		fx.Supply(fx.Annotate(client, fx.As(new(redis.UniversalClient)))),
		fx.Provide(zap.NewNop),
		fx.Invoke(fx.Annotate(func(groups []handlers.RouteGroup) {}, fx.ParamTags(pushfx.RouteGroups))),
		fx.Options(options...),
	)
}

const clusterSlots = 16384

// OtherMaster returns a master that does not have the slot. It asks the cluster, since replicas replace masters.
func OtherMaster(ctx context.Context, cluster *redistest.ClusterServers, slot int) (*redistest.Server, error) {
	from, err := cluster.MasterOf(ctx, slot)
	for step := 1; err == nil && step < clusterSlots; step += 1000 {
		other, failed := cluster.MasterOf(ctx, (slot+step)%clusterSlots)
		if err = failed; other != from {
			return other, err
		}
	}
	return nil, fmt.Errorf("slot %d has no other master: %w", slot, err)
}

// PusherMembers are the members of a pusher, as JSON.
var PusherMembers = []string{
	`"pushkey":"key"`,
	`"kind":"http"`,
	`"app_id":"org.example.app"`,
	`"app_display_name":"App"`,
	`"device_display_name":"Phone"`,
	`"lang":"en"`,
	`"data":{"url":"https://push.example.org/_matrix/push/v1/notify"}`,
}

// PusherWith returns a pusher as JSON, with other or more members.
func PusherWith(members ...string) string {
	all := slices.Clone(PusherMembers)
	for _, member := range members {
		name, _, _ := strings.Cut(member, ":")
		i := slices.IndexFunc(all, func(m string) bool { return strings.HasPrefix(m, name+":") })
		if i < 0 {
			all = append(all, member)
		} else {
			all[i] = member
		}
	}
	return "{" + strings.Join(all, ",") + "}"
}

// Update is the flag by which tests rewrite their golden files.
var Update = flag.Bool("update", false, "rewrite the golden files in testdata")

var commandCalls = regexp.MustCompile(`(?m)^cmdstat_([a-z|]+):calls=(\d+)`)

// Calls returns how often a Redis was sent each command.
func Calls(t *testing.T, client *redis.Client) map[string]int {
	t.Helper()
	info, err := client.Info(t.Context(), "commandstats").Result()
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]int{}
	for _, match := range commandCalls.FindAllStringSubmatch(info, -1) {
		all[match[1]], _ = strconv.Atoi(match[2])
	}
	return all
}
