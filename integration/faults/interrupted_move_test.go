package faults

import (
	"context"
	"net"
	"net/http"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.uber.org/fx"

	"github.com/pushfx/pushfx/integration/hosttest"
	"github.com/pushfx/pushfx/integration/operations"
	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/redisclient"
	"github.com/pushfx/pushfx/module/redistest"
)

// interruptedMove is a cluster on which the source of a slot's move has died, and its replica, which does not know
// of the move, has taken over.
type interruptedMove struct {
	t       *testing.T
	cluster *redistest.ClusterServers
	source  *redistest.Server
	target  *redistest.Server // has the keys
	owner   *redistest.Server // has replaced the source
	slot    int
	host    *hosttest.Host
	push    module.HostService
	moved   string          // a user whose keys have moved
	before  hosttest.Answer // answer to the read of the whole set
}

const ownRule = "/pushrules/global/room/!own:example.org"

// newMove moves the keys of one user and leaves the others.
func newMove(t *testing.T) *interruptedMove {
	t.Helper()
	cluster := redistest.Cluster(t, 3, 1, "--cluster-require-full-coverage", "no")
	m := &interruptedMove{t: t, cluster: cluster, moved: hosttest.NewUser()}
	client := cluster.Client(t)
	m.host = hosttest.StartHost(t, client, fx.Populate(&m.push))
	m.host.Do(m.moved, http.MethodGet, hosttest.V3+"/pushrules/", "")
	m.host.Do(m.moved, http.MethodPut, hosttest.V3+ownRule, `{"actions":[]}`)
	m.host.Do(m.moved, http.MethodPost, hosttest.V3+"/pushers/set", hosttest.HTTPPusher("app", m.moved))
	m.before = m.host.Do(m.moved, http.MethodGet, hosttest.V3+"/pushrules/", "")
	if m.before.Status != http.StatusOK || !strings.Contains(m.before.Body, "!own:") {
		t.Fatalf("before: %s", m.before)
	}
	m.slot = redisclient.SlotOf(hosttest.EventKey(m.moved))
	source, err := cluster.MasterOf(t.Context(), m.slot)
	if err != nil {
		t.Fatal(err)
	}
	m.source = source
	if m.target, err = hosttest.OtherMaster(t.Context(), cluster, m.slot); err != nil {
		t.Fatal(err)
	}
	move, err := cluster.BeginMove(t.Context(), m.slot, m.target)
	if err == nil {
		err = move.MoveKeys(t.Context(), hosttest.EventKey(m.moved), hosttest.PushersKey(m.moved))
	}
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func (m *interruptedMove) stopSource() {
	m.t.Helper()
	m.source.Stop()
	m.owner = m.takeover(m.slot, m.source)
	nodes, err := m.owner.Client(m.t).ClusterNodes(m.t.Context()).Result()
	if err != nil {
		m.t.Fatal(err)
	}
	if strings.Contains(nodes, "["+strconv.Itoa(m.slot)+"->-") {
		m.t.Skip("this server's replicas know of moves, so no takeover interrupts a move")
	}
}

// restartTarget lets a replica of the target take over, and restarts the target as its replica.
func (m *interruptedMove) restartTarget() {
	m.t.Helper()
	slot := 0
	for owner := m.source; owner != m.target; slot += 1000 {
		var err error
		if owner, err = m.cluster.MasterOf(m.t.Context(), slot); err != nil {
			m.t.Fatal(err)
		}
	}
	m.target.Stop()
	next := m.takeover(slot-1000, m.target)
	m.restart(m.target)
	m.target = next
}

func (m *interruptedMove) takeover(slot int, from *redistest.Server) *redistest.Server {
	m.t.Helper()
	next, err := m.cluster.WaitTakeover(m.t.Context(), slot, from)
	if err != nil {
		m.t.Fatal(err)
	}
	return next
}

func (m *interruptedMove) restart(server *redistest.Server) {
	m.t.Helper()
	server.Start()
	hosttest.Eventually(m.t, "the server is a replica", func() bool {
		role, err := server.Client(m.t).Do(m.t.Context(), "ROLE").Slice()
		return err == nil && role[0] == "slave"
	})
}

func (m *interruptedMove) served(user string) {
	m.t.Helper()
	for deadline := time.Now().Add(hosttest.Never); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		if a := m.host.Do(user, http.MethodGet, hosttest.V3+"/pushrules/", ""); a.Status == http.StatusOK {
			return
		}
	}
	failures := m.host.Logs.FilterMessage("request failed").All()
	m.t.Logf("%v", failures[len(failures)-1].ContextMap())
	m.t.Errorf("%s is not served", user)
}

