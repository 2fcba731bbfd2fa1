package redistest

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"
)

func expectReplicas(t *testing.T, c *ClusterServers, master *Server, want ...*Server) {
	t.Helper()
	got, err := c.ReplicasOf(testContext(t), master)
	expectNoError(t, err)
	if !slices.Equal(got, want) {
		t.Errorf("the master %s has %d replicas, want %d others", master.Addr(), len(got), len(want))
	}
}

func TestFailoverThereAndBack(t *testing.T) {
	t.Parallel()
	cluster := Cluster(t, 2, 1, "--cluster-node-timeout", "1000")
	ctx, slot := clusterContext(t), slotOf(t, cluster, "{x}")
	master, _ := twoMasters(t, cluster, slot)
	replicas, err := cluster.ReplicasOf(ctx, master)
	expectNoError(t, err)
	replica := replicas[0]
	expectError(t, cluster.Failover(ctx, master), "a master already")
	expectError(t, cluster.Failover(ctx, Single(t)), "not in the cluster")

	load := startLoad(t, cluster, "{x}")
	for range 3 {
		stop := watchRole(t, cluster, replica)
		expectNoError(t, cluster.Failover(ctx, replica))
		expectMaster(t, cluster, slot, replica)
		expectWhole(t, cluster)
		stop()
		expectReplicas(t, cluster, replica, master)
		master, replica = replica, master
	}
	load.expectAll(t)
}

// watchRole wants a replica that becomes a master to stay one: one that counts
// its old votes again does not. The function that it returns ends that.
func watchRole(t *testing.T, cluster *ClusterServers, replica *Server) (stop func()) {
	t.Helper()
	node, err := cluster.node(replica)
	expectNoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	var group sync.WaitGroup
	group.Go(func() {
		for wasMaster := false; ctx.Err() == nil; time.Sleep(5 * time.Millisecond) {
			v, err := node.view(ctx)
			if err != nil {
				continue
			}
			if wasMaster && !v.isMaster() {
				t.Errorf("%s became a master for a moment only", replica.Addr())
			}
			wasMaster = v.isMaster()
		}
	})
	return func() {
		cancel()
		group.Wait()
	}
}

func TestWaitWholeTellsWhatIsMissing(t *testing.T) {
	t.Parallel()
	cluster := Cluster(t, 1, 1)
	replica := cluster.Nodes()[1]
	wait := func() error {
		ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
		defer cancel()
		return cluster.WaitWhole(ctx)
	}
	replica.Pause()
	expectError(t, wait(), replica.Addr())
	replica.Resume()
	expectWhole(t, cluster)
	replica.Stop() // which clients are told of until the master has noticed
	expectError(t, wait(), "")
	replica.Start()
	expectWhole(t, cluster)
	cluster.Masters()[0].Stop()
	expectError(t, wait(), "")
	replica.Stop()
	expectError(t, wait(), "no node runs")
}

func TestAReplicaTakesOverAfterACrash(t *testing.T) {
	t.Parallel()
	cluster := Cluster(t, 3, 1, "--cluster-node-timeout", "1000")
	ctx, slot := clusterContext(t), slotOf(t, cluster, "{x}")
	from, to := twoMasters(t, cluster, slot)
	conn := from.Client(t).Conn()
	defer conn.Close()
	expectAnswer(t, conn, "OK", "mset", "{x}1", 1, "{x}2", 2)
	expectAnswer(t, conn, "1", "wait", 1, 5000)
	move, err := cluster.BeginMove(ctx, slot, to)
	expectNoError(t, err)
	expectNoError(t, move.MoveKeys(ctx, "{x}1"))

	from.Stop()
	expectError(t, move.Finish(testContext(t)), from.Addr())
	successor, err := cluster.WaitTakeover(ctx, slot, from)
	expectNoError(t, err)
	expectMaster(t, cluster, slot, successor)
	// A server that finds that two others have its slots may follow either.
	from.Start()
	expectRole(t, from, "slave")
	expectNoError(t, cluster.SettleMoves(ctx))
	expectMaster(t, cluster, slot, to)
	expectAnswer(t, to.Client(t), "[1 2]", "mget", "{x}1", "{x}2")
	expectWhole(t, cluster)
	expectReplicas(t, cluster, successor, from)
	testTakeoverFromPaused(t, cluster, successor, from)
}

// testTakeoverFromPaused pauses the master of the last slot, which learns of its
// successor when it goes on.
func testTakeoverFromPaused(t *testing.T, cluster *ClusterServers, master, replica *Server) {
	const slot = slotCount - 1
	expectMaster(t, cluster, slot, master)
	master.Pause()
	successor, err := cluster.WaitTakeover(clusterContext(t), slot, master)
	expectNoError(t, err)
	if successor != replica {
		t.Errorf("%s took over, want %s", successor.Addr(), replica.Addr())
	}
	master.Resume()
	expectWhole(t, cluster)
	expectReplicas(t, cluster, replica, master)
}
