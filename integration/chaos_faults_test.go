package integration

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"go.uber.org/fx"

	"github.com/pushfx/pushfx"
	"github.com/pushfx/pushfx/module/commit/rediscommit"
	"github.com/pushfx/pushfx/module/redisclient"
	"github.com/pushfx/pushfx/module/redistest"
)

// chaosFault is one kind of fault.
type chaosFault struct {
	name string

	// crash is whether a replica takes the place of a master that cannot hand
	// over. Redis may then lose what only the master had, and show it before.
	crash bool

	strike func(ctx context.Context, s *strike) error
}

// strike is a fault as it happens.
type strike struct {
	random *rand.Rand
	names  []string                     // of the users
	homes  map[string]*redistest.Server // who has each user, kept up by the fault; nil if that is open
	links  []*link                      // of the hosts at work
	hit    []string                     // the users whom it concerns
	notes  []string                     // what differs from other faults of the kind
}

// someone is one of the users.
func (s *strike) someone() string { return s.names[s.random.IntN(len(s.names))] }

// at are the users on a server.
func (s *strike) at(server *redistest.Server) (users []string) {
	for _, user := range s.names {
		if s.homes[user] == server {
			users = append(users, user)
		}
	}
	return users
}

// between is a time from one to the other.
func (s *strike) between(least, most time.Duration) time.Duration {
	return least + time.Duration(s.random.Int64N(int64(most-least)))
}

// sleep waits, or returns early with the error of ctx.
func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

// link is a host's way to Redis. While it loses, some replies never arrive.
type link struct {
	losing  atomic.Bool
	written atomic.Int64
}

// connect makes a client of a host that goes over the link, with the settings
// that README tells.
func (l *link) connect(t *testing.T, addrs []string) redis.UniversalClient {
	var client redis.UniversalClient
	if len(addrs) == 1 {
		client = redis.NewClient(&redis.Options{
			Addr: addrs[0], Dialer: l.dial, ContextTimeoutEnabled: true, ReadTimeout: 2 * time.Second,
		})
	} else {
		client = redis.NewClusterClient(&redis.ClusterOptions{
			Addrs: addrs, Dialer: l.dial, ContextTimeoutEnabled: true, ReadTimeout: 2 * time.Second,
			ClusterStateReloadInterval: 2 * time.Second,
		})
	}
	t.Cleanup(func() { client.Close() })
	redistest.LoseScriptReplies(client, func(n int64) bool { return n%5 == 0 && l.losing.Load() })
	return client
}

func (l *link) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	dialer := net.Dialer{Timeout: time.Second}
	conn, err := dialer.DialContext(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	return &lossyConn{conn.(*net.TCPConn), l}, nil
}

// lossyConn is a connection that is at times cut when a command was sent.
type lossyConn struct {
	*net.TCPConn
	link *link
}

func (c *lossyConn) Write(b []byte) (int, error) {
	n, err := c.TCPConn.Write(b)
	if c.link.losing.Load() && c.link.written.Add(1)%20 == 0 {
		c.Close()
	}
	return n, err
}

// Read tells of the cut as if the server had made it.
func (c *lossyConn) Read(b []byte) (int, error) {
	n, err := c.TCPConn.Read(b)
	if errors.Is(err, net.ErrClosed) {
		err = io.EOF
	}
	return n, err
}

func (s *strike) loseReplies() (end func()) {
	lose := func(losing bool) {
		for _, l := range s.links {
			l.losing.Store(losing)
		}
	}
	lose(true)
	return func() { lose(false) }
}

// loseReplies has all the hosts lose replies for a while: those of scripts, and
// those of whatever is sent when a connection is cut.
func loseReplies(ctx context.Context, s *strike) error {
	s.hit = s.names
	defer s.loseReplies()()
	return sleep(ctx, s.between(500*time.Millisecond, 1500*time.Millisecond))
}

// team is two hosts of the same durability.
type team struct {
	durability rediscommit.Durability
	hosts      []*host
	links      []*link
}

func newTeam(t *testing.T, addrs []string, durability rediscommit.Durability) *team {
	t.Helper()
	both := &team{durability: durability}
	for _, large := range []int{1, rediscommit.DefaultConfig().LargeValueBytes} { // they write in different ways
		l := &link{}
		both.links = append(both.links, l)
		both.hosts = append(both.hosts, startHost(t, l.connect(t, addrs), fx.Decorate(func(c pushfx.Config) pushfx.Config {
			c.Redis.Durability, c.Redis.LargeValueBytes = durability, large
			return c
		})))
	}
	return both
}

