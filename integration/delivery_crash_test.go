package integration

import (
	"context"
	"math/rand/v2"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/pushfx/pushfx/module/commit/rediscommit"
	"github.com/pushfx/pushfx/module/redistest"
)

const clusterSlots = 16384

// crashes are faults in which a replica replaces a master that cannot hand over. Writes that only the master had
// are lost.
type crashes struct {
	*deliveryChaos
	cluster *clusterChaos
	random  *rand.Rand
}

// Three hosts, whose writes wait for a replica, send notifications while masters of delivery's shards are killed
// and frozen.
func TestChaosOfCrashesLosesNoNotification(t *testing.T) {
	t.Parallel()
	redistest.Require(t)
	servers := redistest.Cluster(t, 3, 1)
	seed := seedOf(t.Name())
	if *chaosTime > 0 {
		seed = rand.Uint64()
	}
	t.Logf("seed %d", seed)
	c := crashes{
		deliveryChaos: newDeliveryChaos(t, strings.Join(servers.Addrs(), ",")),
		cluster:       &clusterChaos{ClusterServers: servers, client: servers.Client(t)},
		random:        rand.New(rand.NewPCG(seed, 0)),
	}
	c.durable = rediscommit.Durability{Replicas: 1, Timeout: time.Second}
	c.setPushers(c.cluster.client)
	for n := range c.hosts {
		c.start(n, c.redis)
	}
	end := time.Now().Add(*chaosTime)
	c.run(func() {
		faults := []func(context.Context) error{c.kill, c.killBesidePausedHost, c.freeze}
		for n := 0; n < len(faults) || time.Now().Before(end); n++ {
			time.Sleep(chaosSteady)
			c.faults += len(c.hosts) // each may be cut off from shards
			c.causeFault(faults[n%len(faults)])
		}
		time.Sleep(chaosSteady)
	})
}

func (c *crashes) causeFault(fault func(context.Context) error) {
	ctx, cancel := context.WithTimeout(c.t.Context(), roundLimit)
	defer cancel()
	err := fault(ctx)
	if err == nil {
		err = c.cluster.WaitWhole(ctx)
	}
	if err != nil {
		c.t.Fatal(err)
	}
}

// master returns a random master and one of its slots. Each master has shards of every host.
func (c *crashes) master(ctx context.Context) (master *redistest.Server, slot int, err error) {
	slot = c.random.IntN(clusterSlots)
	master, err = c.cluster.MasterOf(ctx, slot)
	return master, slot, err
}

// kill kills a master that is ahead of its replica. After the replica has replaced it, the old master restarts as
// a replica.
func (c *crashes) kill(ctx context.Context) error {
	master, slot, err := c.master(ctx)
	if err != nil {
		return err
	}
	replica, err := c.cluster.replicaOf(ctx, master)
	if err != nil {
		return err
	}
	c.t.Logf("the master of slot %d is killed", slot)
	defer replica.Resume()
	if err := c.cluster.outrun(ctx, &faultRun{random: c.random}, master, replica); err != nil {
		return err
	}
	master.Stop()
	defer master.Start()
	replica.Resume()
	_, err = c.cluster.WaitTakeover(ctx, slot, master)
	return err
}

// killBesidePausedHost kills a master while a host is paused for longer than its leases last.
func (c *crashes) killBesidePausedHost(ctx context.Context) error {
	n := c.random.IntN(len(c.hosts))
	c.t.Logf("host %d is paused", n)
	paused, resume := c.hosts[n].Load(), time.Now().Add(chaosPause)
	paused.signal(c.t, syscall.SIGSTOP)
	defer func() {
		c.resumed = append(c.resumed, time.Now())
		paused.signal(c.t, syscall.SIGCONT)
	}()
	if err := c.kill(ctx); err != nil {
		return err
	}
	return sleep(ctx, time.Until(resume))
}

// freeze pauses a master until a replica has replaced it. Afterwards it still acts as a master for a while.
func (c *crashes) freeze(ctx context.Context) error {
	master, slot, err := c.master(ctx)
	if err != nil {
		return err
	}
	c.t.Logf("the master of slot %d is frozen", slot)
	master.Pause()
	defer master.Resume()
	if _, err := c.cluster.WaitTakeover(ctx, slot, master); err != nil {
		return err
	}
	return sleep(ctx, time.Duration(c.random.Int64N(int64(500*time.Millisecond))))
}
