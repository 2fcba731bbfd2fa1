package pages

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
	"github.com/pushfx/pushfx/integration/hosttest"
	"github.com/pushfx/pushfx/integration/operations"
	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/commit/rediscommit"
	"github.com/pushfx/pushfx/module/delivery/queuetest"
	"github.com/pushfx/pushfx/module/delivery/redisqueue"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/pushrule"
	"github.com/pushfx/pushfx/module/redistest"
	"github.com/pushfx/pushfx/module/storetest"
	"github.com/pushfx/pushfx/module/unread/redisunread"
	"github.com/pushfx/pushfx/rulestore"
)

// guardedServers are servers on which hosts log in as a user with few rights.
type guardedServers struct {
	t *testing.T
	operations.Guarded
	admin    redis.UniversalClient     // for all servers
	cluster  *redistest.ClusterServers // nil without a cluster
	login    func(user string) redis.UniversalClient
	database int // of the hosts; 0 in a cluster
}

func guarded(t *testing.T, servers []*redistest.Server) *guardedServers {
	g := &guardedServers{t: t}
	for _, server := range servers {
		g.Guarded = append(g.Guarded, server.Client(t))
	}
	return g
}

// guardedSingle returns a master with a replica. Both write each change to disk at once.
func guardedSingle(t *testing.T) *guardedServers {
	servers := redistest.Replicated(t, 1, "--appendonly", "yes", "--appendfsync", "always")
	g, address := guarded(t, servers.Servers()), servers.Master().Addr()
	g.admin = servers.Master().Client(t)
	g.login = func(user string) redis.UniversalClient {
		return redis.NewClient(&redis.Options{
			Addr: address, Username: user, Password: operations.Password, DB: g.database,
			DialTimeout: 2200 * time.Millisecond, ReadTimeout: 2 * time.Second, // longer than a wait for the disk
			ContextTimeoutEnabled: true, MaintNotificationsConfig: hosttest.NoMaintenance(),
		})
	}
	return g
}

func guardedCluster(t *testing.T) *guardedServers {
	cluster := redistest.Cluster(t, 3, 1)
	g := guarded(t, cluster.Nodes())
	g.admin, g.cluster = cluster.Client(t), cluster
	g.login = func(user string) redis.UniversalClient {
		return redis.NewClusterClient(&redis.ClusterOptions{
			Addrs: cluster.Addrs(), Username: user, Password: operations.Password,
			DialTimeout: hosttest.DemoDialTimeout, DialerRetries: hosttest.DemoDialTries,
			ReadTimeout: hosttest.DemoReplyLimit, WriteTimeout: hosttest.DemoReplyLimit, PoolTimeout: hosttest.DemoPoolLimit,
			ContextTimeoutEnabled: true, ClusterStateReloadInterval: hosttest.DemoTopologyAge, MaintNotificationsConfig: hosttest.NoMaintenance(),
		})
	}
	return g
}

// work makes a host do all of the module's work without delivery and unread counts. It returns failed steps and
// log lines.
func (g *guardedServers) work(client redis.UniversalClient, cfg pushfx.Config) (trouble []string) {
	g.t.Helper()
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
	return trouble
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
	h.app = hosttest.Startable(client,
		fx.Replace(zap.New(core), cfg),
		fx.Provide(
			echo.New, pushfx.AsChangeListener(func() hosttest.Recorder { return hosttest.Recorder(h.changes) }),
			pushfx.AsPusherListener(func() hosttest.Recorder { return make(hosttest.Recorder, 1000) }),
		),
		fx.Populate(&h.web, &h.push, &h.sync, &h.index, &h.health),
		fx.Invoke(fx.Annotate(hosttest.Mount, fx.ParamTags("", pushfx.RouteGroups))),
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
		{"calls of the host", h.calls},
		{"sync", h.receivesChange},
		{"the readiness probe", h.health.Healthy},
	}
	if h.servers.cluster != nil {
		chores = append(chores, chore{"a moving slot", h.changesDuringMove})
	}
	return append(chores, chore{"deactivation", h.forget})
}