// chaosServers are what the hosts work on.
type chaosServers interface {
	faults() []chaosFault

	// home returns the server that has a user.
	home(ctx context.Context, user string) (*redistest.Server, error)

	// places is on how many servers users are.
	places() int

	// waitWhole waits until nothing is left of a fault.
	waitWhole(ctx context.Context) error
}

// clusterChaos is chaos on a cluster whose masters have a replica each.
type clusterChaos struct {
	*redistest.ClusterServers
	client   *redis.ClusterClient
	failover time.Time // when the last one by hand ended
}

// failoverRest is how long to wait from one failover by hand to the next. A
// replica that has won an election keeps the votes for two node timeouts: asked
// to take over once more within that time, Redis up to 8 counts them again and
// takes itself for the master, whom no other node knows.
const failoverRest = 5 * time.Second

func (c *clusterChaos) faults() []chaosFault {
	return []chaosFault{
		{name: "lost replies", strike: loseReplies},
		{name: "scripts forgotten", strike: c.forgetScripts},
		{name: "slots moved", strike: c.moveSlots},
		{name: "failover by hand", strike: c.failOver},
		{name: "master frozen briefly", strike: c.freezeBriefly},
		{name: "replica frozen", strike: c.freezeReplica},
		{name: "master killed", crash: true, strike: c.kill},
		{name: "master frozen for long", crash: true, strike: c.freezeLong},
		{name: "source killed in a move", crash: true, strike: c.killInMove("source")},
		{name: "target killed in a move", crash: true, strike: c.killInMove("target")},
		{name: "source, then target killed", crash: true, strike: c.killInMove("source", "target")},
	}
}

func (c *clusterChaos) places() int { return 3 }

func (c *clusterChaos) slot(ctx context.Context, user string) (int, error) {
	slot, err := c.client.ClusterKeySlot(ctx, eventKey(user)).Result()
	return int(slot), err
}

func (c *clusterChaos) home(ctx context.Context, user string) (*redistest.Server, error) {
	slot, err := c.slot(ctx, user)
	if err != nil {
		return nil, err
	}
	return c.MasterOf(ctx, slot)
}

func (c *clusterChaos) waitWhole(ctx context.Context) error {
	if err := c.SettleMoves(ctx); err != nil {
		return err
	}
	return c.WaitWhole(ctx)
}

// forgetScripts has every node forget the scripts, again and again.
func (c *clusterChaos) forgetScripts(ctx context.Context, s *strike) error {
	s.hit = s.names
	return forgetScripts(ctx, s, func(ctx context.Context) error {
		return c.client.ForEachShard(ctx, func(ctx context.Context, node *redis.Client) error {
			return node.ScriptFlush(ctx).Err()
		})
	})
}

func forgetScripts(ctx context.Context, s *strike, flush func(context.Context) error) error {
	for range 5 + s.random.IntN(10) {
		if err := errors.Join(flush(ctx), sleep(ctx, s.between(20*time.Millisecond, 150*time.Millisecond))); err != nil {
			return err
		}
	}
	return nil
}

// moveSlots moves the slots of some users to another master and, in half the
// cases, back.
func (c *clusterChaos) moveSlots(ctx context.Context, s *strike) error {
	s.random.Shuffle(len(s.names), func(i, j int) { s.names[i], s.names[j] = s.names[j], s.names[i] })
	s.hit = s.names[:1+s.random.IntN(2)]
	for _, user := range s.hit {
		from := s.homes[user]
		if err := c.moveSlot(ctx, s, user, c.otherThan(s, from)); err != nil {
			return err
		}
		if s.random.IntN(2) == 0 {
			if err := c.moveSlot(ctx, s, user, from); err != nil {
				return err
			}
		}
	}
	return nil
}

// otherThan is another of the masters that have users.
func (c *clusterChaos) otherThan(s *strike, from *redistest.Server) *redistest.Server {
	for {
		if to := s.homes[s.someone()]; to != from {
			return to
		}
	}
}

