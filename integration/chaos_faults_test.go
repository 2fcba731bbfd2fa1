package integration

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/pushfx/pushfx/module/redisclient"
	"github.com/pushfx/pushfx/module/redistest"
)

type chaosFault struct {
	name string

	// crash reports whether the fault replaces a master that cannot hand over. Redis may then lose changes that
	// only this master had, after clients read them.
	crash bool

	faultRun func(ctx context.Context, s *faultRun) error
}

type faultRun struct {
	random *rand.Rand
	names  []string                     // of the users
	homes  map[string]*redistest.Server // server of each user, updated by the fault; nil if unknown
	way    proxies                      // to the servers
	hit    []string                     // users of the faulty server
}

func (s *faultRun) someone() string { return s.names[s.random.IntN(len(s.names))] }

func (s *faultRun) at(server *redistest.Server) (users []string) {
	for _, user := range s.names {
		if s.homes[user] == server {
			users = append(users, user)
		}
	}
	return users
}

// replaced records the users of a takeover; nil means unknown.
func (s *faultRun) replaced(users []string, by *redistest.Server) {
	for _, user := range users {
		s.homes[user] = by
	}
}

func (s *faultRun) hold(ctx context.Context, least, most time.Duration) error {
	return sleep(ctx, least+time.Duration(s.random.Int64N(int64(most-least))))
}

func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

