package main

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/pushfx/pushfx/integration/operations"
	"github.com/pushfx/pushfx/module/delivery/channel"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/redisclient"
	"github.com/pushfx/pushfx/module/redistest"
	"github.com/pushfx/pushfx/module/stored"
	"github.com/pushfx/pushfx/module/unread/fold"
)

// guarded is a fixture on which pushctl logs in as a user with few rights.
type guarded struct {
	*fixture
	operations.Guarded
	cluster *redistest.ClusterServers // nil without a cluster
	login   []string                  // the flags of the connection, with a place for the user
	files   string                    // a folder
}

func newGuarded(t *testing.T, fixture *fixture, servers []*redistest.Server, login ...string) *guarded {
	g := &guarded{fixture: fixture, login: login, files: t.TempDir()}
	for _, server := range servers {
		g.Guarded = append(g.Guarded, server.Client(t))
	}
	for name, text := range map[string]string{"password": operations.Password, "event": lunch} {
		if err := os.WriteFile(filepath.Join(g.files, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return g
}

func guardedOnOne(t *testing.T) *guarded {
	server := redistest.Single(t)
	return newGuarded(t, newFixture(t, "-redis", server.Addr()), []*redistest.Server{server}, "-redis", "redis://USER@"+server.Addr())
}

func guardedOnCluster(t *testing.T, cluster *redistest.ClusterServers) *guarded {
	all := cluster.Addrs()
	g := newGuarded(t, newFixture(t, "-redis-mode", "cluster", "-redis", strings.Join(all, ",")), cluster.Nodes(),
		"-redis-mode", "cluster", "-redis", "redis://USER@"+all[0]+"?addr="+all[1])
	g.cluster = cluster
	return g
}

// as runs commands of pushctl as a user, "0 check": the status and the command. FILES is a folder.
func (g *guarded) as(user string, calls ...string) (last result) {
	g.t.Helper()
	for _, call := range calls {
		args := append(strings.Fields(call+" -redis-password-file FILES/password"), g.login...)
		for i := range args {
			args[i] = strings.NewReplacer("USER@", user+"@", "FILES", g.files).Replace(args[i])
		}
		last = runIn(g.t.Context(), noEnvironment, args[1:]...)
		if args[0] != strconv.Itoa(last.status) {
			g.t.Errorf("%s, %s: status %d\n%s%s", user, call, last.status, last.stdout, last.stderr)
		}
	}
	for _, refused := range g.Refused(g.t, user) {
		if !strings.HasSuffix(refused, "client|setinfo") {
			g.t.Errorf("%s: %s", user, refused)
		}
	}
	return last
}

func (g *guarded) damage() {
	g.t.Helper()
	for _, server := range g.Guarded {
		server.FlushAll(g.t.Context()) // replicas refuse it
	}
	g.register(alice, bob, carol)
	g.store(alice, "{")
	g.do("RPUSH", g.keys.Unread(carol), fold.Op{Kind: fold.Read, Room: "!r", Position: 1}.Text())
	g.store(mxid.UserID("@dan:example.org"), `{"type":"m.push_rules","content":{"global":{}},"filler":"`+strings.Repeat("x", 40<<10)+`","revision":{"version":1,"changes":1,"writers":{"W":1}}}`)
	second := aPusher("second")
	g.do("HSET", g.keys.Pushers(bob), second.Field(), string(second.AppendStored(nil)))
	g.spoil(carol, "m.room.tombstone", "m.room.grave")
	for _, d := range damages(g.keys) {
		if d.kind == pusherTaken {
			d.make(g.fixture)
		}
	}
}

// changes runs all commands about rules and pushers.
func (g *guarded) changes(user string) {
	g.as(user, "1 check", "0 repair -yes -reset-damaged -save FILES/saved"+strconv.Itoa(len(g.Guarded)), "0 refresh-defaults -yes",
		"0 export FILES/archive", "0 reset -yes @alice:example.org", "0 forget -yes @bob:example.org", "0 import -overwrite FILES/archive",
		"0 show @bob:example.org", "0 check")
}

// looks runs the commands that change nothing, in a cluster also while a slot moves. What is missing, is moving or must
// be examined twice needs rights, too.
func (g *guarded) looks(user string) {
	look := func(archive string) {
		g.as(user, "1 check -list", "1 show @unknown:example.org", "1 explain @unknown:example.org FILES/event",
			"0 show @bob:example.org", "0 explain @bob:example.org FILES/event", "0 export FILES/"+archive)
	}
	look("looked")
	if g.cluster == nil {
		return
	}
	key := g.keys.Rules(bob)
	slot := redisclient.SlotOf(key)
	from, err := g.cluster.MasterOf(g.t.Context(), slot)
	if err != nil {
		g.t.Fatal(err)
	}
	masters := g.cluster.Masters()
	move, err := g.cluster.BeginMove(g.t.Context(), slot, masters[(slices.Index(masters, from)+1)%len(masters)])
	if err == nil {
		err = move.MoveKeys(g.t.Context(), key)
	}
	if err != nil {
		g.t.Fatal(err)
	}
	look("again")
}

const (
	pushctlACL   = "### ACL: a user for pushctl"
	checkerACL   = "### ACL: a read-only user"
	lookQueueACL = "### ACL: more for pushctl, where hosts include `pushfx.Delivery`"
)

// The rights of the page are enough, and each is needed.
func TestTheACLOfThePageForPushctl(t *testing.T) {
	t.Parallel()
	places := []*guarded{guardedOnOne(t), guardedOnCluster(t, redistest.Cluster(t, 3, 0))}
	for _, role := range []struct {
		heading string
		do      func(*guarded, string)
		spare   string // for a person with redis-cli, and for slots that move or an interrupted move
	}{
		{pushctlACL, (*guarded).changes, "+asking +type +exists +cluster|getkeysinslot"},
		{checkerACL, (*guarded).looks, "+type +hkeys +memory|usage +exists +cluster|getkeysinslot"},
	} {
		rights := operations.RightsBelow(t, role.heading)
		unused := rights.Rules
		for _, g := range places {
			g.damage()
			g.Grant(t, rights)
			role.do(g, rights.User)
			unused = g.Unused(t, unused)
		}
		for _, rule := range unused {
			if !slices.Contains(strings.Fields(role.spare), rule) {
				t.Errorf("%s: no command takes %s", rights.User, rule)
			}
		}
	}
}

func TestTheACLOfThePageForQueues(t *testing.T) {
	t.Parallel()
	g := guardedOnOne(t)
	looks := []string{"0 queues", "0 queues show @alice:example.org", "0 gateways", "0 check"}
	for _, role := range []struct {
		headings       []string
		calls, repairs []string
	}{
		{[]string{checkerACL, lookQueueACL}, looks, nil},
		{[]string{pushctlACL, lookQueueACL, "### ACL: more for pushctl to change the queue"}, append(looks,
			"0 queues retry @alice:example.org -yes", "0 queues flush @alice:example.org -yes",
			"0 forget -yes @alice:example.org",
		), []string{"0 repair -yes"}},
	} {
		g.do("FLUSHALL")
		d := g.deliver(1)
		d.away(alice)
		d.notify(alice)
		d.stop()
		rights := operations.RightsBelow(t, role.headings...)
		g.Grant(t, rights)
		g.as(rights.User, role.calls...)
		if role.repairs != nil {
			g.damageQueue()
			g.as(rights.User, role.repairs...)
		}
		if unused := g.Unused(t, operations.RightsBelow(t, role.headings[1:]...).Rules); len(unused) > 0 {
			t.Errorf("%s: no command takes %q", rights.User, unused)
		}
	}
}

// damageQueue makes each problem of a queue with one shard that repair mends.
func (g *guarded) damageQueue() {
	waits(g.keys, time.Now().Add(2*channel.MaxWait).UnixMicro())(g.fixture)
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
	_, row, found := strings.Cut(operations.Part(t, "## Metrics and alerts"), "| `PushDataUnreadable` |")
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