// moveSlot holds the slot open for a while before and after its keys go.
func (c *clusterChaos) moveSlot(ctx context.Context, s *strike, user string, to *redistest.Server) error {
	slot, err := c.slot(ctx, user)
	if err != nil {
		return err
	}
	move, err := c.BeginMove(ctx, slot, to)
	if err != nil {
		return err
	}
	hold := func() error { return sleep(ctx, s.between(0, 400*time.Millisecond)) }
	if err := hold(); err != nil {
		return err
	}
	if err := move.MoveKeys(ctx, eventKey(user), pushersKey(user)); err != nil {
		return err
	}
	if err := hold(); err != nil {
		return err
	}
	s.homes[user] = to
	if err := move.MoveRest(ctx); err != nil { // what hosts put there meanwhile
		return err
	}
	return move.Finish(ctx)
}

// shard picks a master at random and notes whom it concerns.
func (c *clusterChaos) shard(ctx context.Context, s *strike) (master *redistest.Server, slot int, err error) {
	user := s.someone()
	master = s.homes[user]
	s.hit = s.at(master)
	slot, err = c.slot(ctx, user)
	return master, slot, err
}

// replaced notes who has the users of a master now.
func (s *strike) replaced(by *redistest.Server) {
	for _, user := range s.hit {
		s.homes[user] = by
	}
}

// replicaOf is the only one of a master.
func (c *clusterChaos) replicaOf(ctx context.Context, master *redistest.Server) (*redistest.Server, error) {
	replicas, err := c.ReplicasOf(ctx, master)
	if err == nil && len(replicas) != 1 {
		err = fmt.Errorf("the master at %s has %d replicas", master.Addr(), len(replicas))
	}
	if err != nil {
		return nil, err
	}
	return replicas[0], nil
}

func (c *clusterChaos) failOver(ctx context.Context, s *strike) error {
	if err := sleep(ctx, time.Until(c.failover.Add(failoverRest))); err != nil {
		return err
	}
	master, _, err := c.shard(ctx, s)
	if err != nil {
		return err
	}
	replica, err := c.replicaOf(ctx, master)
	if err != nil {
		return err
	}
	s.replaced(replica)
	err = c.Failover(ctx, replica)
	c.failover = time.Now()
	return err
}

// freezeReplica keeps changes from being confirmed.
func (c *clusterChaos) freezeReplica(ctx context.Context, s *strike) error {
	master, _, err := c.shard(ctx, s)
	if err != nil {
		return err
	}
	replica, err := c.replicaOf(ctx, master)
	if err != nil {
		return err
	}
	replica.Pause()
	defer replica.Resume()
	return sleep(ctx, s.between(500*time.Millisecond, 2500*time.Millisecond))
}

func (c *clusterChaos) freezeBriefly(ctx context.Context, s *strike) error {
	master, _, err := c.shard(ctx, s)
	if err != nil {
		return err
	}
	master.Pause()
	defer master.Resume()
	return sleep(ctx, s.between(200*time.Millisecond, 1200*time.Millisecond))
}

// kill has the master back, as a replica, when another has taken its place. Any
// earlier it could come back as a master without data.
func (c *clusterChaos) kill(ctx context.Context, s *strike) error {
	master, slot, err := c.shard(ctx, s)
	if err != nil {
		return err
	}
	replica, err := c.replicaOf(ctx, master)
	if err != nil {
		return err
	}
	defer replica.Resume()
	if s.random.IntN(2) == 0 {
		s.notes = append(s.notes, "ahead of its replica")
		if err := c.outrun(ctx, s, master, replica); err != nil {
			return err
		}
	}
	master.Stop()
	defer master.Start()
	replica.Resume()
	next, err := c.WaitTakeover(ctx, slot, master)
	s.replaced(next)
	return err
}

// killInMove kills the source or the target of a slot's move, one after the other
// where it is both, when the keys of a user have moved. Until the move is settled,
// that user is not served.
func (c *clusterChaos) killInMove(victims ...string) func(context.Context, *strike) error {
	return func(ctx context.Context, s *strike) error {
		user := s.someone()
		at := map[string]*redistest.Server{"source": s.homes[user]}
		at["target"] = c.otherThan(s, at["source"])
		s.hit = append(s.at(at["source"]), s.at(at["target"])...)
		slot, err := c.slot(ctx, user)
		if err != nil {
			return err
		}
		move, err := c.BeginMove(ctx, slot, at["target"])
		if err == nil {
			err = move.MoveKeys(ctx, eventKey(user), pushersKey(user))
		}
		if err == nil {
			err = c.waitCopied(ctx, at["target"], eventKey(user), pushersKey(user))
		}
		if err == nil {
			err = sleep(ctx, s.between(0, 400*time.Millisecond))
		}
		for _, victim := range victims {
			if err == nil {
				at[victim], err = c.replace(ctx, s, at[victim])
			}
		}
		if err != nil {
			return err
		}
		s.homes[user] = at["target"]
		return c.SettleMoves(ctx)
	}
}

