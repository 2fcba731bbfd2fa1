package integration

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/anishathalye/porcupine"
	"go.uber.org/fx"

	"github.com/pushfx/pushfx"
	"github.com/pushfx/pushfx/module/commit/rediscommit"
	"github.com/pushfx/pushfx/module/redistest"
)

var (
	chaosTime = flag.Duration("chaos", 0, "how long the chaos test goes on; the other fault tests have all their cases then, not a few")
	chaosSeed = flag.Uint64("chaos.seed", 0, "repeats the faults of the chaos test that logged this seed")
)

// few returns the first n cases, or all cases with -chaos.
func few[T any](n int, cases []T) []T {
	if *chaosTime > 0 {
		return cases
	}
	return cases[:n]
}

// Clients of two hosts change some users' data while faults occur one after the other. The histories must be
// linearizable, and every acknowledged change must be there at the end, once.
func TestChaosLosesNoAcknowledgedChange(t *testing.T) {
	t.Parallel()
	redistest.Require(t)
	t.Run("cluster", func(t *testing.T) {
		t.Parallel()
		servers := redistest.Cluster(t, 3, 1)
		way := newProxies(t, servers.Nodes()...)
		c := &chaos{servers: &clusterChaos{ClusterServers: servers, client: servers.Client(t)}, way: way}
		c.plain = newTeam(t, way, servers.Addrs(), rediscommit.Durability{})
		c.durable = newTeam(t, way, servers.Addrs(), rediscommit.Durability{Replicas: 1, Timeout: time.Second})
		c.run(t)
	})
	t.Run("standalone", func(t *testing.T) {
		t.Parallel()
		server := redistest.Single(t, "--appendonly", "yes", "--appendfsync", "always")
		way := newProxies(t, server)
		c := &chaos{servers: &singleChaos{server, server.Client(t)}, way: way}
		c.plain = newTeam(t, way, []string{server.Addr()}, rediscommit.Durability{})
		c.durable = c.plain
		if hasWAITAOF(t) {
			c.durable = newTeam(t, way, []string{server.Addr()}, rediscommit.Durability{AOF: true, Timeout: time.Second})
		}
		c.run(t)
	})
}

type hostPair struct {
	durability rediscommit.Durability
	hosts      []*host
}

func newTeam(t *testing.T, way proxies, addrs []string, durability rediscommit.Durability) *hostPair {
	t.Helper()
	both := &hostPair{durability: durability}
	for _, large := range []int{1, rediscommit.DefaultConfig().LargeValueBytes} { // small and large events have different write paths
		both.hosts = append(both.hosts, startHost(t, way.client(t, addrs...), fx.Decorate(func(c pushfx.Config) pushfx.Config {
			c.Redis.Durability, c.Redis.LargeValueBytes = durability, large
			return c
		})))
	}
	return both
}

type chaos struct {
	servers chaosServers
	way     proxies
	plain   *hostPair // acknowledges a change that the master has in memory
	durable *hostPair // waits for more before it acknowledges a change
	table   chaosTable
}

// run repeats all kinds of fault, each time in random order, until the time is up.
func (c *chaos) run(t *testing.T) {
	seed := *chaosSeed
	switch {
	case seed != 0:
	case *chaosTime > 0:
		seed = rand.Uint64()
	default:
		seed = seedOf(t.Name())
	}
	t.Logf("seed %d", seed)
	faults := c.servers.faults()
	defer func() { t.Logf("\n%s", c.table) }()
	end := time.Now().Add(*chaosTime)
	order := rand.New(rand.NewPCG(seed, 0))
	for number := 0; number < len(faults) || time.Now().Before(end); number++ {
		if number%len(faults) == 0 {
			order.Shuffle(len(faults), func(i, j int) { faults[i], faults[j] = faults[j], faults[i] })
		}
		fault := faults[number%len(faults)]
		if err := c.round(t, number, fault, rand.New(rand.NewPCG(seed, uint64(number+1)))); err != nil {
			t.Fatalf("round %d, %s: %v", number, fault.name, err)
		}
	}
}

