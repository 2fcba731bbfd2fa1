package faults

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"hash/fnv"
	"io"
	"math/rand/v2"
	"net"
	"slices"
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

var (
	chaosTime = flag.Duration("chaos", 0, "how long each row of the world repeats its faults; all fault tests have all their cases then, not a few")
	chaosSeed = flag.Uint64("chaos.seed", 0, "repeats the faults of the row that logged this seed")
)

// few returns the first n cases, or all cases with -chaos.
func few[T any](n int, cases []T) []T {
	if *chaosTime > 0 {
		return cases
	}
	return cases[:n]
}

// isPlayed reports whether a test plays case n in a turn. Each case has one of the turns, or with -chaos all of them.
func isPlayed(n, turn, turns int) bool {
	return *chaosTime > 0 || n%turns == turn%turns
}

// row is a promise: hosts that share one Redis do the work while the faults occur, one in each round, and the judge of
// the work accepts every history.
type row struct {
	name    string
	servers func(*testing.T) *servers
	work    work
	faults  []chaosFault
	more    []chaosFault // only with -chaos
	rounds  int          // of all faults; 0 means 1
	lossy   lostReplies  // all the time
}

// lostReplies says for each n to which commands every n-th reply gets lost.
type lostReplies map[int][]string

// work is what hosts do in a row.
type work interface {
	// start starts the hosts. The function begins a round: a history with new data.
	start(w *world) func(ctx context.Context, s *strike) (history, error)
}

// history is the work of one round.
type history interface {
	// work returns when the work is done, or soon after ctx ends.
	work(ctx context.Context)

	// waitServed waits until each user, or each host, has been served by a request sent from now on.
	waitServed(ctx context.Context) error

	// judge reports broken promises to the test.
	judge(ctx context.Context, s *strike) error
}

// world is the servers and hosts of a row.
type world struct {
	*servers
	t         *testing.T
	processes []*process // the hosts that a fault can kill
}

const (
	roundLimit  = 3 * time.Minute // many times a round's duration
	servedLimit = time.Minute     // many times the usual wait until all users are served
)

// play plays the rows. More of them run at once than there are processors, because they mostly wait.
func play(t *testing.T, rows ...row) {
	t.Helper()
	redistest.Require(t)
	var all sync.WaitGroup
	for _, r := range rows {
		all.Go(func() { t.Run(r.name, r.play) })
	}
	all.Wait()
}

// play plays all faults of a row, each time in random order, until the time is up.
func (r row) play(t *testing.T) {
	seed := *chaosSeed
	switch {
	case seed != 0:
	case *chaosTime > 0:
		seed = rand.Uint64()
	default:
		seed = seedOf(t.Name())
	}
	t.Logf("seed %d", seed)
	w := &world{servers: r.servers(t), t: t}
	for n, commands := range r.lossy {
		w.way.LoseReplies(t.Context(), n, commands...)
	}
	begin := r.work.start(w)
	faults := slices.Clone(r.faults)
	if *chaosTime > 0 {
		faults = append(faults, r.more...)
	}
	order := rand.New(rand.NewPCG(seed, 0))
	end := time.Now().Add(*chaosTime)
	for n := 0; (n < len(faults)*max(1, r.rounds) || w.sentinel == nil && time.Now().Before(end)) && !t.Failed(); n++ { // a sentinel's master is lost once
		if n%len(faults) == 0 {
			order.Shuffle(len(faults), func(i, j int) { faults[i], faults[j] = faults[j], faults[i] })
		}
		s := &strike{world: w, chaosFault: faults[n%len(faults)], number: n, random: rand.New(rand.NewPCG(seed, uint64(n+1))), start: time.Now(), done: make(chan struct{})}
		if err := s.round(t.Context(), begin); err != nil {
			t.Fatalf("%s: %v", s, err)
		}
	}
}

// round causes one fault during a history, and judges the history.
func (s *strike) round(ctx context.Context, begin func(context.Context, *strike) (history, error)) error {
	ctx, cancel := context.WithTimeout(ctx, roundLimit)
	defer cancel()
	var err error
	if s.history, err = begin(ctx, s); err != nil {
		return err
	}
	if err := s.during(ctx); err != nil {
		return err
	}
	return s.history.judge(ctx, s)
}

// during lets a history go on from before the fault until the servers have recovered and serve every user.
func (s *strike) during(ctx context.Context) error {
	working, stop := context.WithCancel(ctx)
	var ended sync.WaitGroup
	defer ended.Wait()
	defer stop()
	ended.Go(func() {
		defer close(s.done)
		s.history.work(working)
	})
	served := func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, servedLimit)
		defer cancel()
		return s.history.waitServed(ctx)
	}
	return inTurn(ctx, served, s.steady, s.strike, served, s.waitRecovered, s.steady)
}

