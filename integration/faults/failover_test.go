package faults

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/pushfx/pushfx/integration/hosttest"
	"github.com/pushfx/pushfx/module/redisclient"
	"github.com/pushfx/pushfx/module/redistest"
)

// Two hosts change and read users during manual failovers. Each old master learns late of the takeover. One host
// already uses the new master and changes data there. The other host still reads from the old master and must not
// return the old value.
func TestLinearizableReadsWhileMastersHandOver(t *testing.T) {
	t.Parallel()
	const masters, replicas = 3, 2
	cluster := redistest.Cluster(t, masters, replicas, redistest.AllowDebug(t)...)
	h := &handovers{t: t, cluster: cluster, admins: map[*redistest.Server]*redis.Client{}, last: map[string]int{}}
	for _, server := range cluster.Nodes() {
		h.admins[server] = server.Client(t)
	}
	h.newest = redis.NewClusterClient(&redis.ClusterOptions{ClusterSlots: h.newestView, ContextTimeoutEnabled: true})
	t.Cleanup(func() { h.newest.Close() })
	h.view.Store(h.admins[cluster.Masters()[0]])
	h.older = redis.NewClusterClient(&redis.ClusterOptions{
		Addrs: cluster.Addrs(), ContextTimeoutEnabled: true, ReadTimeout: 2 * time.Second, ClusterStateReloadInterval: time.Hour,
	})
	t.Cleanup(func() { h.older.Close() })
	h.changes, h.reads = hosttest.StartHost(t, h.newest), hosttest.StartHost(t, h.older)

	users := h.userOfEachMaster()
	for _, user := range users {
		hosttest.Eventually(t, "a user with rules", func() bool { // the first read creates them
			return h.changes.Do(user, http.MethodGet, hosttest.V3+"/pushrules/", "").Status == http.StatusOK
		})
		h.change(user)
	}
	for round := range replicas { // each wins only one election, which needs no wait
		for i, user := range users {
			h.failOver(user, cluster.Nodes()[masters+i*replicas+round])
		}
	}
	t.Logf("%d of %d masters learned late that they were replaced", h.late, masters*replicas)
}

type handovers struct {
	t       *testing.T
	cluster *redistest.ClusterServers
	admins  map[*redistest.Server]*redis.Client
	changed int            // number of changes; each stores its number
	last    map[string]int // number of each user's last change
	late    int            // masters that learned late

	view          atomic.Pointer[redis.Client] // the server whose view of the cluster newest has
	newest, older *redis.ClusterClient
	changes       *hosttest.Host // on newest
	reads         *hosttest.Host // on older
}

func (h *handovers) newestView(ctx context.Context) ([]redis.ClusterSlot, error) {
	return h.view.Load().ClusterSlots(ctx).Result() //nolint:staticcheck // CLUSTER SHARDS needs Redis 7
}

func (h *handovers) must(err error) {
	h.t.Helper()
	if err != nil {
		h.t.Fatal(err)
	}
}

func (h *handovers) home(user string) *redistest.Server {
	h.t.Helper()
	master, err := h.cluster.MasterOf(h.t.Context(), redisclient.SlotOf(hosttest.EventKey(user)))
	h.must(err)
	return master
}

func (h *handovers) userOfEachMaster() (users []string) {
	for _, master := range h.cluster.Masters() {
		user := ""
		for i := 0; user == "" || h.home(user) != master; i++ {
			user = fmt.Sprintf("@handed-over-%d:example.org", i)
		}
		users = append(users, user)
	}
	return users
}

const handoverRule = "/pushrules/global/content/number"

func handoverBody(number int) string {
	return fmt.Sprintf(`{"actions":["notify"],"pattern":"%d"}`, number)
}

func (h *handovers) change(user string) {
	h.t.Helper()
	h.changed++
	h.last[user] = h.changed
	if a := h.changes.Do(user, http.MethodPut, hosttest.V3+handoverRule, handoverBody(h.changed)); a.Status != http.StatusOK {
		h.t.Fatalf("a change: %v", a)
	}
}

func (h *handovers) wantNewest(user string) {
	h.t.Helper()
	a := h.reads.Do(user, http.MethodGet, hosttest.V3+handoverRule, "")
	if want := fmt.Sprintf(`"pattern":"%d"`, h.last[user]); a.Status != http.StatusOK || !strings.Contains(a.Body, want) {
		h.t.Errorf("after a change to %s was answered, a read shows %d %s", want, a.Status, a.Body)
	}
}

// failOver lets a replica take over from the user's master, which learns of it late.
func (h *handovers) failOver(user string, replica *redistest.Server) {
	h.t.Helper()
	ctx, cancel := context.WithTimeout(h.t.Context(), time.Minute)
	defer cancel()
	h.must(h.cluster.WaitWhole(ctx))
	master := h.home(user)
	h.wantNewest(user) // so that this host knows the old master
	var reading sync.WaitGroup
	defer reading.Wait()
	defer h.keepUninformed(master)()
	h.must(h.admins[replica].ClusterFailover(ctx).Err())
	h.follow(ctx, user, replica)
	h.change(user)
	if h.isMaster(ctx, master) {
		h.late++
	}
	var read atomic.Bool
	reading.Go(func() {
		defer read.Store(true)
		h.wantNewest(user)
	})
	for h.isMaster(ctx, master) && !read.Load() && !h.holdsBack(ctx, master) {
		h.must(sleep(ctx, time.Millisecond))
	}
}

// keepUninformed keeps a master from learning of its replacement for up to a second, or until end is called.
// Servers before Redis 7 cannot do so.
func (h *handovers) keepUninformed(master *redistest.Server) (end func()) {
	drop := func(packets int) error {
		return h.admins[master].Do(h.t.Context(), "DEBUG", "DROP-CLUSTER-PACKET-FILTER", packets).Err()
	}
	const pongs, none = 1, -1 // a new master announces itself in pongs
	if err := drop(pongs); err != nil {
		h.t.Log(err)
		return func() {}
	}
	return func() { h.must(drop(none)) }
}

// follow waits until a server is a master and one of the hosts sends a user's requests there.
func (h *handovers) follow(ctx context.Context, user string, to *redistest.Server) {
	h.t.Helper()
	for !h.isMaster(ctx, to) {
		h.must(sleep(ctx, time.Millisecond))
	}
	h.view.Store(h.admins[to])
	for {
		node, err := h.newest.MasterForKey(ctx, hosttest.EventKey(user))
		h.must(err)
		if strings.HasSuffix(to.Addr(), node.Options().Addr) { // without a host here
			return
		}
		h.newest.ReloadState(ctx)
		h.must(sleep(ctx, time.Millisecond))
	}
}

func (h *handovers) isMaster(ctx context.Context, server *redistest.Server) bool {
	h.t.Helper()
	role, err := h.admins[server].Do(ctx, "ROLE").Slice()
	h.must(err)
	return role[0] == "master"
}

// holdsBack reports whether a master delays a client's command.
func (h *handovers) holdsBack(ctx context.Context, master *redistest.Server) bool {
	h.t.Helper()
	clients, err := h.admins[master].ClientList(ctx).Result()
	h.must(err)
	return strings.Contains(clients, " flags=b ")
}