const mover = "@mover:example.org"

func (h *guardedHost) register(ctx context.Context) error {
	return errors.Join(h.push.EnsureDefaults(ctx, hosttest.Alice), h.push.EnsureDefaults(ctx, hosttest.Bob))
}

func (h *guardedHost) request(ctx context.Context, user, method, path, body string) error {
	request := httptest.NewRequestWithContext(ctx, method, hosttest.V3+path, strings.NewReader(body))
	request.Header.Set("Authorization", "Bearer "+user)
	answer := httptest.NewRecorder()
	h.web.ServeHTTP(answer, request)
	if answer.Code != http.StatusOK {
		return fmt.Errorf("%s %s: %d %s", method, path, answer.Code, answer.Body)
	}
	return nil
}

// endpoints calls the endpoints of push rules and pushers. Users set one pushkey in both orders, and a pusher grows.
func (h *guardedHost) endpoints(ctx context.Context) error {
	const rule = "/pushrules/global/content/cake"
	for _, r := range []struct{ user, method, path, body string }{
		{hosttest.Alice, http.MethodGet, "/pushrules/", ""},
		{hosttest.Alice, http.MethodGet, "/pushrules/global/", ""},
		{hosttest.Alice, http.MethodPut, rule, `{"actions":["notify"],"pattern":"cake"}`},
		{hosttest.Alice, http.MethodGet, rule, ""},
		{hosttest.Alice, http.MethodPut, rule + "/enabled", `{"enabled":false}`},
		{hosttest.Alice, http.MethodGet, rule + "/enabled", ""},
		{hosttest.Alice, http.MethodPut, rule + "/actions", `{"actions":[]}`},
		{hosttest.Alice, http.MethodGet, rule + "/actions", ""},
		{hosttest.Alice, http.MethodDelete, rule, ""},
		{hosttest.Alice, http.MethodPost, "/pushers/set", hosttest.HTTPPusher("app", "key")},
		{hosttest.Bob, http.MethodPost, "/pushers/set", hosttest.HTTPPusher("app", "key")},
		{hosttest.Bob, http.MethodPost, "/pushers/set", hosttest.HTTPPusher("app", "other key")},
		{hosttest.Bob, http.MethodPost, "/pushers/set", strings.Replace(hosttest.HTTPPusher("app", "other key"), "Phone", "a larger phone", 1)},
		{hosttest.Bob, http.MethodGet, "/pushers", ""},
		{hosttest.Bob, http.MethodPost, "/pushers/set", `{"kind":null,"app_id":"app","pushkey":"key"}`},
	} {
		if err := h.request(ctx, r.user, r.method, r.path, r.body); err != nil {
			return err
		}
	}
	return nil
}