const (
	chaosUsers   = 6 // in a round
	chaosClients = 4 // of each user

	roundLimit  = 3 * time.Minute        // many times a round's duration
	servedLimit = time.Minute            // many times the usual wait until all users get answers
	aroundFault = 250 * time.Millisecond // how long clients work before and after a fault
)

// round causes one fault and judges the histories.
func (c *chaos) round(t *testing.T, number int, fault chaosFault, random *rand.Rand) error {
	ctx, cancel := context.WithTimeout(t.Context(), roundLimit)
	defer cancel()
	r, err := c.newRound(ctx, number, fault, random)
	if err != nil {
		return err
	}
	if err := r.play(ctx, fault, c.servers.waitWhole); err != nil {
		return err
	}
	if err := r.lookAtAll(ctx); err != nil {
		return err
	}
	moved, err := c.movedUsers(ctx, r)
	if err != nil {
		return err
	}
	r.hit = append(r.hit, moved...)
	crashed := fault.crash || len(moved) > 0
	if crashed && r.hostPair == c.plain {
		t.Logf("round %d: %s: not judged, since the cluster took a slow server for dead", number, fault.name)
		return nil
	}
	v := r.judge(crashed)
	c.table.add(fault.name, v)
	t.Logf("round %d: %s, durability %s, lossy %t: %+v", number, fault.name, r.hostPair.durability, r.lossy, v.counts())
	if v.isBad() {
		t.Errorf("round %d: %s", number, fault.name)
		showIllegal(t, v.illegal)
	}
	return nil
}

func (c *chaos) newRound(ctx context.Context, number int, fault chaosFault, random *rand.Rand) (*chaosRound, error) {
	r := newChaosRound(c.plain, random)
	if fault.crash || random.IntN(2) == 0 {
		r.hostPair = c.durable
	}
	r.way, r.lossy = c.way, random.IntN(2) == 0
	places := map[*redistest.Server]int{}
	for i := 0; len(r.users) < chaosUsers; i++ {
		user := fmt.Sprintf("@chaos-%d-%d:example.org", number, i)
		home, err := c.servers.home(ctx, user)
		if err != nil {
			return nil, err
		}
		if places[home] < chaosUsers/c.servers.places() {
			r.addUser(user, []*dataset{&ruleDataset, &pusherDataset}[places[home]%2], home)
			places[home]++
		}
	}
	return r, nil
}

// movedUsers returns the users on an unexpected server, because the cluster replaced a server that was only slow.
func (c *chaos) movedUsers(ctx context.Context, r *chaosRound) (moved []string, err error) {
	for user, want := range r.homes {
		home, err := c.servers.home(ctx, user)
		if err != nil {
			return nil, err
		}
		if want != nil && home != want {
			moved = append(moved, user)
		}
	}
	return moved, nil
}

// chaosRound is one fault with the clients' histories. Its times are nanoseconds since the start.
type chaosRound struct {
	faultRun
	hostPair *hostPair
	lossy    bool // replies also get lost
	users    []*chaosUser
	players  []*chaosClient
	start    time.Time
	struck   int64 // start of the fault
	over     int64 // end of the fault
	whole    int64 // end of its effects
}

func newChaosRound(hostPair *hostPair, random *rand.Rand) *chaosRound {
	return &chaosRound{faultRun: faultRun{random: random, homes: map[string]*redistest.Server{}}, hostPair: hostPair, start: time.Now()}
}

func (r *chaosRound) addUser(name string, of *dataset, home *redistest.Server) {
	u := &chaosUser{name: name, dataset: of}
	u.exists.Store(of == &pusherDataset) // pushers need no creation
	r.users = append(r.users, u)
	r.names = append(r.names, name)
	r.homes[name] = home
	for number := range chaosClients {
		r.addPlayer(u, number)
	}
}

func (r *chaosRound) addPlayer(u *chaosUser, number int) *chaosClient {
	p := &chaosClient{
		randomClient: randomClient{user: u.name, number: number, random: rand.New(rand.NewPCG(r.random.Uint64(), r.random.Uint64()))},
		of:           u,
		client:       len(r.players),
		hosts:        r.hostPair.hosts,
		start:        r.start,
	}
	r.players = append(r.players, p)
	return p
}

