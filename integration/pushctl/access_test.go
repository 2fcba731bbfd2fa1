package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/pushfx/pushfx/integration/operations"
	"github.com/pushfx/pushfx/module/delivery/content"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/redisclient"
	"github.com/pushfx/pushfx/module/redistest"
	"github.com/pushfx/pushfx/module/stored"
	"github.com/pushfx/pushfx/module/unread/fold"
)

func operatorsPage(t *testing.T, heading string) string {
	t.Helper()
	part, err := operations.Section(heading)
	if err != nil {
		t.Fatal(err)
	}
	return part
}

// operatorsUser returns the name and the rules of the ACL SETUSER command below a heading.
func operatorsUser(t *testing.T, heading string) (name string, rules []string) {
	t.Helper()
	for line := range strings.Lines(operatorsPage(t, heading)) {
		if rest, found := strings.CutPrefix(line, "ACL SETUSER "); found {
			words := strings.Fields(rest)
			return words[0], words[1:]
		}
	}
	t.Fatalf("no ACL SETUSER below %q", heading)
	return "", nil
}

const accessPassword = "x"

// guarded is a fixture on which pushctl logs in as a user with few rights.
type guarded struct {
	*fixture
	servers []*redis.Client
	user    string
	files   int
}

func newGuarded(t *testing.T, user string, servers []*redistest.Server, where ...string) *guarded {
	g := &guarded{fixture: newFixture(t, where...), user: user}
	for _, server := range servers {
		g.servers = append(g.servers, server.Client(t))
	}
	return g
}

func guardedOnCluster(t *testing.T, user string, cluster *redistest.ClusterServers) *guarded {
	addresses := cluster.Addrs()
	g := newGuarded(t, user, cluster.Nodes(), "-redis-mode", "cluster", "-redis", strings.Join(addresses, ","))
	g.where = []string{"-redis-mode", "cluster", "-redis", "redis://" + user + "@" + addresses[0] + "?addr=" + addresses[1]}
	return g
}

// grant creates the user with these rights on each server, and empties ACL LOG.
func (g *guarded) grant(rules []string) {
	g.t.Helper()
	args := []any{"ACL", "SETUSER", g.user}
	for _, rule := range rules {
		args = append(args, strings.Replace(rule, ">PASSWORD", ">"+accessPassword, 1))
	}
	for _, server := range g.servers {
		if err := errors.Join(server.ACLDelUser(g.t.Context(), g.user).Err(), server.Do(g.t.Context(), args...).Err()); err != nil {
			g.t.Fatal(err)
		}
		server.ACLLogReset(g.t.Context())
	}
}

func (g *guarded) denied() (all []string) {
	g.t.Helper()
	for _, server := range g.servers {
		entries, err := server.ACLLog(g.t.Context(), 100).Result()
		if err != nil {
			g.t.Fatal(err)
		}
		for _, entry := range entries {
			if entry.Username == g.user && entry.Object != "client|setinfo" {
				all = append(all, entry.Reason+" "+entry.Object)
			}
		}
	}
	return all
}

func (g *guarded) file() string {
	g.files++
	return filepath.Join(g.t.TempDir(), fmt.Sprint(g.files))
}

func (g *guarded) passwordFile() string {
	g.t.Helper()
	file := g.file()
	if err := os.WriteFile(file, []byte(accessPassword), 0o600); err != nil {
		g.t.Fatal(err)
	}
	return file
}

func (g *guarded) damage() {
	g.t.Helper()
	for _, server := range g.servers {
		server.FlushAll(g.t.Context()) // replicas refuse it
	}
	g.register(alice, bob, carol)
	g.store(alice, "{")
	g.do("RPUSH", g.keys.Unread(carol), fold.Op{Kind: fold.Read, Room: "!r", Position: 1}.Text())
	g.store(mxid.UserID("@dan:example.org"), `{"type":"m.push_rules","content":{"global":{}},"filler":"`+strings.Repeat("x", 40<<10)+`","revision":{"version":1,"changes":1,"writers":{"W":1}}}`)
	g.do("DEL", g.keys.Claims(aPusher(string(bob)).Digest()))
	g.spoil(carol, "m.room.tombstone", "m.room.grave")
	for _, d := range damages(g.keys) {
		if d.kind == pusherOutdated || d.kind == pendingPushkeys {
			d.make(g.fixture)
		}
	}
	for _, server := range g.servers {
		server.ScriptFlush(g.t.Context())
		server.ConfigResetStat(g.t.Context()) // for unused
	}
}