func (h *guardedHost) calls(ctx context.Context) error {
	users := []mxid.UserID{hosttest.Alice, hosttest.Bob}
	failures := []error{
		h.request(ctx, hosttest.Alice, http.MethodPut, "/pushrules/global/room/!old:example.org", `{"actions":[]}`),
		h.push.CopyRoomRules(ctx, hosttest.Alice, "!old:example.org", "!new:example.org"),
		h.push.RefreshDefaults(ctx, hosttest.Alice),
		h.push.RemoveDevicePushers(ctx, hosttest.Alice, hosttest.Device),
		h.push.KeepOnlyDevicePushers(ctx, hosttest.Bob, ""),
	}
	_, err := h.push.AccountData(ctx, hosttest.Alice)
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
	if _, err := h.sync.Since(ctx, hosttest.Alice, 0); err != nil {
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
		_, err := other.Update(ctx, hosttest.Bob, func(rules *pushrule.Ruleset, _ bool) error {
			return rules.Put(pushrule.Room, id, pushrule.Draft{}, pushrule.Position{})
		})
		if err != nil {
			return err
		}
		after := time.After(20 * time.Millisecond)
		for waits := true; waits; {
			select {
			case news := <-h.changes:
				if news == hosttest.Bob {
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
	cluster, key := h.servers.cluster, h.cfg.Redis.KeyPrefix+hosttest.EventKey(mover)
	slot := int(h.servers.admin.ClusterKeySlot(ctx, key).Val())
	to, err := hosttest.OtherMaster(ctx, cluster, slot)
	if err != nil {
		return err
	}
	move, err := cluster.BeginMove(ctx, slot, to)
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
	if err := errors.Join(h.push.ForgetUser(ctx, hosttest.Alice), h.push.ForgetUser(ctx, hosttest.Bob)); err != nil {
		return err
	}
	return h.servers.admin.Ping(ctx).Err()
}

const (
	singleACL     = "### ACL: a single server, or servers behind sentinels"
	clusterACL    = "### ACL: a cluster"
	deliveryACL   = "### ACL: more for `pushfx.Delivery`"
	unreadACL     = "### ACL: more for `pushfx.Unread`"
	replicasACL   = "### ACL: more for `Durability.Replicas`"
	fileACL       = "### ACL: more for `Durability.AOF`"
	identityACL   = "### ACL: more for a quiet ACL LOG"
	databaseACL   = "### ACL: more for a database other than 0"
	sentinelACL   = "### ACL: the sentinels themselves"
	checkerACL    = "### ACL: a read-only user"
	examplePrefix = "hs1:"
)

// rights returns the rights below headings that the servers know. The right of identityACL keeps connections from
// leaving entries in ACL LOG.
func (g *guardedServers) rights(headings ...string) operations.Rights {
	g.t.Helper()
	headings = slices.DeleteFunc(append(headings, identityACL), func(heading string) bool {
		return (heading == identityACL || heading == fileACL) && !g.Know(g.t, operations.RightsBelow(g.t, heading))
	})
	return operations.RightsBelow(g.t, headings...)
}

// A role is a part of the module's work, as a user with the rights below headings.
type role struct {
	name     string
	headings []string // in addition to those of the server
	prefix   string
	do       func(*guardedServers, redis.UniversalClient, pushfx.Config) []string
	config   func(*pushfx.Config)
	refused  []string // what the page says is refused
}

var roles = []role{
	{"the service", nil, "", (*guardedServers).work, nil, nil},
	{"a prefix and replicas", []string{replicasACL}, examplePrefix, (*guardedServers).work, func(c *pushfx.Config) {
		c.Redis.Durability.Replicas = 1
	}, nil},
	{"delivery", []string{deliveryACL}, examplePrefix, func(g *guardedServers, client redis.UniversalClient, cfg pushfx.Config) []string {
		queuetest.Queue(g.t, func(t *testing.T) module.DeliveryQueue {
			return must(redisqueue.New(client, cfg.Redis, rediscommit.Options{}))
		})
		return nil
	}, nil, nil},
	{"unread counts", []string{unreadACL}, examplePrefix, func(g *guardedServers, client redis.UniversalClient, cfg pushfx.Config) []string {
		storetest.Unread(g.t, func(t *testing.T) module.UnreadStore {
			return must(redisunread.New(client, cfg.Redis, rediscommit.Options{}))
		})
		return nil
	}, nil, nil},
}

// files is a role on a single server.
var files = role{"files and another database", []string{databaseACL, fileACL}, "", (*guardedServers).work, func(c *pushfx.Config) {
	c.Redis.Durability = rediscommit.Durability{AOF: true, Timeout: 1500 * time.Millisecond}
}, []string{"NOPERM: command config|get"}}

func must[T any](made T, err error) T {
	if err != nil {
		panic(err)
	}
	return made
}

// play plays a role. No command may be refused, and each command of the role's own lines must be needed.
func (g *guardedServers) play(r role) {
	g.t.Helper()
	server := singleACL
	if g.cluster != nil {
		server = clusterACL
	}
	rights := g.rights(append([]string{server}, r.headings...)...).WithPrefix(r.prefix)
	own := g.rights(append(r.headings, identityACL)...).Rules
	if len(r.headings) == 0 {
		own = rights.Rules
	}
	cfg := pushfx.DefaultConfig()
	cfg.Redis.KeyPrefix = r.prefix
	if r.config != nil {
		r.config(&cfg)
	}
	g.Each(g.t, func(server *redis.Client) error {
		if err := server.FlushAll(g.t.Context()).Err(); !redis.HasErrorPrefix(err, "READONLY") {
			return err
		}
		return nil // a replica
	})
	g.Grant(g.t, rights)
	client := g.login(rights.User)
	defer client.Close()
	trouble := append(r.do(g, client, cfg), g.Refused(g.t, rights.User)...)
	if !slices.Equal(trouble, r.refused) {
		g.t.Errorf("%s: got %q, want %q", r.name, trouble, r.refused)
	}
	if unused := g.Unused(g.t, own); len(unused) > 0 {
		g.t.Errorf("%s: no step needs %q", r.name, unused)
	}
}

// The rights of the page are enough, and each is needed.
func TestTheACLOfThePageForEachRole(t *testing.T) {
	t.Parallel()
	redistest.Require(t)
	t.Run("single", func(t *testing.T) {
		t.Parallel()
		g := guardedSingle(t)
		for _, r := range roles {
			g.play(r)
		}
		g.database = 1
		options := *g.Guarded[0].Options()
		options.DB = g.database
		admin := redis.NewClient(&options)
		defer admin.Close()
		g.admin = admin
		r := files
		if !g.Know(t, operations.RightsBelow(t, fileACL)) {
			r.config, r.refused = nil, nil
		}
		g.play(r)
	})
	t.Run("cluster", func(t *testing.T) {
		t.Parallel()
		g := guardedCluster(t)
		for _, r := range roles {
			g.play(r)
		}
	})
}

// A host does not start if the ACL lacks the lines of a part, and says which. A host that has lost them is not healthy.
func TestAHostWithoutTheRightsOfAPartSaysSo(t *testing.T) {
	t.Parallel()
	redistest.Require(t)
	g := guardedSingle(t)
	everything := pushfx.Options{Delivery: &pushfx.DeliveryOptions{}, Unread: &pushfx.UnreadOptions{}}
	for _, test := range []struct {
		missing  string
		headings []string
		want     string // in the error; empty for none
	}{
		{"all", []string{singleACL}, "lacks the rights of unread counts in its ACL: NOPERM"},
		{"delivery", []string{singleACL, unreadACL}, "lacks the rights of delivery in its ACL: NOPERM"},
		{"nothing", []string{singleACL, unreadACL, deliveryACL}, ""},
	} {
		g.Grant(t, g.rights(test.headings...))
		client := g.login("pushfx")
		defer client.Close()
		push := must(pushfx.New(client, pushfx.DefaultConfig(), everything))
		for call, err := range map[string]error{"Check": push.Check(t.Context()), "Healthy": push.Health.Healthy(t.Context())} {
			if text := fmt.Sprint(err); (err != nil) != (test.want != "") || !strings.Contains(text, test.want) {
				t.Errorf("%s is missing, %s: got %v, want %q", test.missing, call, err, test.want)
			}
		}
	}
}

// Hosts that are running keep their rights while an operator repeats the lines.
func TestRepeatingALineTakesNoRightAway(t *testing.T) {
	t.Parallel()
	redistest.Require(t)
	server := redistest.Single(t).Client(t)
	apply := func(r operations.Rights) string {
		if err := server.Do(t.Context(), r.SetUser()...).Err(); err != nil {
			t.Fatal(err)
		}
		return strings.Join(server.ACLList(t.Context()).Val(), "\n")
	}
	first := [][]string{{singleACL, deliveryACL, unreadACL}, {checkerACL}, {"### ACL: a user for pushctl", "### ACL: more for pushctl to change the queue"}}
	for _, headings := range first {
		before := apply(operations.RightsBelow(t, headings...))
		if after := apply(operations.RightsBelow(t, headings[0])); after != before {
			t.Errorf("after %q again:\n%s\nwant\n%s", headings[0], after, before)
		}
	}
}

// Users have no rights for other keys and commands, and the user for checks has no rights for changes.
func TestTheACLOfThePageRefusesOtherCommands(t *testing.T) {
	t.Parallel()
	redistest.Require(t)
	g := guarded(t, redistest.Cluster(t, 1, 0).Nodes())
	service, checker := g.rights(clusterACL), operations.RightsBelow(t, checkerACL)
	foreign := [][]any{
		{"GET", "foo"},
		{"GET", "account_data:{" + hosttest.Alice + "}:m.direct"},
		{"GET", "other:account_data:{" + hosttest.Alice + "}:m.push_rules"},
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
		{"SET", hosttest.EventKey(hosttest.Alice), "x"},
		{"HSET", hosttest.PushersKey(hosttest.Alice), "x", "y"},
		{"EVAL", "return redis.call('DEL', KEYS[1])", 1, hosttest.EventKey(hosttest.Alice)},
		{"PUBLISH", "push_rules_changed", "1 " + hosttest.Alice},
	}
	looking := [][]any{
		{"SCAN", 0}, {"TYPE", hosttest.EventKey(hosttest.Alice)}, {"PTTL", hosttest.PushersKey(hosttest.Alice)}, {"GET", hosttest.EventKey(hosttest.Alice)}, {"EXISTS", hosttest.EventKey(hosttest.Alice)},
		{"HGETALL", hosttest.PushersKey(hosttest.Alice)}, {"HKEYS", hosttest.PushersKey(hosttest.Alice)}, {"MEMORY", "USAGE", hosttest.EventKey(hosttest.Alice)},
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

func (g *guardedServers) loginAs(r operations.Rights) *redis.Client {
	g.t.Helper()
	g.Grant(g.t, r)
	return redis.NewClient(&redis.Options{Addr: g.Guarded[0].Options().Addr, Username: r.User, Password: operations.Password})
}

func (g *guardedServers) wantRefused(r operations.Rights, commands [][]any) {
	g.t.Helper()
	client := g.loginAs(r)
	defer client.Close()
	refusals := regexp.MustCompile("NOPERM|The user executing the script can't|ACL failure in script|command not allowed")
	for _, command := range commands {
		if err := client.Do(g.t.Context(), command...).Err(); err == nil || !refusals.MatchString(err.Error()) {
			g.t.Errorf("%s %v: got %v, want it refused", r.User, command, err)
		}
	}
}

func TestTheACLOfThePageForSentinels(t *testing.T) {
	t.Parallel()
	redistest.Require(t)
	servers := redistest.Sentinel(t)
	sentinel := redis.NewClient(&redis.Options{Addr: servers.Addr(), MaintNotificationsConfig: hosttest.NoMaintenance()})
	defer sentinel.Close()
	g := &guardedServers{t: t, Guarded: operations.Guarded{sentinel}}
	rights := g.rights(sentinelACL)
	g.Each(t, func(sentinel *redis.Client) error { return sentinel.Do(t.Context(), rights.SetUser()...).Err() })
	client := redis.NewFailoverClient(&redis.FailoverOptions{
		MasterName: servers.MasterName(), SentinelAddrs: []string{servers.Addr()},
		SentinelUsername: rights.User, SentinelPassword: operations.Password,
		MaxRetries: -1, ContextTimeoutEnabled: true,
	})
	defer client.Close()
	ctx, cancel := context.WithTimeout(t.Context(), stepTimeout)
	defer cancel()
	if err := client.Ping(ctx).Err(); err != nil {
		t.Error(err)
	}
	for _, refusal := range g.Refused(t, rights.User) {
		t.Error(refusal)
	}
}
