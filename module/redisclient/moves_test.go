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
e1 127.0.0.1:7005@17005 master,fail? - 0 0 5 connected [93->-b1]
g1 :0@0 master,noaddr - 0 0 6 disconnected
h1 127.0.0.1:7007@17007 handshake - 0 0 0 connected
`
	var got []string
	for _, n := range readNodes(nodes) {
		got = append(got, fmt.Sprintf("%s %s %s %s, slots: %t, move: %t", n.id, n.addresses, n.flags, n.master, n.hasSlots, n.isMoving))
	}
	want := []string{
		"a1 [127.0.0.1:7000] [myself master] -, slots: true, move: true",
		"a2 [127.0.0.1:7001] [slave fail] a1, slots: false, move: false",
		"b1 [127.0.0.1:7002 host-b:7002] [master] -, slots: true, move: false",
		"c1 [[::1]:7003] [master fail] -, slots: true, move: false",
		"e1 [127.0.0.1:7005] [master fail?] -, slots: false, move: true",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
	state := func(line string) string { return readNodes(line)[0].state }
	before := "a1 127.0.0.1:7000@17000 master - 1 2 3 connected 0-5460"
	if state(before) != state("a1 127.0.0.1:7000@17000 master - 8 9 3 connected 0-5460") || state(before) == state("a1 127.0.0.1:7000@17000 master - 1 2 4 connected 0-5460") {
		t.Error("the state has the epoch and no times")
	}
	if nodes := readNodes("not a list\n\n"); len(nodes) != 0 {
		t.Errorf("got %v", nodes)
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
	c.moves = newMoves(c.client, &silences{observer: c.skipped})
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

// expire makes all replies too old.
func (c *movingCluster) expire() { c.age(2 * settledAge) }

// age makes all replies older.
func (c *movingCluster) age(by time.Duration) {
	c.moves.mu.Lock()
	defer c.moves.mu.Unlock()
	for _, r := range c.moves.layouts {
		r.began = r.began.Add(-by)
		if r.value != nil {
			r.value.asked, r.value.since = r.value.asked.Add(-by), r.value.since.Add(-by)
		}
	}
	for _, r := range c.moves.blocks {
		r.began = r.began.Add(-by)
		if r.value != nil {
			r.value.asked = r.value.asked.Add(-by)
		}
	}
}

// nextLook is when the nodes are listed again.
const nextLook = replyAge + replyAge/4

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

// calls returns how often the masters were asked for the nodes, and for keys in slots.
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
			case "cmdstat_cluster|getkeysinslot":
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
	const keys, seconds = 5000, 10
	for range seconds {
		for i := range keys {
			c.wantAlone(t, fmt.Sprint("missing", i))
		}
		c.age(nextLook)
	}
	nodes, slots := c.calls(t)
	nodes, slots = nodes-nodesBefore, slots-slotsBefore
	masters := len(c.Masters())
	if most := (seconds + int(time.Since(start)/replyAge)) * 2 * masters; nodes > most {
		t.Errorf("CLUSTER NODES %d times in %v, want %d at most", nodes, time.Since(start), most)
	}
	looks := 1 + int((time.Since(start)+seconds*nextLook)/settledAge)
	// A block at the border of two masters is asked for from both.
	if most := looks * (masters - 1) * (16384 + masters*slotBlock); slots > most {
		t.Errorf("GETKEYSINSLOT %d times, want %d at most", slots, most)
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
	if _, after := c.calls(t); after-before > tries*len(c.Masters())*16384 {
		t.Errorf("%d questions about slots in %d tries", after-before, tries)
	}
}

// The last replies are from before the move, but from another node.
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
	c.wantElsewhere(t, replied)
}

// The master that is back has forgotten the move, and has replied before. The list of the nodes tells.
func TestAFailoverThereAndBackDuringAMoveIsNoticed(t *testing.T) {
	t.Parallel()
	c := newMovingCluster(t, 1)
	c.wantAlone(t, movedKey)
	c.moveKey(t)
	replicas, err := c.ReplicasOf(t.Context(), c.owner)
	if err != nil || len(replicas) != 1 {
		t.Fatal(replicas, err)
	}
	last := c.owner
	for _, next := range []*redistest.Server{replicas[0], c.owner} {
		if err := next.Client(t).Do(t.Context(), "CLUSTER", "FAILOVER", "TAKEOVER").Err(); err != nil {
			t.Fatal(err)
		}
		if got, err := c.WaitTakeover(t.Context(), movedSlot, last); err != nil || got != next {
			t.Fatal(got, err)
		}
		last = next
	}
	owner := c.owner.Client(t)
	if exists, err := owner.Exists(t.Context(), movedKey).Result(); exists != 0 || err != nil {
		t.Skipf("the master knows of the move: %d, %v", exists, err)
	}
	c.age(nextLook)
	c.wantElsewhere(t, owner)
}

// Keys may follow while a slot moves, and a node that was silent may have keys.
func TestRepliesOfACalmClusterAreUsedLonger(t *testing.T) {
	t.Parallel()
	c := newMovingCluster(t, 0, "--cluster-node-timeout", "60000") // nobody is declared failed
	lastReply := func() *reply[*keys] {
		t.Helper()
		c.wantAlone(t, "another{"+movedKey+"}")
		c.moves.mu.Lock()
		defer c.moves.mu.Unlock()
		return c.moves.blocks[block{c.owner.Addr(), movedSlot / slotBlock * slotBlock}]
	}
	isAskedAgain := func() bool {
		t.Helper()
		before := lastReply()
		c.age(nextLook)
		return lastReply() != before
	}
	if isAskedAgain() {
		t.Error("a calm cluster is asked again")
	}
	if _, err := c.BeginMove(t.Context(), movedSlot, c.target); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if !isAskedAgain() {
			t.Error("the cluster is not asked again while a slot moves")
		}
	}
	c.stabilize(t, c.owner)
	c.stabilize(t, c.target)
	if isAskedAgain(); isAskedAgain() {
		t.Error("the cluster is asked again after the move")
	}
	c.target.Pause()
	t.Cleanup(c.target.Resume)
	c.expire()
	if !isAskedAgain() {
		t.Error("the cluster is not asked again while a node is silent")
	}
}

// In the end, the nodes are listed as in the beginning.
func TestAMoveThatIsForgottenAtOnceIsNoticed(t *testing.T) {
	t.Parallel()
	for name, looks := range map[string]bool{"other keys are missing meanwhile": true, "nothing is looked for meanwhile": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newMovingCluster(t, 0)
			c.wantAlone(t, movedKey)
			for _, step := range []func(){func() { c.moveKey(t) }, func() { c.stabilize(t, c.owner); c.stabilize(t, c.target) }} {
				step()
				c.age(nextLook)
				if looks {
					c.wantAlone(t, c.otherKeyOfOwner())
				}
			}
			c.wantElsewhere(t, c.owner.Client(t))
		})
	}
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
		c.expire()
		c.wantElsewhere(t, owner)
	}
	c.wantAlone(t, "another{"+movedKey+"}")
}

// Otherwise a silent master must not delay requests.
func TestASilentMasterIsLeftOutUnlessItHadKeysOfTheSlot(t *testing.T) {
	t.Parallel()
	c := newMovingCluster(t, 0, "--cluster-node-timeout", "60000") // it is never declared failed
	c.moveKey(t)
	owner := c.owner.Client(t)
	c.wantElsewhere(t, owner)
	c.target.Pause()
	t.Cleanup(c.target.Resume)
	c.expire()
	c.wantAlone(t, c.otherKeyOfOwner())
	for range 3 {
		c.expire()
		began := time.Now()
		c.wantAlone(t, c.otherKeyOfOwner())
		if took := time.Since(began); took > silentAfter/2 {
			t.Errorf("the silent master was waited for, for %v", took)
		}
		const want = "cannot tell"
		if err := c.moves.elsewhere(t.Context(), movedKey, owner); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("got %v, want %s", err, want)
		}
	}
	if n := c.skipped.Load(); n != 1 {
		t.Errorf("%d reports, want 1", n)
	}
	c.target.Resume()
	eventually(t, "it is asked again", func() bool {
		c.expire()
		return errors.Is(c.moves.elsewhere(t.Context(), movedKey, owner), ErrOtherMaster)
	})
}

// A replica has the keys of its master.
func TestTheReplicaOfASilentMasterIsAsked(t *testing.T) {
	t.Parallel()
	c := newMovingCluster(t, 1, "--cluster-node-timeout", "60000")
	c.moveKey(t)
	replicas, err := c.ReplicasOf(t.Context(), c.target)
	if err != nil || len(replicas) != 1 {
		t.Fatal(replicas, err)
	}
	eventually(t, "the replica has the key", func() bool {
		n, err := replicas[0].Client(t).ClusterCountKeysInSlot(t.Context(), movedSlot).Result()
		return err == nil && n == 1
	})
	c.target.Pause()
	t.Cleanup(c.target.Resume)
	c.wantElsewhere(t, c.owner.Client(t))
	c.wantAlone(t, c.otherKeyOfOwner())
}

// A master that is lost has its keys nowhere else, so nothing waits for it.
func TestALostMasterIsLeftOut(t *testing.T) {
	t.Parallel()
	c := newMovingCluster(t, 0)
	c.moveKey(t)
	c.wantElsewhere(t, c.owner.Client(t))
	c.target.Stop()
	eventually(t, "the master is declared failed", func() bool {
		nodes, err := c.owner.Client(t).ClusterNodes(t.Context()).Result()
		return err == nil && strings.Contains(nodes, "master,fail ")
	})
	for range 2 {
		c.expire()
		c.wantAlone(t, movedKey)
	}
	if n := c.skipped.Load(); n != 1 {
		t.Errorf("%d reports, want 1", n)
	}
}

// After a restart, a node may not know the latest masters.
func TestMastersUnknownToTheNodeAreAsked(t *testing.T) {
	t.Parallel()
	c := newMovingCluster(t, 0)
	c.moveKey(t)
	c.stabilize(t, c.owner)
	owner := c.owner.Client(t)
	id, err := c.target.Client(t).ClusterMyID(t.Context()).Result()
	if err == nil {
		err = owner.ClusterForget(t.Context(), id).Err()
	}
	if err != nil {
		t.Fatal(err)
	}
	if nodes, err := owner.ClusterNodes(t.Context()).Result(); err != nil || strings.Contains(nodes, c.target.Addr()) {
		t.Fatal(nodes, err)
	}
	c.wantElsewhere(t, owner)
}

// The announced name is for people, unless cluster-preferred-endpoint-type says otherwise.
func TestMastersWhoseNameCannotBeResolvedAreAsked(t *testing.T) {
	t.Parallel()
	c := newMovingCluster(t, 0)
	for _, master := range c.Masters() {
		if err := master.Client(t).ConfigSet(t.Context(), "cluster-announce-hostname", "redis.invalid").Err(); err != nil {
			t.Skip("this server has no host names: ", err)
		}
	}
	newcomer := c.Newcomer(t) // the cluster client does not know it
	if err := newcomer.Client(t).ConfigSet(t.Context(), "cluster-announce-hostname", "redis.invalid").Err(); err != nil {
		t.Fatal(err)
	}
	owner := c.owner.Client(t)
	eventually(t, "all names are known", func() bool {
		nodes, err := owner.ClusterNodes(t.Context()).Result()
		return err == nil && strings.Count(nodes, "redis.invalid") == 4
	})
	c.target = newcomer
	c.moveKey(t)
	c.stabilize(t, c.owner)
	c.wantElsewhere(t, owner)
}

func eventually(t *testing.T, what string, isSo func() bool) {
	t.Helper()
	for start := time.Now(); !isSo(); time.Sleep(10 * time.Millisecond) {
		if time.Since(start) > never {
			t.Fatalf("not so after %v: %s", never, what)
		}
	}
}
