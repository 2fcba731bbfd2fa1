package integration

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/labstack/echo/v4"
	"github.com/redis/go-redis/v9"
	"go.uber.org/fx"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/pushfx/pushfx"
	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/commit/rediscommit"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/pushrule"
	"github.com/pushfx/pushfx/module/redistest"
	"github.com/pushfx/pushfx/rulestore"
)

// guardedServers are servers on which hosts log in as a user with few rights.
type guardedServers struct {
	t        *testing.T
	admins   []*redis.Client           // one for each server
	admin    redis.UniversalClient     // for all servers
	cluster  *redistest.ClusterServers // nil without a cluster
	login    func(user string) redis.UniversalClient
	database int // of the hosts; 0 in a cluster
}

// guardedSingle returns a master with a replica. Both write each change to disk at once.
func guardedSingle(t *testing.T) *guardedServers {
	servers := redistest.Replicated(t, 1, "--appendonly", "yes", "--appendfsync", "always")
	g := &guardedServers{t: t, admin: servers.Master().Client(t)}
	for _, server := range servers.Servers() {
		g.admins = append(g.admins, server.Client(t))
	}
	address := servers.Master().Addr()
	g.login = func(user string) redis.UniversalClient {
		return redis.NewClient(&redis.Options{
			Addr: address, Username: user, Password: aclPassword, DB: g.database,
			DialTimeout: 2200 * time.Millisecond, ReadTimeout: 2 * time.Second, // longer than a wait for the disk
			ContextTimeoutEnabled: true, MaintNotificationsConfig: noMaintenance(),
		})
	}
	return g
}

func guardedCluster(t *testing.T) *guardedServers {
	cluster := redistest.Cluster(t, 3, 1)
	g := &guardedServers{t: t, admin: cluster.Client(t), cluster: cluster}
	for _, server := range cluster.Nodes() {
		g.admins = append(g.admins, server.Client(t))
	}
	g.login = func(user string) redis.UniversalClient {
		return redis.NewClusterClient(&redis.ClusterOptions{
			Addrs: cluster.Addrs(), Username: user, Password: aclPassword,
			DialTimeout: demoDialTimeout, DialerRetries: demoDialTries,
			ReadTimeout: demoReplyLimit, WriteTimeout: demoReplyLimit, PoolTimeout: demoPoolLimit,
			ContextTimeoutEnabled: true, ClusterStateReloadInterval: demoTopologyAge, MaintNotificationsConfig: noMaintenance(),
		})
	}
	return g
}

func (g *guardedServers) each(do func(*redis.Client) error) {
	g.t.Helper()
	for _, server := range g.admins {
		if err := do(server); err != nil {
			g.t.Fatalf("%s: %v", server.Options().Addr, err)
		}
	}
}

// apply gives a new user the rights of a line.
func (g *guardedServers) apply(l aclLine) {
	g.t.Helper()
	g.each(func(server *redis.Client) error {
		return errors.Join(server.ACLDelUser(g.t.Context(), l.user).Err(), server.Do(g.t.Context(), l.args()...).Err())
	})
}

// reset removes all data, scripts, ACL LOG entries and statistics.
func (g *guardedServers) reset() {
	g.t.Helper()
	ctx := g.t.Context()
	g.each(func(server *redis.Client) error {
		err := server.FlushAll(ctx).Err()
		if redis.HasErrorPrefix(err, "READONLY") {
			err = nil // a replica
		}
		return errors.Join(err, server.ScriptFlush(ctx).Err(), server.ACLLogReset(ctx).Err(), server.ConfigResetStat(ctx).Err())
	})
}

func (g *guardedServers) denied(user string) (refusals []string) {
	g.t.Helper()
	g.each(func(server *redis.Client) error {
		entries, err := server.ACLLog(g.t.Context(), 100).Result()
		for _, entry := range entries {
			if entry.Username == user {
				refusals = append(refusals, fmt.Sprintf("NOPERM: %s %s", entry.Reason, entry.Object))
			}
		}
		return err
	})
	return refusals
}

// work makes a host do all of the module's work as the user of a line. It returns failed steps, log lines and
// refused commands.
func (g *guardedServers) work(l aclLine, cfg pushfx.Config) (trouble []string) {
	g.t.Helper()
	g.apply(l)
	g.reset()
	client := g.login(l.user)
	defer client.Close()
	h := newGuardedHost(g, client, cfg)
	for _, part := range h.chores() {
		ctx, cancel := context.WithTimeout(g.t.Context(), stepTimeout)
		err := part.do(ctx)
		cancel()
		if err != nil {
			trouble = append(trouble, part.name+": "+err.Error())
			break
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), stepTimeout)
	defer cancel()
	if err := h.app.Stop(ctx); err != nil {
		trouble = append(trouble, "stop: "+err.Error())
	}
	for _, entry := range h.logs.All() {
		trouble = append(trouble, fmt.Sprintf("log: %s %v", entry.Message, entry.ContextMap()))
	}
	return append(trouble, g.denied(l.user)...)
}

