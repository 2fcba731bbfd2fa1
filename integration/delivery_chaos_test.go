package integration

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/pushfx/pushfx"
	"github.com/pushfx/pushfx/integration/gateway/receiver"
	"github.com/pushfx/pushfx/module/commit/rediscommit"
	"github.com/pushfx/pushfx/module/delivery/redisqueue"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/pusher"
	"github.com/pushfx/pushfx/module/redistest"
	"github.com/pushfx/pushfx/module/stored"
)

const (
	chaosPushers  = 40                    // users, with a pusher each
	chaosMembers  = 10                    // members of an event
	chaosPause    = 7 * time.Second       // how long a host is paused: longer than a lease
	chaosTimeout  = 2 * time.Second       // time until a client asks another host
	chaosSettled  = 2 * time.Second       // after a pause, when the host may repeat requests
	chaosDoubled  = 2 * chaosPushers      // notifications that one fault of a host may repeat
	chaosPatience = 90 * time.Second      // until the last notification has arrived
	chaosSteady   = 2 * time.Second       // without faults, before each fault and after it
	chaosInterval = 40 * time.Millisecond // between events, so that no backlog overflows in half a minute

	chaosEvent = `{"event_id":"%s","room_id":"!r:x","type":"m.room.message","sender":"@sender:x","content":{}}`
)

// chaosGateway loses one of twenty answers to notifications that it has received.
type chaosGateway struct {
	receiver.Recorder
	*receiver.Receiver
	url   string
	count atomic.Int64
}

func newChaosGateway(t *testing.T) *chaosGateway {
	g := &chaosGateway{}
	g.Receiver = receiver.New(g.Add)
	g.Make(receiver.Trouble{Delay: 3 * time.Millisecond})
	server := httptest.NewServer(g)
	t.Cleanup(server.Close)
	g.url = server.URL + receiver.Path
	return g
}

func (g *chaosGateway) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	g.Receiver.ServeHTTP(w, r)
	if g.count.Add(1)%20 == 0 {
		panic(http.ErrAbortHandler)
	}
}

type deliveryChaos struct {
	t       *testing.T
	redis   string // its address
	durable rediscommit.Durability
	gateway *chaosGateway
	hosts   [3]atomic.Pointer[deliveryHost]
	client  *http.Client

	members map[string][]mxid.UserID // of each event
	resumed []time.Time
	faults  int // each may repeat chaosDoubled notifications
}

func newDeliveryChaos(t *testing.T, redisAddress string) *deliveryChaos {
	c := &deliveryChaos{
		t: t, redis: redisAddress, gateway: newChaosGateway(t),
		client: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 4}}, members: map[string][]mxid.UserID{},
	}
	t.Cleanup(c.client.CloseIdleConnections)
	return c
}

// run sends events while causeFaults runs, and then checks the notifications.
func (c *deliveryChaos) run(causeFaults func()) {
	ctx, cancel := context.WithCancel(c.t.Context())
	worked := make(chan struct{})
	go func() {
		defer close(worked)
		c.work(ctx)
	}()
	causeFaults()
	cancel()
	<-worked
	for n := range c.hosts {
		event, user := fmt.Sprintf("$end%d", n), chaosMember(n)
		c.members[event] = []mxid.UserID{user}
		request := sendRequest{Event: fmt.Sprintf(chaosEvent, event), Members: c.members[event]}
		for end := time.Now().Add(chaosPatience); !c.ask(n, request); time.Sleep(chaosInterval) {
			if time.Now().After(end) {
				c.t.Fatalf("host %d takes no event", n)
			}
		}
	}
	c.judge(c.wait())
}

func (c *deliveryChaos) start(n int, redisAddress string) {
	c.hosts[n].Store(startDeliveryHost(c.t, redisAddress, c.durable))
}

func chaosMember(n int) mxid.UserID { return mxid.UserID(fmt.Sprintf("@user%02d:x", n)) }

// work sends one event after the other until ctx ends. A host must accept an event before work sends the next.
func (c *deliveryChaos) work(ctx context.Context) {
	random := rand.New(rand.NewPCG(1, 2))
	for n := 0; ctx.Err() == nil; n++ {
		event := fmt.Sprintf("$%06d", n)
		request := sendRequest{Event: fmt.Sprintf(chaosEvent, event)}
		for _, user := range random.Perm(chaosPushers)[:chaosMembers] {
			request.Members = append(request.Members, chaosMember(user))
		}
		c.members[event] = request.Members
		if !c.send(n, request) {
			return
		}
		time.Sleep(chaosInterval)
	}
}