func inTurn(do ...func() error) error {
	for _, step := range do {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

func loseReplies(ctx context.Context, s *faultRun) error {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	s.hit = s.names
	s.way.loseReplies(ctx, 3)
	<-ctx.Done()
	return nil
}

func forgetScripts(flush func(context.Context) error) func(context.Context, *faultRun) error {
	return func(ctx context.Context, s *faultRun) error {
		s.hit = s.names
		for range 5 + s.random.IntN(10) {
			if err := errors.Join(flush(ctx), s.hold(ctx, 20*time.Millisecond, 150*time.Millisecond)); err != nil {
				return err
			}
		}
		return nil
	}
}

type chaosServers interface {
	faults() []chaosFault

	home(ctx context.Context, user string) (*redistest.Server, error)

	places() int

	// waitWhole waits until the servers have recovered from a fault.
	waitWhole(ctx context.Context) error
}

type clusterChaos struct {
	*redistest.ClusterServers
	client   *redis.ClusterClient
	failover time.Time // end of the last manual failover
}

// failoverRest is the pause between two manual failovers. A replica that won an election keeps its votes for two
// node timeouts. If it is asked again within that time, Redis up to 8 counts the old votes and makes it a master
// that no other node knows.
const failoverRest = 5 * time.Second

func (c *clusterChaos) faults() []chaosFault {
	flush := func(ctx context.Context) error {
		return c.client.ForEachShard(ctx, func(ctx context.Context, node *redis.Client) error {
			return node.ScriptFlush(ctx).Err()
		})
	}
	return few(6, []chaosFault{
		{name: "lost replies", faultRun: loseReplies},
		{name: "scripts forgotten", faultRun: forgetScripts(flush)},
		{name: "slots moved", faultRun: c.moveSlots},
		{name: "failover by hand", faultRun: c.failOver},
		{name: "master killed", crash: true, faultRun: c.kill},
		{name: "source killed in a move", crash: true, faultRun: c.killInMove("source")},
		{name: "target killed in a move", crash: true, faultRun: c.killInMove("target")},
		{name: "source, then target killed", crash: true, faultRun: c.killInMove("source", "target")},
		{name: "master frozen briefly", faultRun: c.freeze(200*time.Millisecond, 1200*time.Millisecond)},
		{name: "replica frozen", faultRun: c.freezeReplica},
		{name: "master frozen, maybe for long enough", crash: true, faultRun: c.freeze(1800*time.Millisecond, 4500*time.Millisecond)},
		{name: "master frozen for long", crash: true, faultRun: c.freezeLong},
	})
}

func (c *clusterChaos) places() int { return 3 }

func slotOf(user string) int { return redisclient.SlotOf(eventKey(user)) }

func (c *clusterChaos) home(ctx context.Context, user string) (*redistest.Server, error) {
	return c.MasterOf(ctx, slotOf(user))
}

func (c *clusterChaos) waitWhole(ctx context.Context) error { return c.WaitWhole(ctx) }

func (c *clusterChaos) moveSlots(ctx context.Context, s *faultRun) error {
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

func (c *clusterChaos) otherThan(s *faultRun, from *redistest.Server) *redistest.Server {
	for {
		if to := s.homes[s.someone()]; to != from {
			return to
		}
	}
}

// moveSlot keeps the slot's move open for a while before and after the keys move.
func (c *clusterChaos) moveSlot(ctx context.Context, s *faultRun, user string, to *redistest.Server) error {
	move, err := c.BeginMove(ctx, slotOf(user), to)
	if err != nil {
		return err
	}
	hold := func() error { return s.hold(ctx, 0, 400*time.Millisecond) }
	if err := inTurn(hold, func() error { return move.MoveKeys(ctx, eventKey(user), pushersKey(user)) }, hold); err != nil {
		return err
	}
	s.homes[user] = to
	// Hosts have created keys during the move.
	return inTurn(func() error { return move.MoveRest(ctx) }, func() error { return move.Finish(ctx) })
}

// shard picks a random master with its only replica, and records the users on it.
func (c *clusterChaos) shard(ctx context.Context, s *faultRun) (master, replica *redistest.Server, err error) {
	master = s.homes[s.someone()]
	s.hit = s.at(master)
	replica, err = c.replicaOf(ctx, master)
	return master, replica, err
}

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

func (c *clusterChaos) failOver(ctx context.Context, s *faultRun) error {
	if err := sleep(ctx, time.Until(c.failover.Add(failoverRest))); err != nil {
		return err
	}
	_, replica, err := c.shard(ctx, s)
	if err != nil {
		return err
	}
	s.replaced(s.hit, replica)
	err = c.Failover(ctx, replica)
	c.failover = time.Now()
	return err
}

func (c *clusterChaos) freezeReplica(ctx context.Context, s *faultRun) error {
	_, replica, err := c.shard(ctx, s)
	if err != nil {
		return err
	}
	replica.Pause()
	defer replica.Resume()
	return s.hold(ctx, 500*time.Millisecond, 2500*time.Millisecond)
}

// freeze freezes a master. Its replica may take over after one and a half seconds.
func (c *clusterChaos) freeze(least, most time.Duration) func(context.Context, *faultRun) error {
	return func(ctx context.Context, s *faultRun) error {
		master, _, err := c.shard(ctx, s)
		if err != nil {
			return err
		}
		if most > 1500*time.Millisecond {
			s.replaced(s.hit, nil)
		}
		master.Pause()
		defer master.Resume()
		return s.hold(ctx, least, most)
	}
}

func (c *clusterChaos) freezeLong(ctx context.Context, s *faultRun) error {
	master, _, err := c.shard(ctx, s)
	if err != nil {
		return err
	}
	master.Pause()
	defer master.Resume()
	next, err := c.WaitTakeover(ctx, slotOf(s.hit[0]), master)
	if err != nil {
		return err
	}
	s.replaced(s.hit, next)
	return s.hold(ctx, 0, 500*time.Millisecond)
}

// kill kills a master. In half the cases its replica lags behind.
func (c *clusterChaos) kill(ctx context.Context, s *faultRun) error {
	master, replica, err := c.shard(ctx, s)
	if err != nil {
		return err
	}
	if s.random.IntN(2) == 0 {
		defer replica.Resume()
		if err := c.outrun(ctx, s, master, replica); err != nil {
			return err
		}
		master.Stop()
		replica.Resume()
	}
	_, err = c.replace(ctx, s, master)
	return err
}

// outrun freezes the replica while the master continues. Otherwise a crash on one machine loses almost no change,
// because the kernel still delivers the bytes that a killed process sent.
func (c *clusterChaos) outrun(ctx context.Context, s *faultRun, master, replica *redistest.Server) error {
	return errors.Join(cutOff(ctx, master, replica), s.hold(ctx, 0, 400*time.Millisecond))
}

// cutOff freezes a replica and cuts its connection, so that it misses the following changes.
func cutOff(ctx context.Context, master, replica *redistest.Server) error {
	replica.Pause()
	client := redis.NewClient(&redis.Options{Addr: master.Addr(), MaintNotificationsConfig: noMaintenance()})
	defer client.Close()
	return client.ClientKillByFilter(ctx, "TYPE", "replica").Err()
}

// replace kills a master, waits for the takeover, and restarts it as a replica. An earlier restart could make it a
// master without data.
func (c *clusterChaos) replace(ctx context.Context, s *faultRun, master *redistest.Server) (next *redistest.Server, err error) {
	users := s.at(master)
	master.Stop()
	defer master.Start()
	if next, err = c.WaitTakeover(ctx, slotOf(users[0]), master); err != nil {
		return nil, err
	}
	s.replaced(users, next)
	return next, nil
}

// killInMove kills the source or the target of a slot's move, or both in turn, after a user's keys have moved. The
// user gets 503 until the move ends.
func (c *clusterChaos) killInMove(victims ...string) func(context.Context, *faultRun) error {
	return func(ctx context.Context, s *faultRun) error {
		user := s.someone()
		at := map[string]*redistest.Server{"source": s.homes[user]}
		at["target"] = c.otherThan(s, at["source"])
		s.hit = append(s.at(at["source"]), s.at(at["target"])...)
		move, err := c.BeginMove(ctx, slotOf(user), at["target"])
		if err != nil {
			return err
		}
		err = inTurn(
			func() error { return move.MoveKeys(ctx, eventKey(user), pushersKey(user)) },
			func() error { return c.waitCopied(ctx, at["target"], slotOf(user)) },
			func() error { return s.hold(ctx, 0, 400*time.Millisecond) },
		)
		for _, victim := range victims {
			if err == nil {
				at[victim], err = c.replace(ctx, s, at[victim])
			}
		}
		if err != nil {
			return err
		}
		if err := c.Fix(ctx, slotOf(user)); err != nil {
			return err
		}
		s.homes[user], err = c.home(ctx, user)
		return err
	}
}

// waitCopied waits until the master's replica has the keys of a slot, which no other server has after a move.
func (c *clusterChaos) waitCopied(ctx context.Context, master *redistest.Server, slot int) error {
	replica, err := c.replicaOf(ctx, master)
	if err != nil {
		return err
	}
	var keys [2][]string
	for err == nil && (len(keys[0]) == 0 || !slices.Equal(keys[0], keys[1])) {
		for i, server := range []*redistest.Server{master, replica} {
			client := redis.NewClient(&redis.Options{Addr: server.Addr(), MaintNotificationsConfig: noMaintenance()})
			there, failed := client.ClusterGetKeysInSlot(ctx, slot, 1000).Result()
			slices.Sort(there)
			keys[i], err = there, errors.Join(err, failed, client.Close())
		}
	}
	return err
}

// singleChaos runs chaos on one server with appendfsync always.
type singleChaos struct {
	*redistest.Server
	client *redis.Client
}

func (c *singleChaos) faults() []chaosFault {
	flush := func(ctx context.Context) error { return c.client.ScriptFlush(ctx).Err() }
	return []chaosFault{
		{name: "lost replies", faultRun: loseReplies},
		{name: "scripts forgotten", faultRun: forgetScripts(flush)},
		{name: "server killed", faultRun: c.kill},
		{name: "server frozen", faultRun: c.freeze},
	}
}

func (c *singleChaos) places() int { return 1 }

func (c *singleChaos) home(context.Context, string) (*redistest.Server, error) { return c.Server, nil }

func (c *singleChaos) waitWhole(ctx context.Context) error { return c.client.Ping(ctx).Err() }

func (c *singleChaos) kill(ctx context.Context, s *faultRun) error {
	s.hit = s.names
	for range 1 + s.random.IntN(3) {
		c.Stop()
		err := s.hold(ctx, 0, 500*time.Millisecond)
		c.Start()
		if err = errors.Join(err, s.hold(ctx, 0, 500*time.Millisecond)); err != nil {
			return err
		}
	}
	return nil
}

// freeze sometimes lasts longer than the reply timeout of the hosts.
func (c *singleChaos) freeze(ctx context.Context, s *faultRun) error {
	s.hit = s.names
	c.Pause()
	defer c.Resume()
	return s.hold(ctx, 500*time.Millisecond, 3*time.Second)
}