// stepTimeout bounds a step that usually takes milliseconds. Some errors are retried until then.
const stepTimeout = 3 * time.Second

type guardedHost struct {
	servers *guardedServers
	cfg     pushfx.Config
	app     *fx.App
	web     *echo.Echo
	logs    *observer.ObservedLogs
	changes chan string
	push    module.HostService
	sync    module.SyncService
	index   module.PushkeyIndex
	health  module.Health
}

func newGuardedHost(g *guardedServers, client redis.UniversalClient, cfg pushfx.Config) *guardedHost {
	g.t.Helper()
	core, logs := observer.New(zap.WarnLevel)
	h := &guardedHost{servers: g, cfg: cfg, logs: logs, changes: make(chan string, 1000)}
	h.app = startable(client,
		fx.Replace(zap.New(core), cfg),
		fx.Provide(
			echo.New, pushfx.AsChangeListener(func() recorder { return recorder{h.changes} }),
			pushfx.AsPusherListener(func() deviceList { return make(deviceList, 1000) }),
		),
		fx.Populate(&h.web, &h.push, &h.sync, &h.index, &h.health),
		fx.Invoke(fx.Annotate(mount, fx.ParamTags("", pushfx.RouteGroups))),
	)
	if err := h.app.Err(); err != nil {
		g.t.Fatal(err)
	}
	return h
}

type chore struct {
	name string
	do   func(context.Context) error
}

func (h *guardedHost) chores() []chore {
	chores := []chore{
		{"start", h.app.Start},
		{"registration", h.register},
		{"endpoints", h.endpoints},
		{"a large event", h.large},
		{"calls of the host", h.calls},
		{"sync", h.receivesChange},
		{"the readiness probe", h.health.Healthy},
	}
	if h.servers.cluster != nil {
		chores = append(chores, chore{"a moving slot", h.changesDuringMove})
	}
	return append(chores, chore{"deactivation", h.forget})
}

const (
	bob   = "@bob:example.org"
	mover = "@mover:example.org"
)

func (h *guardedHost) register(ctx context.Context) error {
	return errors.Join(h.push.EnsureDefaults(ctx, alice), h.push.EnsureDefaults(ctx, bob))
}

func (h *guardedHost) request(ctx context.Context, user, method, path, body string) error {
	request := httptest.NewRequestWithContext(ctx, method, v3+path, strings.NewReader(body))
	request.Header.Set("Authorization", "Bearer "+user)
	answer := httptest.NewRecorder()
	h.web.ServeHTTP(answer, request)
	if answer.Code != http.StatusOK {
		return fmt.Errorf("%s %s: %d %s", method, path, answer.Code, answer.Body)
	}
	return nil
}

// endpoints calls all eleven endpoints. Users set one pushkey in both orders, and a pusher grows.
func (h *guardedHost) endpoints(ctx context.Context) error {
	const rule = "/pushrules/global/content/cake"
	for _, r := range []struct{ user, method, path, body string }{
		{alice, http.MethodGet, "/pushrules/", ""},
		{alice, http.MethodGet, "/pushrules/global/", ""},
		{alice, http.MethodPut, rule, `{"actions":["notify"],"pattern":"cake"}`},
		{alice, http.MethodGet, rule, ""},
		{alice, http.MethodPut, rule + "/enabled", `{"enabled":false}`},
		{alice, http.MethodGet, rule + "/enabled", ""},
		{alice, http.MethodPut, rule + "/actions", `{"actions":[]}`},
		{alice, http.MethodGet, rule + "/actions", ""},
		{alice, http.MethodDelete, rule, ""},
		{alice, http.MethodPost, "/pushers/set", httpPusher("app", "key")},
		{bob, http.MethodPost, "/pushers/set", httpPusher("app", "key")},
		{bob, http.MethodPost, "/pushers/set", httpPusher("app", "other key")},
		{bob, http.MethodPost, "/pushers/set", strings.Replace(httpPusher("app", "other key"), "Phone", "a larger phone", 1)},
		{bob, http.MethodGet, "/pushers", ""},
		{bob, http.MethodPost, "/pushers/set", `{"kind":null,"app_id":"app","pushkey":"key"}`},
	} {
		if err := h.request(ctx, r.user, r.method, r.path, r.body); err != nil {
			return err
		}
	}
	return nil
}

