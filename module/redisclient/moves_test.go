package redisclient

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/pushfx/pushfx/module/observe"
	"github.com/pushfx/pushfx/module/redistest"
)

func TestReadNodesParsesCLUSTERNODES(t *testing.T) {
	t.Parallel()
	const nodes = `a1 127.0.0.1:7000@17000 myself,master - 0 0 1 connected 0-5460 7000 [93-<-b1]
a2 127.0.0.1:7001@17001 slave,fail a1 0 0 1 connected
b1 127.0.0.1:7002@17002,host-b master - 0 0 2 connected 5461
c1 ::1:7003@17003,,shard-id=x master,fail - 0 0 3 disconnected 5462-16383
e1 127.0.0.1:7005@17005 master,fail? - 0 0 5 connected
g1 :0@0 master,noaddr - 0 0 6 disconnected
h1 127.0.0.1:7007@17007 handshake - 0 0 0 connected
`
	var got []string
	for _, n := range readNodes(nodes) {
		got = append(got, fmt.Sprint(n))
	}
	want := []string{
		"{a1 [127.0.0.1:7000] [myself master] - 1 [{0 5460} {7000 7000}] [93]}", "{a2 [127.0.0.1:7001] [slave fail] a1 1 [] []}",
		"{b1 [host-b:7002 127.0.0.1:7002] [master] - 2 [{5461 5461}] []}", "{c1 [[::1]:7003] [master fail] - 3 [{5462 16383}] []}",
		"{e1 [127.0.0.1:7005] [master fail?] - 5 [] []}",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
	if nodes := readNodes("not a list\n\n"); len(nodes) != 0 {
		t.Errorf("got %v", nodes)
	}
}

// A master is lost only if no replica can replace it, and replaced if another one has its slots.
func TestAFailedMasterIsLostOrReplaced(t *testing.T) {
	t.Parallel()
	for list, want := range map[string]string{
		"b1 127.0.0.1:7002@17002 master - 0 0 2 connected 5461-16383\n":                                                                                   "a1 b1",
		"b1 127.0.0.1:7002@17002 master,fail? - 0 0 2 connected 5461-16383\n":                                                                             "a1 b1",
		"b1 127.0.0.1:7002@17002 master,fail - 0 0 2 connected 5461-16383\nb2 127.0.0.1:7003@17003 slave b1 0 0 2 connected\n":                            "a1 b1",
		"b1 127.0.0.1:7002@17002 master,fail - 0 0 2 connected 5461-16383\nb2 127.0.0.1:7003@17003 slave,fail b1 0 0 2 connected\n":                       "a1 b1 lost",
		"b1 127.0.0.1:7002@17002 master,fail - 0 0 2 connected 5461-16383\n":                                                                              "a1 b1 lost",
		"b1 127.0.0.1:7002@17002 master,fail - 0 0 2 connected\nb2 127.0.0.1:7003@17003 master - 0 0 3 connected 5461-16383\n":                            "a1 b2",
		"b1 127.0.0.1:7002@17002 master,fail - 0 0 2 connected [93->-a1]\nb2 127.0.0.1:7003@17003 master,fail? - 0 0 3 connected 5461-16383\n":            "a1 b2",
		"b1 127.0.0.1:7002@17002 master,fail,noaddr - 0 0 2 connected 5461-16383\nc1 127.0.0.1:7004@17004 master - 0 0 0 connected\n":                     "a1 c1",
		"b1 127.0.0.1:7002@17002 slave a1 0 0 2 connected\nc1 127.0.0.1:7004@17004 myself,slave b1 0 0 0 connected\n":                                     "a1",
		"b1 127.0.0.1:7002@17002 master,fail - 0 0 2 connected 5461-16383\nb2 127.0.0.1:7003@17003 slave,fail? b1 0 0 2 connected\nb3 :0@0 handshake -\n": "a1 b1",
	} {
		b := shapeBuilder{shape: &shape{}, silences: newSilences(), all: map[string]*master{}, followed: map[string]bool{}}
		b.add([]string{"a:1"}, "a1 127.0.0.1:7000@17000 myself,master - 0 0 1 connected 0-5460\n"+list)
		s, err := b.finish(t.Context(), false)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, m := range s.masters {
			if got = append(got, m.id); m.isLost() {
				got = append(got, "lost")
			}
		}
		if strings.Join(got, " ") != want {
			t.Errorf("%s: got %v, want %s", list, got, want)
		}
	}
}

const movedKey = "moved"

var movedSlot = SlotOf(movedKey)

// movingCluster is a cluster with a slot that may move.
type movingCluster struct {
	*redistest.ClusterServers
	client        *redis.ClusterClient
	owner, target *redistest.Server
	moves         *moves
	skipped       *skipCounter
	others        atomic.Int64
}

// skipCounter counts reports of skipped masters.
type skipCounter struct {
	observe.Observer
	atomic.Int64
}

func (r *skipCounter) Report(problem observe.Problem, _ error) {
	if problem == observe.MasterSkipped {
		r.Add(1)
	}
}

func newMovingCluster(t *testing.T, replicas int, args ...string) *movingCluster {
	t.Helper()
	cluster := redistest.Cluster(t, 3, replicas, append([]string{"--cluster-require-full-coverage", "no"}, args...)...)
	c := &movingCluster{ClusterServers: cluster, client: cluster.Client(t)}
	c.owner = c.ownerOf(t)
	masters := cluster.Masters()
	c.target = masters[(slices.Index(masters, c.owner)+1)%len(masters)]
	c.skipped = &skipCounter{Observer: observe.None}
	c.moves = newMoves(c.client, c.skipped)
	return c
}

func (c *movingCluster) ownerOf(t *testing.T) *redistest.Server {
	t.Helper()
	owner, err := c.MasterOf(t.Context(), movedSlot)
	if err != nil {
		t.Fatal(err)
	}
	return owner
}

// moveKey moves the key, and leaves the slot's move open.
func (c *movingCluster) moveKey(t *testing.T) {
	t.Helper()
	err := c.client.Set(t.Context(), movedKey, "text", 0).Err()
	if err != nil {
		t.Fatal(err)
	}
	move, err := c.BeginMove(t.Context(), movedSlot, c.target)
	if err == nil {
		err = move.MoveKeys(t.Context(), movedKey)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// keepShape makes the latest shape as young as it can be.
func (c *movingCluster) keepShape() {
	c.moves.mu.Lock()
	defer c.moves.mu.Unlock()
	c.moves.latest.began = time.Now()
}

func (c *movingCluster) loseShape() {
	c.moves.mu.Lock()
	defer c.moves.mu.Unlock()
	c.moves.latest = nil
}

// settle makes the last change of the shape old.
func (c *movingCluster) settle() { c.setChanged(time.Now().Add(-2 * settleTime)) }

// unsettle makes the shape change now.
func (c *movingCluster) unsettle() { c.setChanged(time.Now()) }

func (c *movingCluster) setChanged(at time.Time) {
	c.moves.mu.Lock()
	defer c.moves.mu.Unlock()
	c.moves.changed = at
	c.moves.latest = nil
}

// otherKeyOfOwner returns a new key of another slot of the same master.
func (c *movingCluster) otherKeyOfOwner() string {
	for {
		key := fmt.Sprint("other", c.others.Add(1))
		first, last := c.slotsOfOwner()
		if slot := SlotOf(key); first <= slot && slot <= last && slot/slotBlock != movedSlot/slotBlock {
			return key
		}
	}
}

func (c *movingCluster) slotsOfOwner() (first, last int) {
	masters := c.Masters()
	n := slices.Index(masters, c.owner)
	return n * slots / len(masters), (n+1)*slots/len(masters) - 1
}

// shapeFrom returns the shape as seen by a client that gets this reply to CLUSTER NODES.
func (c *movingCluster) shapeFrom(t *testing.T, nodes string) *shape {
	t.Helper()
	b := newShapeBuilder(t.Context(), c.client, newSilences())
	b.add(nil, nodes)
	b.askAll(t.Context(), b.unasked())
	s, err := b.finish(t.Context(), true)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func (c *movingCluster) wantAlone(t *testing.T, key string) {
	t.Helper()
	node, err := c.client.MasterForKey(t.Context(), key)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.elsewhere(t, key, node); err != nil {
		t.Errorf("%s: %v", key, err)
	}
}

// elsewhere asks again while masters of a busy machine do not reply in time.
func (c *movingCluster) elsewhere(t *testing.T, key string, replied *redis.Client) error {
	t.Helper()
	for start := time.Now(); ; {
		err := c.moves.elsewhere(t.Context(), key, replied)
		if err == nil || errors.Is(err, ErrOtherMaster) || time.Since(start) > never {
			return err
		}
	}
}

func (c *movingCluster) wantElsewhere(t *testing.T, replied *redis.Client) {
	t.Helper()
	const want = "another master has the key"
	if err := c.elsewhere(t, movedKey, replied); err == nil || !strings.HasPrefix(err.Error(), want) {
		t.Errorf("got %v, want %s", err, want)
	}
}

func (c *movingCluster) stabilize(t *testing.T, server *redistest.Server) {
	t.Helper()
	if err := server.Client(t).Do(t.Context(), "CLUSTER", "SETSLOT", movedSlot, "STABLE").Err(); err != nil {
		t.Fatal(err)
	}
}

// calls returns how often the masters were asked for the shape, and for keys in slots.
func (c *movingCluster) calls(t *testing.T) (nodes, slots int) {
	t.Helper()
	for _, master := range c.Masters() {
		info, err := master.Client(t).Info(t.Context(), "commandstats").Result()
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(info) {
			name, rest, _ := strings.Cut(line, ":calls=")
			count, _, _ := strings.Cut(rest, ",")
			n, _ := strconv.Atoi(count)
			switch name {
			case "cmdstat_cluster|nodes":
				nodes += n
			case "cmdstat_exists", "cmdstat_eval":
				slots += n
			}
		}
	}
	return nodes, slots
}

func TestMissingKeysOfAWholeClusterCostLittle(t *testing.T) {
	t.Parallel()
	c := newMovingCluster(t, 0)
	nodesBefore, slotsBefore := c.calls(t)
	start := time.Now()
	const keys = 5000
	for i := range keys {
		c.wantAlone(t, fmt.Sprint("missing", i))
	}
	nodes, slots := c.calls(t)
	looks := int(time.Since(start)/shapeAge) + 1
	if most := looks * (len(c.Masters()) + 1); nodes-nodesBefore > most {
		t.Errorf("CLUSTER NODES %d times in %v, want %d at most", nodes-nodesBefore, time.Since(start), most)
	}
	sweeps := int(time.Since(start)/aloneAge) + 1
	if most := sweeps * len(c.Masters()) * 16384 / slotBlock; slots-slotsBefore > most {
		t.Errorf("%d questions about slots, want %d at most", slots-slotsBefore, most)
	}
}

func TestManyMissingKeysAtOnceAskForEachBlockOnce(t *testing.T) {
	t.Parallel()
	c := newMovingCluster(t, 0)
	_, before := c.calls(t)
	commands := make([]*Command, 2000)
	for i := range commands {
		key := fmt.Sprint("missing", i)
		node, err := c.client.MasterForKey(t.Context(), key)
		if err != nil {
			t.Fatal(err)
		}
		commands[i] = &Command{Key: key, Node: node}
	}
	tries, pipelines := 1, NewPipelines(c.client, nil)
	for start := time.Now(); errors.Join(pipelines.Elsewhere(t.Context(), commands...)...) != nil; tries++ { // on a busy machine
		if time.Since(start) > never {
			t.Fatal("the masters do not reply in time")
		}
	}
	if _, after := c.calls(t); after-before > tries*len(c.Masters())*16384/slotBlock {
		t.Errorf("%d questions about slots in %d tries", after-before, tries)
	}
}

// The shape is from before the move: only the node that replies gives it away.
func TestAMoveThatBeginsAfterTheLookIsNoticed(t *testing.T) {
	t.Parallel()
	c := newMovingCluster(t, 1)
	c.wantAlone(t, movedKey)
	c.moveKey(t)
	replicas, err := c.ReplicasOf(t.Context(), c.owner)
	if err != nil || len(replicas) != 1 {
		t.Fatal(replicas, err)
	}
	if err := replicas[0].Client(t).Do(t.Context(), "CLUSTER", "FAILOVER", "TAKEOVER").Err(); err != nil {
		t.Fatal(err)
	}
	if next, err := c.WaitTakeover(t.Context(), movedSlot, c.owner); err != nil || next != replicas[0] {
		t.Fatal(next, err)
	}
	replied := replicas[0].Client(t)
	if exists, err := replied.Exists(t.Context(), movedKey).Result(); exists != 0 || err != nil {
		t.Skipf("the new master knows of the move: %d, %v", exists, err)
	}
	c.keepShape()
	c.wantElsewhere(t, replied)
}

// A person ended the move on both masters, which left the key on a master that does not serve it.
func TestAForgottenMoveIsNoticed(t *testing.T) {
	t.Parallel()
	c := newMovingCluster(t, 0)
	c.wantAlone(t, movedKey)
	c.moveKey(t)
	owner := c.owner.Client(t)
	for _, step := range []func(){func() {}, func() { c.stabilize(t, c.owner) }, func() { c.stabilize(t, c.target) }} {
		step()
		c.loseShape()
		c.wantElsewhere(t, owner)
	}
	c.wantAlone(t, "another{"+movedKey+"}")
}

// Requests wait for a silent master while slots get other masters, and if it is known to have keys of the slot.
// Otherwise it must not delay them.
func TestASilentMasterIsLeftOutUnlessItMayHaveTheKey(t *testing.T) {
	t.Parallel()
	c := newMovingCluster(t, 0, "--cluster-node-timeout", "60000") // it is never declared failed
	c.moveKey(t)
	owner := c.owner.Client(t)
	c.wantElsewhere(t, owner)
	for _, server := range []*redistest.Server{c.owner, c.target} {
		c.stabilize(t, server)
	}
	c.loseShape()
	c.wantElsewhere(t, owner)
	c.target.Pause()
	t.Cleanup(c.target.Resume)
	c.loseShape()
	const want = "cannot tell"
	if err := c.moves.elsewhere(t.Context(), movedKey, owner); err == nil || !strings.HasPrefix(err.Error(), want) {
		t.Errorf("got %v, want %s", err, want)
	}
	c.settle()
	c.wantAlone(t, c.otherKeyOfOwner())
	for range 3 {
		c.loseShape()
		start := time.Now()
		c.wantAlone(t, c.otherKeyOfOwner())
		if took := time.Since(start); took > searchTimeout/2 {
			t.Errorf("a request takes %v", took)
		}
	}
	if err := c.moves.elsewhere(t.Context(), movedKey, owner); err == nil || !strings.HasPrefix(err.Error(), want) {
		t.Errorf("of a slot with keys elsewhere: got %v, want %s", err, want)
	}
	if n := c.skipped.Load(); n != 1 {
		t.Errorf("%d reports, want 1", n)
	}
	c.target.Resume()
	eventually(t, "it is asked again", func() bool {
		c.loseShape()
		err := c.moves.elsewhere(t.Context(), movedKey, owner)
		return errors.Is(err, ErrOtherMaster)
	})
}

// A master that is lost has its keys nowhere else, so nothing waits for it.
func TestALostMasterIsLeftOut(t *testing.T) {
	t.Parallel()
	c := newMovingCluster(t, 0)
	c.wantAlone(t, movedKey)
	c.target.Stop()
	eventually(t, "the master is declared failed", func() bool {
		nodes, err := c.owner.Client(t).ClusterNodes(t.Context()).Result()
		return err == nil && strings.Contains(nodes, "master,fail ")
	})
	c.unsettle()
	c.loseShape()
	start := time.Now()
	c.wantAlone(t, movedKey)
	if took := time.Since(start); took > searchTimeout/2 {
		t.Errorf("it takes %v", took)
	}
}

// The restarted node lists a dead master from before a failover.
func TestMastersUnknownToARestartedNodeAreAsked(t *testing.T) {
	t.Parallel()
	c := newMovingCluster(t, 0)
	c.moveKey(t)
	c.stabilize(t, c.owner)
	nodes, err := c.client.ClusterNodes(t.Context()).Result()
	if err != nil {
		t.Fatal(err)
	}
	_, port, _ := strings.Cut(c.target.Addr(), ":")
	const unknown = "0123456789012345678901234567890123456789"
	for name, oldMaster := range map[string]string{
		"old master back, without a key": "",
		"old master dead":                unknown + " 127.0.0.1:1@10001 master - 0 0 2 connected 0\n",
	} {
		var stale strings.Builder
		for line := range strings.Lines(nodes) {
			if !strings.Contains(line, ":"+port+"@") {
				stale.WriteString(line)
			}
		}
		stale.WriteString(oldMaster)
		s := c.shapeFrom(t, stale.String())
		if err := c.moves.search(t.Context(), s, movedKey, true); err == nil || !strings.Contains(err.Error(), "another master has the key") {
			t.Errorf("%s: got %v", name, err)
		}
		if oldMaster == "" {
			continue
		}
		// No node lists the dead master as replaced.
		if s.isServedBy(0, c.owner.Client(t)) || s.isServedBy(0, c.Masters()[0].Client(t)) {
			t.Error("a slot has one master, although a silent one is listed for it, too")
		}
		if err := c.moves.search(t.Context(), s, "new{a}", true); err == nil || !strings.Contains(err.Error(), "cannot tell") {
			t.Errorf("%s, another key: got %v", name, err)
		}
	}
	if err := c.moves.search(t.Context(), c.shapeFrom(t, nodes), "new{a}", true); err != nil {
		t.Errorf("a key without a master: %v", err)
	}
}

func eventually(t *testing.T, what string, isSo func() bool) {
	t.Helper()
	for start := time.Now(); !isSo(); time.Sleep(10 * time.Millisecond) {
		if time.Since(start) > never {
			t.Fatalf("not so after %v: %s", never, what)
		}
	}
}