// replace kills a master, and starts it again when a replica has taken its place.
func (c *clusterChaos) replace(ctx context.Context, s *strike, master *redistest.Server) (next *redistest.Server, err error) {
	users := s.at(master)
	slot, err := c.slot(ctx, users[0])
	if err != nil {
		return nil, err
	}
	master.Stop()
	defer master.Start()
	if next, err = c.WaitTakeover(ctx, slot, master); err != nil {
		return nil, err
	}
	for _, user := range users {
		s.homes[user] = next
	}
	return next, nil
}

// waitCopied waits until the replica of a master has what the master has of some
// keys: what has just moved is on no other server.
func (c *clusterChaos) waitCopied(ctx context.Context, master *redistest.Server, keys ...string) error {
	replica, err := c.replicaOf(ctx, master)
	if err != nil {
		return err
	}
	slot := redisclient.SlotOf(keys[0])
	count := func(server *redistest.Server) (found int, err error) {
		client := redis.NewClient(&redis.Options{Addr: server.Addr()})
		defer client.Close()
		there, err := client.ClusterGetKeysInSlot(ctx, slot, 1000).Result()
		for _, key := range keys {
			if slices.Contains(there, key) {
				found++
			}
		}
		return found, err
	}
	want, err := count(master)
	for got := -1; err == nil && got != want; {
		if got, err = count(replica); err == nil && got != want {
			err = sleep(ctx, 5*time.Millisecond)
		}
	}
	return err
}

// outrun freezes the replica and has the master go on without it for a while. On
// one machine a crash alone loses next to nothing: what a process has sent
// arrives, though it is killed.
func (c *clusterChaos) outrun(ctx context.Context, s *strike, master, replica *redistest.Server) error {
	replica.Pause()
	client := redis.NewClient(&redis.Options{Addr: master.Addr()})
	defer client.Close()
	if err := client.ClientKillByFilter(ctx, "TYPE", "replica").Err(); err != nil {
		return err
	}
	return sleep(ctx, s.between(0, 400*time.Millisecond))
}

func (c *clusterChaos) freezeLong(ctx context.Context, s *strike) error {
	master, slot, err := c.shard(ctx, s)
	if err != nil {
		return err
	}
	master.Pause()
	defer master.Resume()
	if s.random.IntN(2) == 0 {
		s.notes = append(s.notes, "maybe not for long enough")
		s.replaced(nil)
		return sleep(ctx, s.between(1800*time.Millisecond, 4500*time.Millisecond))
	}
	next, err := c.WaitTakeover(ctx, slot, master)
	if err != nil {
		return err
	}
	s.replaced(next)
	return sleep(ctx, s.between(0, 500*time.Millisecond))
}

// singleChaos is chaos on one server that writes everything to disk before it
// answers.
type singleChaos struct {
	*redistest.Server
	client *redis.Client
}

func (c *singleChaos) faults() []chaosFault {
	return []chaosFault{
		{name: "lost replies", strike: loseReplies},
		{name: "scripts forgotten", strike: c.forgetScripts},
		{name: "server killed", strike: c.kill},
		{name: "server frozen", strike: c.freeze},
	}
}

func (c *singleChaos) places() int { return 1 }

func (c *singleChaos) home(context.Context, string) (*redistest.Server, error) { return c.Server, nil }

func (c *singleChaos) waitWhole(ctx context.Context) error { return c.client.Ping(ctx).Err() }

func (c *singleChaos) forgetScripts(ctx context.Context, s *strike) error {
	s.hit = s.names
	return forgetScripts(ctx, s, func(ctx context.Context) error { return c.client.ScriptFlush(ctx).Err() })
}

func (c *singleChaos) kill(ctx context.Context, s *strike) error {
	s.hit = s.names
	for range 1 + s.random.IntN(3) {
		c.Stop()
		err := sleep(ctx, s.between(0, 500*time.Millisecond))
		c.Start()
		if err = errors.Join(err, sleep(ctx, s.between(0, 500*time.Millisecond))); err != nil {
			return err
		}
	}
	return nil
}

// freeze is at times longer than the hosts wait for a reply.
func (c *singleChaos) freeze(ctx context.Context, s *strike) error {
	s.hit = s.names
	c.Pause()
	defer c.Resume()
	return sleep(ctx, s.between(500*time.Millisecond, 3*time.Second))
}