func (h *guardedHost) large(ctx context.Context) error {
	tweak := `{"actions":[{"set_tweak":"x","value":"` + strings.Repeat("x", h.cfg.Redis.LargeValueBytes) + `"}]}`
	return errors.Join(
		h.request(ctx, alice, http.MethodPut, "/pushrules/global/room/!large:example.org", tweak),
		h.request(ctx, alice, http.MethodPut, "/pushrules/global/room/!large:example.org/enabled", `{"enabled":false}`),
		h.request(ctx, alice, http.MethodDelete, "/pushrules/global/room/!large:example.org", ""),
	)
}

func (h *guardedHost) calls(ctx context.Context) error {
	users := []mxid.UserID{alice, bob}
	failures := []error{
		h.request(ctx, alice, http.MethodPut, "/pushrules/global/room/!old:example.org", `{"actions":[]}`),
		h.push.CopyRoomRules(ctx, alice, "!old:example.org", "!new:example.org"),
		h.push.RefreshDefaults(ctx, alice),
		h.push.RemoveDevicePushers(ctx, alice, device),
		h.push.KeepOnlyDevicePushers(ctx, bob, ""),
		h.index.MarkPending(ctx, module.PendingPushkey{Key: "x", Claim: 1}), // as after a host's death
		h.push.ReconcilePushkeys(ctx),
	}
	_, err := h.push.AccountData(ctx, alice)
	failures = append(failures, err)
	for _, result := range h.push.Rulesets(ctx, users) {
		failures = append(failures, result.Err)
	}
	for _, result := range h.push.Pushers(ctx, users) {
		failures = append(failures, result.Err)
	}
	return errors.Join(failures...)
}

// receivesChange makes changes as another host until this host receives one or logs an error.
func (h *guardedHost) receivesChange(ctx context.Context) error {
	if _, err := h.sync.Since(ctx, alice, 0); err != nil {
		return err
	}
	cfg := rediscommit.DefaultConfig()
	cfg.KeyPrefix = h.cfg.Redis.KeyPrefix
	other, err := rulestore.New(h.servers.admin, cfg, rediscommit.Options{})
	if err != nil {
		return err
	}
	for n := 0; h.logs.Len() == 0; n++ {
		id := fmt.Sprintf("!elsewhere%d:example.org", n)
		_, err := other.Update(ctx, bob, func(rules *pushrule.Ruleset, _ bool) error {
			return rules.Put(pushrule.Room, id, pushrule.Draft{}, pushrule.Position{})
		})
		if err != nil {
			return err
		}
		after := time.After(20 * time.Millisecond)
		for waits := true; waits; {
			select {
			case news := <-h.changes:
				if news == bob {
					return nil
				}
			case <-after:
				waits = false
			}
		}
	}
	return errors.New("received no change of another host")
}

func (h *guardedHost) changesDuringMove(ctx context.Context) error {
	if err := h.push.EnsureDefaults(ctx, mover); err != nil {
		return err
	}
	cluster, key := h.servers.cluster, h.cfg.Redis.KeyPrefix+eventKey(mover)
	stage := mutationCluster{cluster: cluster}
	slot := int(h.servers.admin.ClusterKeySlot(ctx, key).Val())
	move, err := cluster.BeginMove(ctx, slot, stage.otherMaster(h.servers.t, slot))
	if err != nil {
		return err
	}
	return errors.Join(
		move.MoveKeys(ctx, key),
		h.request(ctx, mover, http.MethodGet, "/pushrules/", ""),
		h.request(ctx, mover, http.MethodPut, "/pushrules/global/room/!moved:example.org", `{"actions":[]}`),
		move.MoveRest(h.servers.t.Context()),
		move.Finish(h.servers.t.Context()),
	)
}

func (h *guardedHost) forget(ctx context.Context) error {
	if err := errors.Join(h.push.ForgetUser(ctx, alice), h.push.ForgetUser(ctx, bob)); err != nil {
		return err
	}
	return h.servers.admin.Ping(ctx).Err()
}

const (
	singleACL     = "### ACL: a single server, or servers behind sentinels"
	clusterACL    = "### ACL: a cluster"
	replicasACL   = "### ACL: more for `Durability.Replicas`"
	fileACL       = "### ACL: more for `Durability.AOF`"
	identityACL   = "### ACL: more for a quiet ACL LOG"
	databaseACL   = "### ACL: more for a database other than 0"
	sentinelACL   = "### ACL: the sentinels themselves"
	checkerACL    = "### ACL: a read-only user"
	examplePrefix = "hs1:"
)