func (c *deliveryChaos) send(first int, request sendRequest) bool {
	for n := first; c.t.Context().Err() == nil; n++ {
		if c.ask(n%len(c.hosts), request) {
			return true
		}
	}
	return false
}

func (c *deliveryChaos) ask(n int, request sendRequest) bool {
	ctx, cancel := context.WithTimeout(c.t.Context(), chaosTimeout)
	defer cancel()
	return c.hosts[n].Load().send(ctx, c.client, request)
}

func (c *deliveryChaos) causeFaults(server *redistest.Server) {
	work := func() { time.Sleep(chaosSteady) }
	work()

	c.t.Log("a host is killed")
	c.faults++
	c.hosts[0].Load().signal(c.t, syscall.SIGKILL)
	work()
	c.start(0, c.redis)
	work()

	c.t.Log("a host is paused")
	c.faults++
	paused := c.hosts[1].Load()
	paused.signal(c.t, syscall.SIGSTOP)
	time.Sleep(chaosPause)
	c.resumed = append(c.resumed, time.Now())
	paused.signal(c.t, syscall.SIGCONT)
	work()

	c.t.Log("Redis is paused")
	server.Pause()
	work()
	server.Resume()
	work()

	c.t.Log("a host is stopped in order")
	c.hosts[2].Load().signal(c.t, syscall.SIGTERM)
	work()
	c.start(2, c.redis)
	work()
}

// Three hosts send notifications. One host is killed, one is paused for longer than its leases last, one stops,
// and Redis does not answer for a while. All the time, answers of Redis and of the gateway are lost.
func TestChaosLosesNoNotification(t *testing.T) {
	t.Parallel()
	redistest.Require(t)
	server := redistest.Single(t)
	proxy := redistest.NewProxy(t, server)
	for n := range 1000 {
		proxy.CutReply(200*(n+1), "EVALSHA", "EXEC", "LRANGE")
	}
	c := newDeliveryChaos(t, server.Addr())
	c.setPushers(server.Client(t))
	c.start(0, c.redis)
	c.start(1, c.redis)
	c.start(2, proxy.Addr())
	c.run(func() { c.causeFaults(server) })
}

// Three hosts send notifications while slots of logs and of the index move to other masters, and replicas replace
// masters.
func TestChaosOnAClusterLosesNoNotification(t *testing.T) {
	t.Parallel()
	redistest.Require(t)
	cluster := redistest.Cluster(t, 3, 1)
	c := newDeliveryChaos(t, strings.Join(cluster.Addrs(), ","))
	client := cluster.Client(t)
	c.setPushers(client)
	for n := range c.hosts {
		c.start(n, c.redis)
	}
	end := time.Now().Add(*chaosTime)
	c.run(func() {
		for n := 0; n == 0 || time.Now().Before(end); n++ {
			key := stored.Keys{}.UserLog(chaosMember(n / 2 % chaosPushers))
			if n%2 == 1 {
				key = stored.Keys{}.ShardGates(n / 2 % redisqueue.DefaultShards)
			}
			c.moveAndReplace(cluster, int(client.ClusterKeySlot(t.Context(), key).Val()))
		}
	})
}

func (c *deliveryChaos) moveAndReplace(cluster *redistest.ClusterServers, slot int) {
	ctx := c.t.Context()
	check := func(err error) {
		if err != nil {
			c.t.Fatal(err)
		}
	}
	time.Sleep(chaosSteady)

	c.t.Logf("slot %d is moved", slot)
	c.faults++
	to, err := c.otherMaster(cluster, slot)
	check(err)
	move, err := cluster.BeginMove(ctx, slot, to)
	check(err)
	time.Sleep(chaosSteady)
	check(move.MoveRest(ctx))
	check(move.Finish(ctx))
	time.Sleep(chaosSteady)

	c.t.Logf("the master of slot %d is replaced", slot)
	c.faults++
	master, err := cluster.MasterOf(ctx, slot)
	check(err)
	replicas, err := cluster.ReplicasOf(ctx, master)
	check(err)
	if len(replicas) == 0 {
		c.t.Fatal("the master has no replica")
	}
	check(cluster.Failover(ctx, replicas[0]))
	time.Sleep(chaosSteady)
}