func TestAnInterruptedMoveLosesNoRulesOrPushers(t *testing.T) {
	t.Parallel()
	m := newMove(t)
	m.stopSource()
	m.served("@somebody:example.org")
	user := mxid.UserID(m.moved)
	for range few(1, []int{1, 2, 3}) {
		for _, request := range []string{
			"GET /pushers", "GET /pushrules/", "GET /pushrules/global/", "GET " + ownRule, "GET " + ownRule + "/enabled", "GET " + ownRule + "/actions",
			"PUT " + ownRule + ` {"actions":["notify"]}`, "PUT " + ownRule + `/enabled {"enabled":false}`, "DELETE " + ownRule,
			"POST /pushers/set " + hosttest.HTTPPusher("app", "other"),
			`POST /pushers/set {"kind":null,"app_id":"app","pushkey":"` + m.moved + `"}`,
		} {
			if a := m.host.Ask(t, m.moved, request); a.Status != http.StatusServiceUnavailable {
				t.Errorf("%s: got %s", request, a)
			}
		}
		for name, call := range map[string]func(context.Context) error{
			"EnsureDefaults":      func(ctx context.Context) error { return m.push.EnsureDefaults(ctx, user) },
			"RefreshDefaults":     func(ctx context.Context) error { return m.push.RefreshDefaults(ctx, user) },
			"RemoveDevicePushers": func(ctx context.Context) error { return m.push.RemoveDevicePushers(ctx, user, hosttest.Device) },
			"ForgetUser":          func(ctx context.Context) error { return m.push.ForgetUser(ctx, user) },
		} {
			if err := call(t.Context()); err == nil {
				t.Errorf("%s reports no error", name)
			}
		}
	}
	m.restart(m.source)
	if err := m.cluster.Fix(t.Context(), m.slot); err != nil {
		t.Fatal(err)
	}
	m.wantRepaired()
}

func (m *interruptedMove) wantRepaired() {
	m.t.Helper()
	m.served(m.moved)
	if a := m.host.Do(m.moved, http.MethodGet, hosttest.V3+"/pushrules/", ""); a.Body != m.before.Body {
		m.t.Errorf("after the repair: got %s\nwant %s", a, m.before)
	}
	if a := m.host.Do(m.moved, http.MethodGet, hosttest.V3+"/pushers", ""); !strings.Contains(a.Body, m.moved) {
		m.t.Errorf("after the repair: %s", a)
	}
}

// do runs the commands of the page that contain a text, and returns their output.
func (m *interruptedMove) do(part string, holder *redistest.Server) string {
	m.t.Helper()
	at := func(server *redistest.Server) string {
		host, port, _ := net.SplitHostPort(server.Addr())
		return "-h " + host + " -p " + port
	}
	fill := strings.NewReplacer("ANY:6379", m.owner.Addr(), "-h HOLDER", at(holder), "-h OWNER", at(m.owner),
		"SLOT SLOT", "SLOT "+strconv.Itoa(m.slot), "SETSLOT SLOT", "SETSLOT "+strconv.Itoa(m.slot), "KEY", hosttest.EventKey(m.moved),
		">>saved", ">>"+filepath.Join(m.t.TempDir(), "saved"))
	var said []byte
	for _, block := range shellBlocks(operations.Part(m.t, "### An interrupted move")) {
		if !strings.Contains(block, part) {
			continue
		}
		ctx, cancel := context.WithTimeout(m.t.Context(), time.Minute)
		defer cancel()
		out, _ := exec.CommandContext(ctx, "sh", "-c", fill.Replace(block)).CombinedOutput() // the output has more than a status
		said = append(said, out...)
	}
	if len(said) == 0 {
		m.t.Fatalf("the page has no commands with %q", part)
	}
	return string(said)
}

func shellBlocks(part string) (blocks []string) {
	for {
		_, rest, found := strings.Cut(part, "```sh\n")
		if !found {
			return blocks
		}
		block, after, _ := strings.Cut(rest, "```")
		blocks, part = append(blocks, block), after
	}
}

func (m *interruptedMove) fix() string { return m.do("--cluster fix", m.target) }

func TestTheRepairOfThePageEndsAnInterruptedMove(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("redis-cli"); err != nil {
		t.Skip("there is no redis-cli")
	}
	for _, test := range few(1, []struct {
		name   string
		befall func(*interruptedMove)
	}{
		{"both died", func(m *interruptedMove) {
			m.stopSource()
			m.restart(m.source)
			m.restartTarget()
			m.do("IMPORTING", m.target)
			hosttest.Eventually(m.t, "the repair moves the keys", func() bool { // it may find that nodes disagree, and move nothing
				m.fix()
				owner, err := m.cluster.MasterOf(m.t.Context(), m.slot)
				return err == nil && owner.Client(m.t).Exists(m.t.Context(), hosttest.EventKey(m.moved)).Val() == 1
			})
		}},
		{"the source died", func(m *interruptedMove) {
			m.stopSource()
			if said := m.fix(); !strings.Contains(said, "unreachable masters is dangerous") {
				m.t.Errorf("it is not refused: %s", said)
			}
			m.restart(m.source)
			m.fix()
		}},
		{"the target died", func(m *interruptedMove) {
			m.owner = m.source
			m.restartTarget()
			m.fix()
		}},
		{"both have the key", func(m *interruptedMove) {
			m.stopSource()
			m.restart(m.source)
			if err := m.owner.Client(m.t).Set(m.t.Context(), hosttest.EventKey(m.moved), "{}", 0).Err(); err != nil {
				m.t.Fatal(err)
			}
			if said := m.fix(); !strings.Contains(said, "Target key exists") {
				m.t.Errorf("it does not say so: %s", said)
			}
			m.do("DEL", m.owner)
			m.fix()
		}},
	}) {
		t.Run(test.name, func(t *testing.T) {
			m := newMove(t)
			test.befall(m)
			m.wantRepaired()
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			if err := m.cluster.WaitWhole(ctx); err != nil {
				t.Error(err)
			}
		})
	}
}