func (g *guardedServers) line() aclLine {
	g.t.Helper()
	if g.cluster != nil {
		return g.quiet(aclLineBelow(g.t, clusterACL))
	}
	return g.quiet(aclLineBelow(g.t, singleACL))
}

// quiet adds the right that keeps connections from leaving entries in ACL LOG, if the servers know it.
func (g *guardedServers) quiet(l aclLine) aclLine {
	g.t.Helper()
	if quiet := aclLineBelow(g.t, identityACL); g.knows(quiet) {
		return l.with(quiet)
	}
	return l
}

func (g *guardedServers) knows(l aclLine) bool {
	ctx := g.t.Context()
	err := g.admins[0].Do(ctx, aclLine{"probe", l.rules}.args()...).Err()
	g.admins[0].Do(ctx, "ACL", "DELUSER", "probe")
	return err == nil
}

func (g *guardedServers) wantUsed(l aclLine) {
	g.t.Helper()
	var run strings.Builder
	g.each(func(server *redis.Client) error {
		stats, err := server.Info(g.t.Context(), "commandstats").Result()
		run.WriteString(stats)
		return err
	})
	for _, rule := range l.rules {
		command, isCommand := strings.CutPrefix(rule, "+")
		if isCommand && !strings.Contains(run.String(), "cmdstat_"+command+":") {
			g.t.Errorf("no step needs %s", rule)
		}
	}
}

func eachGuarded(t *testing.T, run func(*testing.T, *guardedServers)) {
	t.Parallel()
	redistest.Require(t)
	for name, start := range map[string]func(*testing.T) *guardedServers{"single": guardedSingle, "cluster": guardedCluster} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			run(t, start(t))
		})
	}
}

// The test also fails for commands that no step needs.
func TestTheACLOfThePageIsEnough(t *testing.T) {
	eachGuarded(t, func(t *testing.T, g *guardedServers) {
		plain, replicas := g.line(), aclLineBelow(t, replicasACL)
		prefixed := plain.withPrefix(examplePrefix)
		withPrefix, durable := pushfx.DefaultConfig(), pushfx.DefaultConfig()
		withPrefix.Redis.KeyPrefix = examplePrefix
		durable.Redis.Durability.Replicas = 1
		for _, run := range []struct {
			name     string
			line     aclLine
			cfg      pushfx.Config
			commands aclLine // commands that it must use
		}{
			{"defaults", plain, pushfx.DefaultConfig(), plain},
			{"prefix", prefixed, withPrefix, prefixed},
			{"replicas", plain.with(replicas), durable, replicas},
		} {
			for _, trouble := range g.work(run.line, run.cfg) {
				t.Errorf("%s: %s", run.name, trouble)
			}
			g.wantUsed(run.commands)
		}
	})
}

