package redisclient

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/pushfx/pushfx/module/redistest"
)

func TestReadMastersParsesCLUSTERNODES(t *testing.T) {
	t.Parallel()
	const nodes = `a1 127.0.0.1:7000@17000 myself,master - 0 0 1 connected 0-5460 [93-<-b1]
a2 127.0.0.1:7001@17001 slave a1 0 0 1 connected
b1 127.0.0.1:7002@17002,host-b master - 0 0 2 connected 5461
c1 ::1:7003@17003,,shard-id=x master,fail - 0 0 3 disconnected 5462-16383
d1 127.0.0.1:7004@17004 master,fail - 0 0 4 disconnected
e1 127.0.0.1:7005@17005 master,fail? - 0 0 5 connected
f1 127.0.0.1:7006@17006 master - 0 0 0 connected
g1 :0@0 master,noaddr - 0 0 6 disconnected
h1 127.0.0.1:7007@17007 handshake - 0 0 0 connected
i1 127.0.0.1:7008@17008 master,fail - 0 0 7 disconnected [93->-a1]
`
	var got []string
	for _, m := range readMasters(nodes) {
		got = append(got, fmt.Sprint(m.id, m.addresses, m.isReplaced))
	}
	want := []string{
		"a1[127.0.0.1:7000] false", "b1[host-b:7002 127.0.0.1:7002] false", "c1[[::1]:7003] false", "d1[127.0.0.1:7004] true",
		"e1[127.0.0.1:7005] false", "f1[127.0.0.1:7006] false", "i1[127.0.0.1:7008] true",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
	if masters := readMasters("not a list\n\n"); len(masters) != 0 {
		t.Errorf("got %v", masters)
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
}

func newMovingCluster(t *testing.T, replicas int) *movingCluster {
	t.Helper()
	cluster := redistest.Cluster(t, 3, replicas, "--cluster-require-full-coverage", "no")
	c := &movingCluster{ClusterServers: cluster, client: cluster.Client(t)}
	c.owner = c.ownerOf(t)
	masters := cluster.Masters()
	c.target = masters[(slices.Index(masters, c.owner)+1)%len(masters)]
	c.moves = newMoves(c.client)
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

func (c *movingCluster) wantAlone(t *testing.T, key string) {
	t.Helper()
	node, err := c.client.MasterForKey(t.Context(), key)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.moves.elsewhere(t.Context(), key, node); err != nil {
		t.Errorf("%s: %v", key, err)
	}
}

func (c *movingCluster) wantElsewhere(t *testing.T, replied *redis.Client) {
	t.Helper()
	const want = "another master has the key"
	if err := c.moves.elsewhere(t.Context(), movedKey, replied); err == nil || !strings.HasPrefix(err.Error(), want) {
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
	tries, pipelines := 1, NewPipelines(c.client)
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

func TestASilentMasterMayHaveAKey(t *testing.T) {
	t.Parallel()
	c := newMovingCluster(t, 0)
	c.target.Pause()
	t.Cleanup(c.target.Resume)
	if err := c.moves.elsewhere(t.Context(), movedKey, c.owner.Client(t)); err == nil || !strings.HasPrefix(err.Error(), "cannot tell") {
		t.Errorf("got %v", err)
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
		s := shapeFrom(t.Context(), c.client, stale.String())
		if err := s.search(t.Context(), movedKey); err == nil || !strings.Contains(err.Error(), "another master has the key") {
			t.Errorf("%s: got %v", name, err)
		}
		if oldMaster == "" {
			continue
		}
		// No node lists the dead master as replaced.
		if s.isServedBy(movedSlot, c.owner.Client(t)) {
			t.Error("the shape counts, although a master is silent")
		}
		if err := s.search(t.Context(), "new{a}"); err == nil || !strings.Contains(err.Error(), "cannot tell") {
			t.Errorf("%s, another key: got %v", name, err)
		}
	}
	if err := shapeFrom(t.Context(), c.client, nodes).search(t.Context(), "new{a}"); err != nil {
		t.Errorf("a key without a master: %v", err)
	}
}
