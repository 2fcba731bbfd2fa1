package integration

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/pushfx/pushfx/module/commit/rediscommit"
	"github.com/pushfx/pushfx/module/redistest"
)

var (
	chaosTime = flag.Duration("chaos", 0, "how long the chaos test goes on; without it, each kind of fault strikes once")
	chaosSeed = flag.Uint64("chaos.seed", 0, "repeats the faults of the chaos test that logged this seed")
)

// TestChaosLosesNoAcknowledgedChange has clients of two hosts work on some
// users while one thing after the other goes wrong with Redis. What they see
// must be linearizable, and every change that was acknowledged must be there at
// the end, once.
func TestChaosLosesNoAcknowledgedChange(t *testing.T) {
	t.Parallel()
	redistest.Require(t)
	t.Run("cluster", func(t *testing.T) {
		t.Parallel()
		servers := redistest.Cluster(t, 3, 1)
		c := &chaos{servers: &clusterChaos{ClusterServers: servers, client: servers.Client(t)}}
		c.plain = newTeam(t, servers.Addrs(), rediscommit.Durability{})
		c.durable = newTeam(t, servers.Addrs(), rediscommit.Durability{Replicas: 1, Timeout: time.Second})
		c.run(t)
	})
	t.Run("standalone", func(t *testing.T) {
		t.Parallel()
		server := redistest.Single(t, "--appendonly", "yes", "--appendfsync", "always")
		single := &singleChaos{server, server.Client(t)}
		c := &chaos{servers: single}
		c.plain = newTeam(t, []string{server.Addr()}, rediscommit.Durability{})
		c.durable = c.plain
		if single.client.Do(t.Context(), "WAITAOF", 1, 0, 1).Err() == nil {
			c.durable = newTeam(t, []string{server.Addr()}, rediscommit.Durability{AOF: true, Timeout: time.Second})
		}
		c.run(t)
	})
}

// chaos is rounds of faults on the same servers.
type chaos struct {
	servers chaosServers
	plain   *team // whose changes count when the master has them in memory
	durable *team // whose changes count when more than that has happened to them
	table   chaosTable
}

// run makes rounds until the time is up: every kind of fault once, in random
// order, then every kind once more, and so on.
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
	c.table = newChaosTable(faults)
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

// roundLimit is many times what a round takes.
const roundLimit = 3 * time.Minute

// round lets one fault strike and judges what came of it.
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
	r.hit = slices.Concat(r.hit, moved)
	crashed := fault.crash || len(moved) > 0
	if crashed && r.team == c.plain {
		t.Logf("round %d: %s: not judged, since the cluster took a slow server for dead", number, fault.name)
		return nil
	}
	v := r.judge(crashed)
	c.table.add(fault.name, v)
	t.Logf("round %d: %s, %s: %s", number, fault.name, r.circumstances(), v.summary())
	if v.isBad() {
		t.Errorf("round %d: %s\n%s", number, fault.name, v.details())
		showIllegal(t, v.illegal)
	}
	return nil
}

// newRound has new users, of both estates on every server.
func (c *chaos) newRound(ctx context.Context, number int, fault chaosFault, random *rand.Rand) (*chaosRound, error) {
	team := c.plain
	if fault.crash || random.IntN(2) == 0 {
		team = c.durable
	}
	r := newChaosRound(team, random)
	r.lossy = random.IntN(2) == 0
	places := map[*redistest.Server]int{}
	for i := 0; len(r.users) < chaosUsers; i++ {
		user := fmt.Sprintf("@chaos-%d-%d:example.org", number, i)
		home, err := c.servers.home(ctx, user)
		if err != nil {
			return nil, err
		}
		if places[home] < chaosUsers/c.servers.places() {
			r.addUser(user, []estate{ruleEstate{}, pusherEstate{}}[places[home]%2], home)
			places[home]++
		}
	}
	return r, nil
}

// movedUsers are those who are not where the fault has left them, because the
// cluster has given up a server that was only slow. Where that could happen with
// a fault, it has left them nowhere.
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

// chaosTable adds up the rounds by kind of fault.
type chaosTable struct{ rows []chaosRow }

type chaosRow struct {
	name   string
	rounds int
	sum    verdict
}

func newChaosTable(faults []chaosFault) chaosTable {
	var t chaosTable
	for _, fault := range faults {
		t.rows = append(t.rows, chaosRow{name: fault.name})
	}
	t.rows = append(t.rows, chaosRow{name: "all"})
	return t
}

func (t chaosTable) add(fault string, v verdict) {
	for i := range t.rows {
		if row := &t.rows[i]; row.name == fault || row.name == "all" {
			row.rounds++
			row.sum.add(v)
		}
	}
}

func (t chaosTable) String() string {
	var text strings.Builder
	w := tabwriter.NewWriter(&text, 0, 0, 2, ' ', tabwriter.AlignRight)
	columns := []string{
		"fault", "rounds", "operations", "answered", "unknown", "lost", "doubled", "not linearizable", "undecided",
		"taken back", "longest without a change", "others",
	}
	fmt.Fprintln(w, strings.Join(columns, "\t")+"\t")
	for _, row := range t.rows {
		v := row.sum
		for _, cell := range []any{
			row.name, row.rounds, v.operations, v.operations - v.unknown, v.unknown, len(v.lost), len(v.doubled), len(partition(v.illegal)),
			len(v.undecided), v.takenBack, v.outage, v.othersOutage,
		} {
			fmt.Fprintf(w, "%v\t", cell)
		}
		fmt.Fprintln(w)
	}
	_ = w.Flush() // into memory
	return text.String()
}