// otherMaster returns a master that does not have the slot. It asks the cluster, since replicas replace masters.
func (c *deliveryChaos) otherMaster(cluster *redistest.ClusterServers, slot int) (*redistest.Server, error) {
	from, err := cluster.MasterOf(c.t.Context(), slot)
	for step := 1; err == nil && step < clusterSlots; step += 1000 {
		other, failed := cluster.MasterOf(c.t.Context(), (slot+step)%clusterSlots)
		if err = failed; other != from {
			return other, err
		}
	}
	return nil, fmt.Errorf("slot %d has no other master: %w", slot, err)
}

func (c *deliveryChaos) setPushers(client redis.UniversalClient) {
	push, err := pushfx.New(client, allowLoopback(pushfx.DefaultConfig()), pushfx.Options{})
	if err != nil {
		c.t.Fatal(err)
	}
	for n := range chaosPushers {
		user := chaosMember(n)
		if err := push.Pushers.Set(c.t.Context(), user, pusherAt(c.gateway.url, string(user)), pusher.KeepOthers); err != nil {
			c.t.Fatal(err)
		}
	}
}

// arrivals are the notifications of each pusher, sorted by their start.
type arrivals map[string][]receiver.Notification

func (c *deliveryChaos) wait() arrivals {
	c.t.Helper()
	timeout := time.After(chaosPatience)
	for {
		all, more := c.gateway.All()
		by, seen := arrivals{}, map[string]bool{}
		for _, n := range all {
			pushkey := n.Devices[0].Pushkey
			by[pushkey] = append(by[pushkey], n)
			seen[pushkey+n.EventID] = true
		}
		lost := 0
		for event, users := range c.members {
			for _, user := range users {
				if !seen[string(user)+event] {
					lost++
				}
			}
		}
		if lost == 0 {
			return by
		}
		select {
		case <-more:
		case <-timeout:
			c.t.Fatalf("%d notifications of %d events are lost", lost, len(c.members))
		}
	}
}

// judge checks the promises: order, one request at a time, and few repetitions.
func (c *deliveryChaos) judge(by arrivals) {
	c.t.Helper()
	total, doubled, late := 0, 0, 0
	for pushkey, all := range by {
		slices.SortFunc(all, func(a, b receiver.Notification) int { return a.Began.Compare(b.Began) })
		seen, last := map[string]bool{}, ""
		for i, n := range all {
			total++
			if seen[n.EventID] {
				doubled++
			} else if seen[n.EventID] = true; n.EventID < last {
				c.t.Errorf("%s: %s comes first after %s", pushkey, n.EventID, last)
			} else {
				last = n.EventID
			}
			if i == 0 || !n.Began.Before(all[i-1].Ended) {
				continue
			}
			if late++; !c.afterPause(n.Began) && !c.afterPause(all[i-1].Began) {
				c.t.Errorf("%s: %s began %v before %s had ended", pushkey, n.EventID, all[i-1].Ended.Sub(n.Began), all[i-1].EventID)
			}
		}
	}
	lostAnswers := int(c.gateway.count.Load() / 20)
	if most := c.faults*chaosDoubled + lostAnswers; doubled > most {
		c.t.Errorf("%d notifications arrived twice, want at most %d", doubled, most)
	}
	c.t.Logf("%d events, %d notifications: 0 lost, %d doubled (%d answers of the gateway got lost), %d at the same time as another after a pause; silent for %v at most",
		len(c.members), total, doubled, lostAnswers, late, by.longestSilence())
}

func (c *deliveryChaos) afterPause(at time.Time) bool {
	return slices.ContainsFunc(c.resumed, func(resumed time.Time) bool {
		return at.After(resumed.Add(-chaosPause)) && at.Before(resumed.Add(chaosSettled))
	})
}

func (a arrivals) longestSilence() (longest time.Duration) {
	var times []time.Time
	for _, all := range a {
		for _, n := range all {
			times = append(times, n.Began)
		}
	}
	slices.SortFunc(times, time.Time.Compare)
	for i := 1; i < len(times); i++ {
		longest = max(longest, times[i].Sub(times[i-1]))
	}
	return longest.Round(time.Millisecond)
}
