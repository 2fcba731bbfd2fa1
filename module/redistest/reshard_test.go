package redistest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// clusterContext is for what takes a cluster its time.
func clusterContext(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), clusterTimeout)
	t.Cleanup(cancel)
	return ctx
}

// slotOf returns the slot of the key.
func slotOf(t *testing.T, c *ClusterServers, key string) int {
	t.Helper()
	slot, err := c.Client(t).ClusterKeySlot(testContext(t), key).Result()
	expectNoError(t, err)
	return int(slot)
}

// twoMasters returns the master of the slot and another.
func twoMasters(t *testing.T, c *ClusterServers, slot int) (from, to *Server) {
	t.Helper()
	from, err := c.MasterOf(testContext(t), slot)
	expectNoError(t, err)
	for _, other := range []int{0, slotCount - 1} {
		to, err = c.MasterOf(testContext(t), other)
		expectNoError(t, err)
		if to != from {
			break
		}
	}
	return from, to
}

func expectMaster(t *testing.T, c *ClusterServers, slot int, want *Server) {
	t.Helper()
	got, err := c.MasterOf(testContext(t), slot)
	expectNoError(t, err)
	if got != want {
		t.Errorf("the master of slot %d is %s, want %s", slot, got.Addr(), want.Addr())
	}
}

func expectWhole(t *testing.T, c *ClusterServers) {
	t.Helper()
	expectNoError(t, c.WaitWhole(clusterContext(t)))
}

// doer is a client or a connection.
type doer interface {
	Do(ctx context.Context, args ...any) *redis.Cmd
}

// expectAnswer sends a command to one server. What is wanted begins the answer
// or the error.
func expectAnswer(t *testing.T, server doer, want string, command ...any) {
	t.Helper()
	answer, err := server.Do(testContext(t), command...).Result()
	got := fmt.Sprint(answer)
	if err != nil {
		got = err.Error()
	}
	if !strings.HasPrefix(got, want) {
		t.Errorf("%v: got %q, want %q", command, got, want)
	}
}

func expectNoError(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// expectError wants an error with the text.
func expectError(t *testing.T, err error, want string) {
	t.Helper()
	if err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("got the error %v, want one with %q", err, want)
	}
}

// load is what clients do while something happens to the cluster.
type load struct {
	client *redis.ClusterClient
	tag    string
	end    context.CancelFunc
	group  sync.WaitGroup
	counts atomic.Int64
}

const loadKeys = 2*moveBatch + 1

func (l *load) key(n int) string { return fmt.Sprint(l.tag, n%loadKeys) }

// startLoad has clients count in keys that begin with the tag.
func startLoad(t *testing.T, c *ClusterServers, tag string) *load {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	l := &load{client: c.Client(t), tag: tag, end: cancel}
	for i := range 3 {
		l.group.Go(func() {
			for n := i; ctx.Err() == nil; n++ {
				l.count(t, l.key(n))
			}
		})
	}
	t.Cleanup(l.stop)
	return l
}

// count counts what was not refused. Servers may refuse for a moment, while they
// do not know yet who is master.
func (l *load) count(t *testing.T, key string) {
	var refusal redis.Error
	err := l.client.Incr(context.WithoutCancel(t.Context()), key).Err()
	switch {
	case err == nil:
		l.counts.Add(1)
	case errors.As(err, &refusal):
		time.Sleep(pollInterval)
	default:
		t.Errorf("a client failed: %v", err)
		l.end()
	}
}

func (l *load) stop() {
	l.end()
	l.group.Wait()
}

// expectAll ends the load and wants the servers to have every count, once.
func (l *load) expectAll(t *testing.T) {
	t.Helper()
	l.stop()
	var sum int64
	for n := range loadKeys {
		count, err := l.client.Get(testContext(t), l.key(n)).Int64()
		if err != nil && !errors.Is(err, redis.Nil) {
			t.Fatal(err)
		}
		sum += count
	}
	if want := l.counts.Load(); sum != want || want == 0 {
		t.Errorf("of %d counts the servers have %d", want, sum)
	}
}

func TestSlotsMove(t *testing.T) {
	t.Parallel()
	cluster := Cluster(t, 2, 1, "--requirepass", "secret")
	t.Run("half", func(t *testing.T) { testHalfMovedSlot(t, cluster) })
	t.Run("back", func(t *testing.T) { testAbandonedMove(t, cluster) })
	t.Run("whole", func(t *testing.T) { testMovesUnderLoad(t, cluster) })
	t.Run("settled", func(t *testing.T) { testSettledMoves(t, cluster) })
	t.Run("in turn", func(t *testing.T) { testManyChanges(t, cluster) })
	t.Run("refused", func(t *testing.T) { testRefusedMoves(t, cluster) })
}