// The page names the one refusal that remains with AOF.
func TestTheACLOfThePageIsEnoughForFilesAndAnotherDatabase(t *testing.T) {
	t.Parallel()
	redistest.Require(t)
	g := guardedSingle(t)
	g.database = 1
	options := *g.admins[0].Options()
	options.DB = g.database
	admin := redis.NewClient(&options)
	defer admin.Close()
	g.admin = admin
	cfg, line := pushfx.DefaultConfig(), g.line().with(aclLineBelow(t, databaseACL))
	var want []string
	if file := aclLineBelow(t, fileACL); g.knows(file) {
		line, want = line.with(file), []string{"NOPERM: command config|get"}
		cfg.Redis.Durability = rediscommit.Durability{AOF: true, Timeout: 1500 * time.Millisecond}
	}
	if got := g.work(line, cfg); !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// Hosts that are running keep their rights while an operator repeats the lines.
func TestRepeatingALineTakesNoRightAway(t *testing.T) {
	t.Parallel()
	redistest.Require(t)
	server := redistest.Single(t).Client(t)
	rights := func(lines []aclLine) (all string) {
		for _, l := range lines {
			if err := server.Do(t.Context(), l.args()...).Err(); err != nil {
				t.Fatal(err)
			}
		}
		return strings.Join(server.ACLList(t.Context()).Val(), "\n")
	}
	first, delivery, unread := aclLineBelow(t, singleACL), aclLineBelow(t, deliveryACL), aclLineBelow(t, unreadACL)
	checker, ctl := aclLineBelow(t, checkerACL), aclLineBelow(t, "### ACL: a user for pushctl")
	ctlMore := aclLineBelow(t, "### ACL: more for pushctl to change the queue")
	before := rights([]aclLine{first, delivery, unread, checker, ctl, ctlMore})
	for _, l := range []aclLine{first, checker, ctl} {
		if after := rights([]aclLine{l}); after != before {
			t.Errorf("after the line of %s again:\n%s\nwant\n%s", l.user, after, before)
		}
	}
}

// Users have no rights for other keys and commands, and the user for checks has no rights for changes.
func TestTheACLOfThePageRefusesOtherCommands(t *testing.T) {
	t.Parallel()
	redistest.Require(t)
	servers := redistest.Cluster(t, 1, 0)
	g := &guardedServers{t: t, admins: []*redis.Client{servers.Nodes()[0].Client(t)}, cluster: servers}
	service, checker := g.line(), aclLineBelow(t, checkerACL)
	foreign := [][]any{
		{"GET", "foo"},
		{"GET", "account_data:{" + alice + "}:m.direct"},
		{"GET", "other:account_data:{" + alice + "}:m.push_rules"},
		{"HGETALL", "demo:devices:{" + alice + "}"},
		{"PUBLISH", "push_rules_changed_not", "x"},
		{"EVAL", "return redis.call('GET', 'foo')", 0},
		{"EVAL", "return redis.call('FLUSHALL')", 0},
		{"KEYS", "*"},
		{"FLUSHALL"},
		{"CONFIG", "GET", "requirepass"},
		{"ACL", "SETUSER", "pushfx", "+@all"},
		{"SCRIPT", "FLUSH"},
		{"SHUTDOWN", "NOSAVE"},
	}
	changing := [][]any{
		{"SET", eventKey(alice), "x"},
		{"HSET", pushersKey(alice), "x", "y"},
		{"EVAL", "return redis.call('DEL', KEYS[1])", 1, eventKey(alice)},
		{"PUBLISH", "push_rules_changed", "1 " + alice},
	}
	looking := [][]any{
		{"SCAN", 0}, {"TYPE", eventKey(alice)}, {"PTTL", pushersKey(alice)}, {"GET", eventKey(alice)}, {"EXISTS", eventKey(alice)},
		{"HGETALL", pushersKey(alice)}, {"HKEYS", pushersKey(alice)}, {"ZSCORE", "pushkeys:pending", "x"}, {"MEMORY", "USAGE", eventKey(alice)},
		{"DBSIZE"}, {"INFO"}, {"TIME"}, {"COMMAND"}, {"CLUSTER", "SLOTS"}, {"CLUSTER", "NODES"}, {"CLUSTER", "GETKEYSINSLOT", 1, 1},
	}
	g.wantRefused(service, foreign)
	g.wantRefused(checker, append(foreign, changing...))
	client := g.loginAs(checker)
	defer client.Close()
	for _, command := range looking {
		if err := client.Do(t.Context(), command...).Err(); err != nil && !errors.Is(err, redis.Nil) {
			t.Errorf("%v: %v", command, err)
		}
	}
}

func (g *guardedServers) loginAs(l aclLine) *redis.Client {
	g.t.Helper()
	g.apply(l)
	return redis.NewClient(&redis.Options{Addr: g.admins[0].Options().Addr, Username: l.user, Password: aclPassword})
}

func (g *guardedServers) wantRefused(l aclLine, commands [][]any) {
	g.t.Helper()
	client := g.loginAs(l)
	defer client.Close()
	refusals := regexp.MustCompile("NOPERM|The user executing the script can't|ACL failure in script|command not allowed")
	for _, command := range commands {
		if err := client.Do(g.t.Context(), command...).Err(); err == nil || !refusals.MatchString(err.Error()) {
			g.t.Errorf("%s %v: got %v, want it refused", l.user, command, err)
		}
	}
}

func TestTheACLOfThePageForSentinels(t *testing.T) {
	t.Parallel()
	redistest.Require(t)
	servers := redistest.Sentinel(t)
	sentinel := redis.NewClient(&redis.Options{Addr: servers.Addr(), MaintNotificationsConfig: noMaintenance()})
	defer sentinel.Close()
	g := &guardedServers{t: t, admins: []*redis.Client{sentinel}}
	l := g.quiet(aclLineBelow(t, sentinelACL))
	g.apply(l)
	client := redis.NewFailoverClient(&redis.FailoverOptions{
		MasterName: servers.MasterName(), SentinelAddrs: []string{servers.Addr()},
		SentinelUsername: l.user, SentinelPassword: aclPassword,
		MaxRetries: -1, ContextTimeoutEnabled: true,
	})
	defer client.Close()
	ctx, cancel := context.WithTimeout(t.Context(), stepTimeout)
	defer cancel()
	if err := client.Ping(ctx).Err(); err != nil {
		t.Error(err)
	}
	for _, refusal := range g.denied(l.user) {
		t.Error(refusal)
	}
}