// work runs all commands about rules and pushers as the user, until one fails, and returns
// the errors.
func (g *guarded) work() (trouble []string) {
	g.t.Helper()
	g.damage()
	password, archive := g.passwordFile(), g.file()
	for _, call := range []struct {
		want int
		args []string
	}{
		{1, []string{"check"}},
		{0, []string{"repair", "-yes", "-reset-damaged", "-save", g.file()}},
		{0, []string{"refresh-defaults"}},
		{0, []string{"export", archive}},
		{0, []string{"reset", "-yes", string(alice)}},
		{0, []string{"forget", "-yes", string(bob)}},
		{0, []string{"import", "-overwrite", archive}},
		{0, []string{"show", string(bob)}},
		{0, []string{"check"}},
	} {
		args := append(slices.Clone(call.args), "-redis-password-file", password)
		if r := g.ctl(args...); r.status != call.want {
			return append(g.denied(), fmt.Sprintf("%s: status %d\n%s%s", call.args[0], r.status, r.stdout, r.stderr))
		}
	}
	return g.denied()
}

const pushctlACL = "### ACL: a user for pushctl"

// unused returns the commands in rules that no server has run.
func (g *guarded) unused(rules []string) []string {
	g.t.Helper()
	return slices.DeleteFunc(slices.Clone(rules), func(rule string) bool {
		command, isCommand := strings.CutPrefix(rule, "+")
		return !isCommand || slices.ContainsFunc(g.servers, func(server *redis.Client) bool {
			return strings.Contains(server.Info(g.t.Context(), "commandstats").Val(), "cmdstat_"+command+":")
		})
	})
}

// The test also fails for rights that no command needs.
func TestTheACLOfThePageIsEnoughForPushctl(t *testing.T) {
	t.Parallel()
	redistest.Require(t)
	name, rules := operatorsUser(t, pushctlACL)
	server := redistest.Single(t)
	single := newGuarded(t, name, []*redistest.Server{server}, "-redis", server.Addr())
	single.where = []string{"-redis", "redis://" + name + "@" + server.Addr()}
	unused := rules
	for where, g := range map[string]*guarded{"single": single, "cluster": guardedOnCluster(t, name, redistest.Cluster(t, 3, 0))} {
		g.grant(rules)
		for _, trouble := range g.work() {
			t.Errorf("%s, with the rights of the page: %s", where, trouble)
		}
		unused = g.unused(unused)
	}
	for _, rule := range unused {
		// These commands are for moving slots.
		if rule != "+asking" && rule != "+cluster|getkeysinslot" && rule != "+type" && rule != "+exists" {
			t.Errorf("no command takes %s", rule)
		}
	}
}

// The read-only user also has the rights for what is missing, is moving or must be examined twice.
func TestTheACLOfThePageIsEnoughToCheck(t *testing.T) {
	t.Parallel()
	redistest.Require(t)
	name, rules := operatorsUser(t, "### ACL: a read-only user")
	server, cluster := redistest.Single(t), redistest.Cluster(t, 3, 0)
	single := newGuarded(t, name, []*redistest.Server{server}, "-redis", server.Addr())
	single.where = []string{"-redis", "redis://" + name + "@" + server.Addr()}
	unused := rules
	for where, g := range map[string]*guarded{"single": single, "cluster": guardedOnCluster(t, name, cluster)} {
		g.damage()
		g.grant(rules)
		password, event := g.passwordFile(), fileWith(t, lunch)
		g.checkAsGuarded(where, password, event)
		if where == "cluster" {
			key := g.keys.Rules(bob)
			slot := redisclient.SlotOf(key)
			from, err := cluster.MasterOf(t.Context(), slot)
			if err != nil {
				t.Fatal(err)
			}
			masters := cluster.Masters()
			move, err := cluster.BeginMove(t.Context(), slot, masters[(slices.Index(masters, from)+1)%len(masters)])
			if err != nil {
				t.Fatal(err)
			}
			if err := move.MoveKeys(t.Context(), key); err != nil {
				t.Fatal(err)
			}
			g.checkAsGuarded("cluster with a moving slot", password, event)
		}
		unused = g.unused(unused)
	}
	for _, rule := range unused {
		// The first three are for a person with redis-cli, the others for a move that was interrupted.
		if !slices.Contains([]string{"+type", "+hkeys", "+memory|usage", "+exists", "+cluster|getkeysinslot"}, rule) {
			t.Errorf("no command takes %s", rule)
		}
	}
}