func (r *chaosRound) now() int64 { return int64(time.Since(r.start)) }

// play runs the clients from before the fault until the servers have recovered and every user gets answers.
func (r *chaosRound) play(ctx context.Context, fault chaosFault, waitWhole func(context.Context) error) error {
	playing, stop := context.WithCancel(ctx)
	var working sync.WaitGroup
	defer working.Wait()
	defer stop()
	for _, p := range r.players {
		working.Go(func() { p.play(playing) })
	}
	pause := func(ctx context.Context) error { return sleep(ctx, aroundFault) }
	for _, step := range []func(context.Context) error{
		r.waitServed, pause, func(ctx context.Context) error { return r.causeFault(ctx, fault) }, r.waitServed, waitWhole,
	} {
		if err := step(ctx); err != nil {
			return err
		}
	}
	r.whole = r.now()
	return pause(ctx)
}

func (r *chaosRound) causeFault(ctx context.Context, fault chaosFault) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if r.lossy {
		r.way.loseReplies(ctx, 5)
	}
	r.struck = r.now()
	err := fault.faultRun(ctx, &r.faultRun)
	r.over = r.now()
	return err
}

// waitServed waits until a change of every user, sent from now on, has succeeded.
func (r *chaosRound) waitServed(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, servedLimit)
	defer cancel()
	now := r.now()
	for {
		i := slices.IndexFunc(r.users, func(u *chaosUser) bool { return u.changed.Load() < now })
		if i < 0 {
			return nil
		}
		if err := sleep(ctx, 10*time.Millisecond); err != nil {
			return fmt.Errorf("no change of %s was acknowledged: %w", r.users[i].name, err)
		}
	}
}

func (r *chaosRound) lookAtAll(ctx context.Context) error {
	for _, u := range r.users {
		for _, h := range r.hostPair.hosts {
			p := r.addPlayer(u, chaosClients)
			o := p.send(ctx, h, u.dataset.all(&p.randomClient))
			for o.Output == unknown {
				if err := sleep(ctx, 50*time.Millisecond); err != nil {
					return err
				}
				o = p.send(ctx, h, u.dataset.all(&p.randomClient))
			}
			p.history = []porcupine.Operation{o}
		}
	}
	return nil
}

func (r *chaosRound) historyOf(u *chaosUser) (history []porcupine.Operation) {
	for _, p := range r.players {
		if p.of == u {
			history = append(history, p.history...)
		}
	}
	return withEnds(history, len(r.players), r.now())
}

// outage returns the longest time without an acknowledged change of a user, since the start of the fault.
func (r *chaosRound) outage(history []porcupine.Operation) (longest time.Duration) {
	times := []int64{r.struck}
	for _, o := range history {
		if o.Output == done && o.Return > r.struck {
			times = append(times, o.Return)
		}
	}
	slices.Sort(times)
	for i := range times[1:] {
		longest = max(longest, time.Duration(times[i+1]-times[i]))
	}
	return longest.Round(time.Millisecond)
}

type chaosTable []chaosRow

type chaosRow struct {
	name   string
	rounds int
	sum    judgement
}

func (t *chaosTable) add(fault string, v judgement) {
	for _, name := range []string{fault, "all"} {
		i := slices.IndexFunc(*t, func(row chaosRow) bool { return row.name == name })
		if i < 0 {
			i, *t = len(*t), append(*t, chaosRow{name: name})
		}
		(*t)[i].rounds++
		(*t)[i].sum.add(v)
	}
}

func (t chaosTable) String() string {
	var text strings.Builder
	w := tabwriter.NewWriter(&text, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "fault\trounds\toperations\tunknown\tnot linearizable\tundecided\tlongest without a change\t")
	for _, row := range t {
		v := row.sum.counts()
		fmt.Fprintf(w, "%s\t%d\t%d\t%d\t%d\t%d\t%v\t\n", row.name, row.rounds, v.operations, v.unknown, v.illegal, v.undecided, v.outage)
	}
	_ = w.Flush() // into memory
	return text.String()
}