func testHalfMovedSlot(t *testing.T, cluster *ClusterServers) {
	ctx, slot := testContext(t), slotOf(t, cluster, "{h}")
	from, to := twoMasters(t, cluster, slot)
	before, after := from.Client(t), to.Client(t)
	ask := fmt.Sprintf("ASK %d %s", slot, to.Addr())
	expectAnswer(t, before, "OK", "mset", "{h}1", 1, "{h}2", 2)

	move, err := cluster.BeginMove(ctx, slot, to)
	expectNoError(t, err)
	expectNoError(t, move.MoveKeys(ctx))
	expectNoError(t, move.MoveKeys(ctx, "{h}1", "{h}none"))
	expectMaster(t, cluster, slot, from)
	expectAnswer(t, before, ask, "get", "{h}1")
	expectAnswer(t, before, ask, "get", "{h}none")
	expectAnswer(t, before, "2", "get", "{h}2")
	expectAnswer(t, before, "TRYAGAIN", "mget", "{h}1", "{h}2")
	expectAnswer(t, after, fmt.Sprintf("MOVED %d %s", slot, from.Addr()), "get", "{h}1")
	if got, err := cluster.Client(t).Get(ctx, "{h}1").Int(); got != 1 || err != nil {
		t.Errorf("a client of the cluster got %d, %v", got, err)
	}
	expectWhole(t, cluster)
	expectError(t, move.Abandon(ctx), "has 1 keys")
	expectError(t, move.Finish(ctx), "still has 1 keys")
	expectAnswer(t, before, ask, "get", "{h}1")

	expectNoError(t, move.MoveKeys(ctx, "{h}1", "{h}2"))
	expectNoError(t, move.Finish(ctx))
	expectMaster(t, cluster, slot, to)
	expectAnswer(t, before, fmt.Sprintf("MOVED %d %s", slot, to.Addr()), "get", "{h}1")
	expectAnswer(t, after, "[1 2]", "mget", "{h}1", "{h}2")
	expectError(t, move.Finish(ctx), "not moving")
	expectWhole(t, cluster)
}

func testAbandonedMove(t *testing.T, cluster *ClusterServers) {
	ctx, slot := testContext(t), slotOf(t, cluster, "{b}")
	from, to := twoMasters(t, cluster, slot)
	move, err := cluster.BeginMove(ctx, slot, to)
	expectNoError(t, err)
	expectAnswer(t, from.Client(t), "ASK", "set", "{b}", 1)
	expectNoError(t, move.Abandon(ctx))
	expectNoError(t, move.Abandon(ctx))
	expectAnswer(t, from.Client(t), "OK", "set", "{b}", 1)
	expectError(t, move.Finish(ctx), "not moving")
	expectMaster(t, cluster, slot, from)
}

// The moves follow each other so fast that masters hear late of each other's
// claims.
func testMovesUnderLoad(t *testing.T, cluster *ClusterServers) {
	ctx, slot := clusterContext(t), slotOf(t, cluster, "{x}")
	from, to := twoMasters(t, cluster, slot)
	load := startLoad(t, cluster, "{x}")
	for range 6 {
		expectNoError(t, cluster.MoveSlot(ctx, slot, to))
		expectNoError(t, cluster.MoveSlot(ctx, slot, to))
		expectMaster(t, cluster, slot, to)
		from, to = to, from
	}
	expectWhole(t, cluster)
	load.expectAll(t)
}

func testSettledMoves(t *testing.T, cluster *ClusterServers) {
	ctx, slot, other := clusterContext(t), slotOf(t, cluster, "{s}"), slotOf(t, cluster, "{t}")
	from, to := twoMasters(t, cluster, slot)
	expectAnswer(t, from.Client(t), "OK", "mset", "{s}1", 1, "{s}2", 2)
	move, err := cluster.BeginMove(ctx, slot, to)
	expectNoError(t, err)
	expectNoError(t, move.MoveKeys(ctx, "{s}1"))
	otherFrom, otherTo := twoMasters(t, cluster, other)
	unmoved, err := cluster.BeginMove(ctx, other, otherTo)
	expectNoError(t, err)

	expectNoError(t, cluster.SettleMoves(ctx))
	expectMaster(t, cluster, slot, to)
	expectAnswer(t, to.Client(t), "[1 2]", "mget", "{s}1", "{s}2")
	expectMaster(t, cluster, other, otherFrom)
	expectError(t, move.Finish(ctx), "not moving")
	expectError(t, unmoved.Finish(ctx), "not moving")
	expectWhole(t, cluster)
}

// Slots move and masters are replaced all at once, and nobody loses anything.
func testManyChanges(t *testing.T, cluster *ClusterServers) {
	ctx, load := clusterContext(t), startLoad(t, cluster, "{m}")
	var group sync.WaitGroup
	for _, slot := range []int{slotOf(t, cluster, "{m}"), slotOf(t, cluster, "{n}")} {
		group.Go(func() {
			for i := range 10 {
				// An error is no fault: the master may have been replaced just now.
				if to, err := cluster.MasterOf(ctx, i%2*(slotCount-1)); err == nil {
					_ = cluster.MoveSlot(ctx, slot, to)
				}
			}
		})
	}
	for _, slot := range []int{0, slotCount - 1} {
		master, err := cluster.MasterOf(ctx, slot)
		expectNoError(t, err)
		replicas, err := cluster.ReplicasOf(ctx, master)
		expectNoError(t, err)
		expectNoError(t, cluster.Failover(ctx, replicas[0]))
	}
	group.Wait()
	expectNoError(t, cluster.SettleMoves(ctx))
	expectWhole(t, cluster)
	load.expectAll(t)
}

func testRefusedMoves(t *testing.T, cluster *ClusterServers) {
	ctx, slot := testContext(t), slotOf(t, cluster, "{r}")
	from, to := twoMasters(t, cluster, slot)
	replicas, err := cluster.ReplicasOf(ctx, to)
	expectNoError(t, err)
	_, err = cluster.BeginMove(ctx, slot, from)
	expectError(t, err, "already")
	expectError(t, cluster.MoveSlot(ctx, slot, Single(t)), "not in the cluster")
	expectError(t, cluster.MoveSlot(ctx, slot, replicas[0]), "only with masters")
	expectError(t, cluster.MoveSlot(ctx, slotCount, to), "no running node is the master")
	to.Stop()
	expectError(t, cluster.MoveSlot(ctx, slot, to), to.Addr())
	from.Stop()
	_, err = cluster.MasterOf(ctx, slot)
	expectError(t, err, "no running node is the master")
}
