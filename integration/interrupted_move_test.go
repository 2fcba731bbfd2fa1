package integration

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"go.uber.org/fx"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/redistest"
)

// interruptedMove is a cluster on which the source of a slot's move has died in
// the middle, and its replica has taken over, which knows nothing of the move.
type interruptedMove struct {
	t          *testing.T
	cluster    *redistest.ClusterServers
	source, to *redistest.Server
	next       *redistest.Server // in the place of the source
	slot       int
	host       *host
	push       module.HostService
	moved      string // a user whose keys have moved
	before     answer // of the whole read
}

// ownRule is what the user has beside the default rules.
const ownRule = "/pushrules/global/room/!own:example.org"

// newInterruptedMove moves the keys of one user and stops the source.
func newInterruptedMove(t *testing.T, cluster *redistest.ClusterServers) *interruptedMove {
	t.Helper()
	m := &interruptedMove{t: t, cluster: cluster, moved: newEffectsUser()}
	client := cluster.Client(t)
	m.host = startHost(t, client, fx.Populate(&m.push))
	m.host.do(m.moved, http.MethodGet, v3+"/pushrules/", "")
	m.host.do(m.moved, http.MethodPut, v3+ownRule, `{"actions":[]}`)
	m.host.do(m.moved, http.MethodPost, v3+"/pushers/set", httpPusher("app", m.moved))
	m.before = m.host.do(m.moved, http.MethodGet, v3+"/pushrules/", "")
	if m.before.status != http.StatusOK || !strings.Contains(m.before.body, "!own:") {
		t.Fatalf("before: %s", m.before)
	}
	m.slot = int(client.ClusterKeySlot(t.Context(), eventKey(m.moved)).Val())
	source, err := cluster.MasterOf(t.Context(), m.slot)
	if err != nil {
		t.Fatal(err)
	}
	m.source, m.to = source, (&clusterStage{cluster: cluster}).otherMaster(t, m.slot)
	move, err := cluster.BeginMove(t.Context(), m.slot, m.to)
	if err == nil {
		err = move.MoveKeys(t.Context(), eventKey(m.moved), pushersKey(m.moved))
	}
	if err != nil {
		t.Fatal(err)
	}
	m.source.Stop()
	if m.next, err = cluster.WaitTakeover(t.Context(), m.slot, m.source); err != nil {
		t.Fatal(err)
	}
	return m
}

// eventually waits until the cluster has settled so far that a condition holds.
func (m *interruptedMove) served(user string) {
	m.t.Helper()
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		if a := m.host.do(user, http.MethodGet, v3+"/pushrules/", ""); a.status == http.StatusOK {
			return
		}
	}
	failures := m.host.logs.FilterMessage("request failed").All()
	m.t.Logf("%v", failures[len(failures)-1].ContextMap())
	m.t.Errorf("%s is not served", user)
}

func TestNobodyLosesRulesOrPushersWhereAMoveWasInterrupted(t *testing.T) {
	t.Parallel()
	redistest.Require(t)
	m := newInterruptedMove(t, redistest.Cluster(t, 3, 1, "--cluster-require-full-coverage", "no"))
	m.served("@somebody:example.org")
	user := mxid.UserID(m.moved)
	for range 3 {
		for _, request := range []string{
			"GET /pushrules/", "GET /pushrules/global/", "GET " + ownRule, "GET " + ownRule + "/enabled", "GET " + ownRule + "/actions",
			"PUT " + ownRule + ` {"actions":["notify"]}`, "PUT " + ownRule + `/enabled {"enabled":false}`, "DELETE " + ownRule,
			"POST /pushers/set " + httpPusher("app", "other"),
			`POST /pushers/set {"kind":null,"app_id":"app","pushkey":"` + m.moved + `"}`,
		} {
			if a := m.host.ask(t, m.moved, request); a.status != http.StatusServiceUnavailable {
				t.Errorf("%s: got %s", request, a)
			}
		}
		for name, call := range map[string]func(context.Context) error{
			"EnsureDefaults":      func(ctx context.Context) error { return m.push.EnsureDefaults(ctx, user) },
			"RefreshDefaults":     func(ctx context.Context) error { return m.push.RefreshDefaults(ctx, user) },
			"RemoveDevicePushers": func(ctx context.Context) error { return m.push.RemoveDevicePushers(ctx, user, device) },
			"ForgetUser":          func(ctx context.Context) error { return m.push.ForgetUser(ctx, user) },
		} {
			if err := call(t.Context()); err == nil {
				t.Errorf("%s tells of no error", name)
			}
		}
	}
	if err := m.cluster.SettleMoves(t.Context()); err != nil {
		t.Fatal(err)
	}
	m.served(m.moved)
	if a := m.host.do(m.moved, http.MethodGet, v3+"/pushrules/", ""); a.body != m.before.body {
		t.Errorf("after the repair: got %s\nwant %s", a, m.before)
	}
	if a := m.host.do(m.moved, http.MethodGet, v3+"/pushers", ""); !strings.Contains(a.body, m.moved) {
		t.Errorf("after the repair: %s", a)
	}
}

var _ = errors.New
var _ = fmt.Sprint