// waitRecovered waits until the servers have recovered.
func (s *strike) waitRecovered(ctx context.Context) error {
	if s.repair != nil {
		s.repair()
	}
	err := s.waitWhole(ctx)
	s.whole = s.now()
	return err
}

// steady is a while without a fault, but for work that has an end of its own.
func (s *strike) steady(ctx context.Context) error {
	select {
	case <-s.done:
		return nil
	case <-time.After(s.around):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (s *strike) strike(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if s.lossy {
		s.way.LoseReplies(ctx, 5, either...)
	}
	s.struck = s.now()
	s.noticed = s.struck
	err := s.cause(ctx, s)
	s.over = s.now()
	return err
}

func inTurn(ctx context.Context, do ...func(context.Context) error) error {
	for _, step := range do {
		if err := step(ctx); err != nil {
			return err
		}
	}
	return nil
}

func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

// seedOf returns a seed for each history, the same in every run.
func seedOf(name string) uint64 {
	hash := fnv.New64a()
	io.WriteString(hash, name)
	return hash.Sum64()
}

// servers is one Redis: a single server, a server with a replica, a server with a sentinel, or a cluster of three
// masters.
type servers struct {
	cluster  *redistest.ClusterServers  // nil for other servers
	sentinel *redistest.SentinelServers // nil for other servers
	nodes    []*redistest.Server
	master   atomic.Pointer[redistest.Server] // unless the servers are a cluster
	admin    redis.UniversalClient
	way      hosttest.Proxies // to the nodes
	failover time.Time        // end of the last manual failover
}

// oneMaster returns servers that are no cluster. The first node is the master.
func oneMaster(t *testing.T, nodes ...*redistest.Server) *servers {
	t.Helper()
	s := &servers{nodes: nodes, admin: nodes[0].Client(t), way: hosttest.NewProxies(t, nodes...)}
	s.master.Store(nodes[0])
	return s
}

func singleServer(args ...string) func(*testing.T) *servers {
	return func(t *testing.T) *servers {
		t.Helper()
		return oneMaster(t, redistest.Single(t, args...))
	}
}

// masterAndReplica is for faults that make the replica the master; then the hosts reach that one.
func masterAndReplica(t *testing.T) *servers {
	t.Helper()
	return oneMaster(t, redistest.Replicated(t, 1, "--repl-diskless-sync", "no").Servers()...)
}

func clusterOf3(replicas int, args ...string) func(*testing.T) *servers {
	return func(t *testing.T) *servers {
		t.Helper()
		c := redistest.Cluster(t, 3, replicas, args...)
		return &servers{cluster: c, nodes: c.Nodes(), admin: c.Client(t), way: hosttest.NewProxies(t, c.Nodes()...)}
	}
}

func withSentinel(t *testing.T) *servers {
	t.Helper()
	sentinel := redistest.Sentinel(t)
	s := oneMaster(t, sentinel.Master(), sentinel.Replica())
	s.sentinel = sentinel
	return s
}

// client returns a client with the settings of the host developer's page, but that a client of one master repeats a
// command so often; -1 means never, so that the store sees lost replies.
func (s *servers) client(t *testing.T, retries int) (client redis.UniversalClient) {
	t.Helper()
	const patience = 2 * time.Second
	if s.cluster == nil {
		client = redis.NewClient(&redis.Options{
			Addr: s.nodes[0].Addr(), Dialer: s.dialMaster, ContextTimeoutEnabled: true, ReadTimeout: patience, MaxRetries: retries,
			MaintNotificationsConfig: hosttest.NoMaintenance(),
		})
	} else {
		client = redis.NewClusterClient(&redis.ClusterOptions{
			Addrs: s.addrs(), Dialer: s.way.Dial, ContextTimeoutEnabled: true, ReadTimeout: patience,
			ClusterStateReloadInterval: 2 * time.Second, MaintNotificationsConfig: hosttest.NoMaintenance(),
		})
	}
	t.Cleanup(func() { client.Close() })
	return client
}

func (s *servers) dialMaster(ctx context.Context, network, _ string) (net.Conn, error) {
	return s.way.Dial(ctx, network, s.master.Load().Addr())
}

func (s *servers) addrs() (addrs []string) {
	for _, node := range s.nodes {
		addrs = append(addrs, node.Addr())
	}
	return addrs
}

// masterOf returns the server of a slot.
func (s *servers) masterOf(ctx context.Context, slot int) (*redistest.Server, error) {
	if s.cluster == nil {
		return s.master.Load(), nil
	}
	return s.cluster.MasterOf(ctx, slot)
}

// replicaOf returns the only replica of a master.
func (s *servers) replicaOf(ctx context.Context, master *redistest.Server) (*redistest.Server, error) {
	if s.cluster == nil {
		return s.nodes[1-slices.Index(s.nodes, master)], nil
	}
	replicas, err := s.cluster.ReplicasOf(ctx, master)
	if err == nil && len(replicas) != 1 {
		err = fmt.Errorf("the master at %s has %d replicas", master.Addr(), len(replicas))
	}
	if err != nil {
		return nil, err
	}
	return replicas[0], nil
}

func (s *servers) masters() int {
	if s.cluster == nil {
		return 1
	}
	return len(s.cluster.Masters())
}

// place is data with one slot, of a user if it has a name.
type place struct {
	name string
	keys []string
	home *redistest.Server // updated by the faults; nil if unknown
}

func (p *place) slot() int { return redisclient.SlotOf(p.keys[0]) }

// placesOfEach returns the places of new users, as many on each master, one master after the other. All keys of a user
// are on one master.
func (s *servers) placesOfEach(ctx context.Context, count int, keys func(user string) []string) (places []*place, err error) {
	at := map[*redistest.Server][]*place{}
	for found := 0; found < count*s.masters(); {
		user := hosttest.NewUser()
		p := &place{name: user, keys: keys(user)}
		homes := make([]*redistest.Server, len(p.keys))
		for i, key := range p.keys {
			if homes[i], err = s.masterOf(ctx, redisclient.SlotOf(key)); err != nil {
				return nil, err
			}
		}
		if p.home = homes[0]; len(slices.Compact(homes)) == 1 && len(at[p.home]) < count {
			at[p.home] = append(at[p.home], p)
			found++
		}
	}
	for _, node := range s.nodes {
		places = append(places, at[node]...)
	}
	return places, nil
}

// waitWhole waits until the servers have recovered from a fault.
func (s *servers) waitWhole(ctx context.Context) error {
	switch {
	case s.cluster != nil:
		return s.cluster.WaitWhole(ctx)
	case s.sentinel != nil:
		return nil
	}
	return s.admin.Ping(ctx).Err()
}

// follow makes the other node a replica of the master, and waits until it has the data.
func (s *servers) follow(ctx context.Context) error {
	master := s.master.Load()
	replica, err := s.replicaOf(ctx, master)
	if err != nil {
		return err
	}
	client := clientOf(replica)
	defer client.Close()
	host, port, _ := net.SplitHostPort(master.Addr())
	if err := client.Do(ctx, "REPLICAOF", host, port).Err(); err != nil {
		return err
	}
	for {
		info, err := client.Info(ctx, "replication").Result()
		if err != nil || strings.Contains(info, "master_link_status:up") {
			return err
		}
		time.Sleep(20 * time.Millisecond)
	}
}

func clientOf(server *redistest.Server) *redis.Client {
	return redis.NewClient(&redis.Options{Addr: server.Addr(), ContextTimeoutEnabled: true, MaintNotificationsConfig: hosttest.NoMaintenance()})
}

// waitTakeover waits until another server has replaced the master of a slot.
func (s *servers) waitTakeover(ctx context.Context, slot int, master *redistest.Server) (*redistest.Server, error) {
	if s.cluster != nil {
		return s.cluster.WaitTakeover(ctx, slot, master)
	}
	next, err := s.replicaOf(ctx, master)
	if err != nil {
		return nil, err
	}
	if s.sentinel != nil {
		err = s.waitElected(ctx, next)
	} else {
		client := clientOf(next)
		err = errors.Join(client.Do(ctx, "REPLICAOF", "NO", "ONE").Err(), client.Close())
	}
	s.master.Store(next)
	return next, err
}

// waitElected waits until the sentinel names the server as the master.
func (s *servers) waitElected(ctx context.Context, next *redistest.Server) error {
	watcher := redis.NewSentinelClient(&redis.Options{
		Addr: s.sentinel.Addr(), ContextTimeoutEnabled: true, MaintNotificationsConfig: hosttest.NoMaintenance(),
	})
	defer watcher.Close()
	for {
		now, err := watcher.GetMasterAddrByName(ctx, s.sentinel.MasterName()).Result()
		if err != nil || net.JoinHostPort(now[0], now[1]) == next.Addr() {
			return err
		}
		time.Sleep(20 * time.Millisecond)
	}
}