func (g *guarded) checkAsGuarded(where, password, event string) {
	g.t.Helper()
	for want, calls := range map[int][][]string{
		exitProblems: {{"check", "-list"}, {"show", "@unknown:example.org"}, {"explain", "@unknown:example.org", event}},
		exitOK:       {{"show", string(bob)}, {"explain", string(bob), event}, {"export", g.file()}},
	} {
		for _, args := range calls {
			if r := g.ctl(append(args, "-redis-password-file", password)...); r.status != want {
				g.t.Errorf("%s, %s: status %d\n%s", where, args, r.status, r.stderr)
			}
		}
	}
	for _, refusal := range g.denied() {
		g.t.Errorf("%s: %s", where, refusal)
	}
}

func TestTheACLOfThePageIsEnoughForQueues(t *testing.T) {
	t.Parallel()
	redistest.Require(t)
	looks := [][]string{{"queues"}, {"queues", "show", string(alice)}, {"gateways"}, {"check"}}
	changes := [][]string{
		{"queues", "retry", string(alice), "-yes"}, {"queues", "flush", string(alice), "-yes"},
		{"gateways", "hold", "push.example.org", "-yes"}, {"gateways", "open", "push.example.org", "-yes"}, {"forget", "-yes", string(alice)},
		{"repair", "-yes"},
	}
	_, toLook := operatorsUser(t, "### ACL: more for pushctl, where hosts include `pushfx.Delivery`")
	_, toChange := operatorsUser(t, "### ACL: more for pushctl to change the queue")
	for heading, more := range map[string][]string{"### ACL: a read-only user": toLook, pushctlACL: slices.Concat(toLook, toChange)} {
		name, rules := operatorsUser(t, heading)
		server := redistest.Single(t)
		g := newGuarded(t, name, []*redistest.Server{server}, "-redis", server.Addr())
		d := g.deliver(1)
		defer d.stop()
		g.where = []string{"-redis", "redis://" + name + "@" + server.Addr()}
		password, calls := g.passwordFile(), looks
		if heading == pushctlACL {
			calls = slices.Concat(looks, changes)
		}
		d.away(alice)
		d.notify(alice)
		g.grant(slices.Concat(rules, more))
		for _, args := range calls {
			if args[0] == "repair" {
				g.damageQueue()
			}
			if r := g.ctl(append(args, "-redis-password-file", password)...); r.status != exitOK {
				t.Errorf("%s, %s: status %d, denied %v\n%s", name, args, r.status, g.denied(), r.stdout)
			}
		}
		for _, rule := range g.unused(more) {
			t.Errorf("%s: no command takes %s", name, rule)
		}
	}
}

// damageQueue makes each problem of a queue with one shard that repair mends.
func (g *guarded) damageQueue() {
	waits(g.keys, time.Now().Add(2*content.MaxWait).UnixMicro())(g.fixture)
	g.do("DEL", g.keys.ShardGates(0))
	g.do("EXPIRE", g.keys.UserLog(alice), 3600)
	g.do("SET", g.keys.DeliveryFormat(), stored.DeliveryFormatText(1))
}

var pushctlCommand = regexp.MustCompile("`pushctl ([a-z-]+[^`]*)`")

func TestCommandsOfThePageParse(t *testing.T) {
	t.Parallel()
	pages, err := operations.Pages()
	if err != nil {
		t.Fatal(err)
	}
	found := pushctlCommand.FindAllStringSubmatch(pages, -1)
	if len(found) < 3 {
		t.Fatalf("the page has %d commands of pushctl", len(found))
	}
	for _, one := range found {
		words := strings.Fields(one[1])
		c, rest, found := findCommand(words)
		if !found {
			t.Errorf("pushctl has no %s", one[1])
			continue
		}
		f := newFlags(c)
		if _, err := f.parseAll(rest); err != nil {
			t.Errorf("pushctl %s: %v", one[1], err)
		}
	}
}

// TestTheCommandForUnreadableDataRepairsIt follows the page's row about the alert.
func TestTheCommandForUnreadableDataRepairsIt(t *testing.T) {
	t.Parallel()
	b := onOne(t)
	b.register(alice, bob)
	b.store(alice, "{")
	_, row, found := strings.Cut(operatorsPage(t, "## Metrics and alerts"), "| `PushDataUnreadable` |")
	if !found {
		t.Fatal("the page does not explain PushDataUnreadable")
	}
	row, _, _ = strings.Cut(row, "\n")
	found = false
	for _, command := range pushctlCommand.FindAllStringSubmatch(row, -1) {
		words := strings.Fields(command[1])
		if i := slices.Index(words, "FILE"); i >= 0 {
			words[i] = filepath.Join(t.TempDir(), "saved")
		}
		b.ctl(words...)
		found = found || words[0] == "repair"
	}
	if r := b.ctl("check"); r.status != exitOK || !found {
		t.Errorf("after the commands of the page:\n%s", r.stdout)
	}
}
