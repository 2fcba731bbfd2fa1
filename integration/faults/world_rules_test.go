package faults

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptrace"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	"go.uber.org/fx"

	"github.com/pushfx/pushfx"
	"github.com/pushfx/pushfx/integration/hosttest"
	"github.com/pushfx/pushfx/module/commit/rediscommit"
	"github.com/pushfx/pushfx/module/pusher"
	"github.com/pushfx/pushfx/module/pushrule"
)

var (
	replicated = rediscommit.Durability{Replicas: 1, Timeout: time.Second}
	inFile     = rediscommit.Durability{AOF: true, Timeout: time.Second}

	replicatedSoon = rediscommit.Durability{Replicas: 1, Timeout: 200 * time.Millisecond} // or 503
	inFileSoon     = rediscommit.Durability{AOF: true, Timeout: 1500 * time.Millisecond}  // longer than everysec takes
)

// The histories must be linearizable, and every acknowledged change must be there at the end, once.
func TestChaosLosesNoAcknowledgedChange(t *testing.T) {
	t.Parallel()
	play(t,
		row{
			name: "cluster", servers: clusterOf3(1), work: ruleClients{durable: replicated},
			faults: []chaosFault{repliesLost, scriptsForgotten, slotsMoved, failoverByHand, masterKilled, sourceKilled},
			more:   []chaosFault{targetKilled, bothKilled, masterFrozen, replicaFrozen, masterMayRevive, masterReplaced},
		},
		row{
			name: "standalone", servers: singleServer("--appendonly", "yes", "--appendfsync", "always"), work: ruleClients{durable: inFile},
			faults: []chaosFault{repliesLost, scriptsForgotten, serverKilled, serverFrozen},
		},
	)
}

// New users' first requests meet at both hosts. The hosts lose replies of Redis and must find out the outcome. Clients
// lose replies of the hosts.
func TestLinearizableHistoriesOfTwoHosts(t *testing.T) {
	t.Parallel()
	faults := []chaosFault{noFault}
	play(t,
		row{name: "standalone", servers: singleServer(), work: ruleClients{length: 32}, lossy: lostReplies{5: either}, faults: faults, rounds: 3},
		row{name: "cluster", servers: clusterOf3(0), work: ruleClients{length: 32}, lossy: lostReplies{5: either}, faults: faults, rounds: 3},
	)
}

// Hosts wait for a replica, or for the file, before they acknowledge a change. The control shows that the fault loses
// changes of hosts that do not.
func TestDurabilityKeepsAcknowledgedChangesOfAKilledMaster(t *testing.T) {
	t.Parallel()
	play(t,
		row{name: "none", servers: masterAndReplica, work: ruleClients{ledger: true}, faults: []chaosFault{masterAhead}},
		row{name: "replicas", servers: masterAndReplica, work: ruleClients{durable: replicatedSoon, ledger: true}, faults: []chaosFault{masterAhead}},
		row{name: "file", servers: singleServer("--appendonly", "yes", "--appendfsync", "everysec"), work: ruleClients{durable: inFileSoon, ledger: true}, faults: []chaosFault{serverKilled}},
	)
}

// A fourth master joins, gets slots with users, and gives them back.
func TestScaleOutFailsNoRequest(t *testing.T) {
	t.Parallel()
	play(t, row{name: "cluster", servers: clusterOf3(0), work: ruleClients{answered: true}, faults: []chaosFault{masterAdded}})
}

// ruleClients is the work of clients that change and read rules and pushers at two hosts.
type ruleClients struct {
	durable rediscommit.Durability // of the hosts that a crash hits, and in about half of the other rounds
	length  int                    // requests of each client, without pauses; 0 means until the end of the round, with pauses

	// ledger lets clients only add entries, and the judge only count those that are acknowledged and lost: none, or
	// some if no durability is asked for. The outage leaves too many open changes for a check of the history.
	ledger bool

	answered bool // every request gets an answer, and no reply gets lost
}

func (r ruleClients) start(w *world) func(context.Context, *strike) (history, error) {
	if r.durable.AOF && !hasWAITAOF(w.t) {
		if r.ledger {
			w.t.Skip("this Redis has no WAITAOF")
		}
		r.durable = rediscommit.Durability{}
	}
	teams := map[rediscommit.Durability][]*hosttest.Host{}
	for _, durability := range []rediscommit.Durability{{}, r.durable} {
		for len(teams[durability]) < 2 {
			teams[durability] = append(teams[durability], hosttest.StartHost(w.t, w.client(w.t, -1), fx.Decorate(func(c pushfx.Config) pushfx.Config {
				c.Redis.Durability = durability
				c.PusherPolicy.MaxPushers = 1000
				return c
			})))
		}
	}
	return func(ctx context.Context, s *strike) (history, error) {
		durability := rediscommit.Durability{}
		if s.crash || r.ledger || s.random.IntN(2) == 0 {
			durability = r.durable
		}
		s.around, s.lossy = 250*time.Millisecond, r.length == 0 && !r.ledger && !r.answered && s.random.IntN(2) == 0
		h := &ruleHistory{ruleClients: r, hosts: teams[durability], durability: durability, random: s.random, start: s.start}
		if r.ledger {
			s.ahead = h.waitTried
		}
		return h, h.addUsers(ctx, s)
	}
}

const (
	chaosUsers   = 6 // in a round
	chaosClients = 4 // of each user
)

// ruleHistory is the requests of a round. Its times are nanoseconds since the start.
type ruleHistory struct {
	ruleClients
	hosts      []*hosttest.Host
	durability rediscommit.Durability
	random     *rand.Rand
	start      time.Time
	users      []*chaosUser
	clients    []*chaosClient
}

type chaosUser struct {
	name    string
	dataset *dataset
	exists  atomic.Bool  // a read of the whole set has created the rules
	changed atomic.Int64 // sending time of a recent successful change
	tried   atomic.Int64 // sending time of a recent change of an own entry, whatever the answer
}

// addUsers adds as many users of each server, half of them with rules and half with pushers.
func (h *ruleHistory) addUsers(ctx context.Context, s *strike) (err error) {
	s.places, err = s.placesOfEach(ctx, chaosUsers/s.masters(), func(user string) []string { return []string{hosttest.EventKey(user), hosttest.PushersKey(user)} })
	for i, p := range s.places {
		h.addUser(p.name, []*dataset{&ruleDataset, &pusherDataset}[i%2])
	}
	return err
}

func (h *ruleHistory) addUser(name string, of *dataset) {
	u := &chaosUser{name: name, dataset: of}
	u.exists.Store(of == &pusherDataset) // pushers need no creation
	h.users = append(h.users, u)
	for number := range chaosClients {
		h.addClient(u, number)
	}
}

func (h *ruleHistory) addClient(u *chaosUser, number int) *chaosClient {
	c := &chaosClient{
		randomClient: randomClient{user: u.name, number: number, random: rand.New(rand.NewPCG(h.random.Uint64(), h.random.Uint64()))},
		in:           h, of: u, id: len(h.clients),
	}
	h.clients = append(h.clients, c)
	return c
}

func (h *ruleHistory) now() int64 { return int64(time.Since(h.start)) }

func (h *ruleHistory) work(ctx context.Context) {
	var working sync.WaitGroup
	for _, c := range h.clients {
		working.Go(func() { c.work(ctx) })
	}
	working.Wait()
}

// waitServed waits until a change of every user, sent from now on, has succeeded.
func (h *ruleHistory) waitServed(ctx context.Context) error {
	if h.length > 0 {
		return nil
	}
	return h.wait(ctx, func(u *chaosUser) *atomic.Int64 { return &u.changed })
}

// waitTried waits until a change of an own entry of every user, sent from now on, has got its answer.
func (h *ruleHistory) waitTried(ctx context.Context) error {
	return h.wait(ctx, func(u *chaosUser) *atomic.Int64 { return &u.tried })
}

func (h *ruleHistory) wait(ctx context.Context, last func(*chaosUser) *atomic.Int64) error {
	for now := h.now(); ; {
		i := slices.IndexFunc(h.users, func(u *chaosUser) bool { return last(u).Load() < now })
		if i < 0 {
			return nil
		}
		if err := sleep(ctx, 10*time.Millisecond); err != nil {
			return fmt.Errorf("no change of %s was answered: %w", h.users[i].name, err)
		}
	}
}

// lookAtAll reads all data at each host.
func (h *ruleHistory) lookAtAll(ctx context.Context) error {
	for _, u := range h.users {
		for _, host := range h.hosts {
			c := h.addClient(u, chaosClients)
			o := c.send(ctx, host, u.dataset.all(&c.randomClient))
			for o.Output == unknown {
				if err := sleep(ctx, 50*time.Millisecond); err != nil {
					return err
				}
				o = c.send(ctx, host, u.dataset.all(&c.randomClient))
			}
			c.history = []porcupine.Operation{o}
		}
	}
	return nil
}

func (h *ruleHistory) of(u *chaosUser) (history []porcupine.Operation) {
	for _, c := range h.clients {
		if c.of == u {
			history = append(history, c.history...)
		}
	}
	return withEnds(history, len(h.clients), h.now())
}

// dataset is one kind of stored data: the rules or the pushers of a user. Clients share some entries. Each client
// also has own entries, with ids that are never used twice, so that no later change hides a lost one.
type dataset struct {
	shared func(*randomClient) request         // makes up a request for a shared entry
	set    func(*randomClient, string) request // adds or changes an own entry
	remove func(*randomClient, string) request // deletes an own entry
	all    func(*randomClient) request         // reads everything
}

// Own rules have the kind room; shared rules have other kinds.
var ruleDataset = dataset{
	nextForRules,
	func(a *randomClient, id string) request { return a.putAt(pushrule.Room, id, pushrule.Position{}) },
	func(a *randomClient, id string) request { return a.removeAt(pushrule.Room, id) },
	(*randomClient).readAll,
}

// Own pushers have the app "own".
var pusherDataset = dataset{
	nextForPushers,
	func(a *randomClient, id string) request { return a.setPusherAt(ownKey(id)) },
	func(a *randomClient, id string) request { return a.deletePusherAt(ownKey(id)) },
	(*randomClient).listPushers,
}

func ownKey(id string) pusher.Key { return pusher.Key{AppID: "own", Pushkey: id} }

type chaosClient struct {
	randomClient
	in      *ruleHistory
	of      *chaosUser
	id      int      // among all clients
	mine    []string // ids of own entries
	history []porcupine.Operation
	hungUp  bool

	// inDoubt reports whether a change had no answer and no read followed. Otherwise an outage would leave more
	// open changes than the check can handle.
	inDoubt bool
}

const (
	// maxPause is the longest wait between two requests.
	maxPause = 60 * time.Millisecond

	// A client hangs up once in so many changes, and three of four clients once in a short history.
	hangUps = 200
)

func (c *chaosClient) work(ctx context.Context) {
	for ctx.Err() == nil && (c.in.length == 0 || c.sent < c.in.length) {
		c.turn()
		if c.in.length == 0 {
			_ = sleep(ctx, rand.N(maxPause))
		}
	}
}

// turn sends one request. A failed read is part of the history only if it may have created the rules, or must not fail.
func (c *chaosClient) turn() {
	r, own := c.choose()
	c.sent++
	isRead, creates := r.method == http.MethodGet, r.path == "/pushrules/"
	mayCreate := creates && !c.of.exists.Load()
	ctx := context.Background()
	if !isRead && c.hangsUp() {
		ctx = untilSent(ctx)
	}
	o := c.send(ctx, one(&c.randomClient, c.in.hosts...), r)
	failed := o.Output == unknown
	if !isRead || !failed || mayCreate || c.in.answered {
		c.history = append(c.history, o)
	}
	if own != "" {
		c.of.tried.Store(o.Call)
	}
	if own != "" && o.Output != hosttest.Done { // the client does not change it again, whatever its outcome
		c.mine = slices.DeleteFunc(c.mine, func(known string) bool { return known == own })
	}
	switch {
	case failed:
		c.inDoubt = c.inDoubt || !isRead && c.in.length == 0 && !c.in.ledger
	case isRead:
		c.inDoubt = false
		if creates {
			c.of.exists.Store(true)
		}
	case o.Output == hosttest.Done:
		c.of.changed.Store(o.Call)
	}
}

func (c *chaosClient) hangsUp() bool {
	if c.in.answered {
		return false
	}
	if c.in.length == 0 {
		return c.random.IntN(hangUps) == 0
	}
	hangsUp := c.number < 3 && c.sent > 5*(c.number+1) && !c.hungUp
	c.hungUp = c.hungUp || hangsUp
	return hangsUp
}

// choose returns a random request, and the id of an own entry that it changes.
func (c *chaosClient) choose() (r request, own string) {
	switch {
	case c.inDoubt:
		return c.of.dataset.all(&c.randomClient), ""
	case c.in.length == 0 && c.of.exists.Load() && (c.in.ledger || c.random.IntN(5) < 2):
		return c.changeOwn()
	}
	return c.of.dataset.shared(&c.randomClient), ""
}

// changeOwn returns a change of an own entry. A client has few own entries, so that each changes several times. For
// a ledger it does not touch them again, since that would restore lost ones.
func (c *chaosClient) changeOwn() (r request, id string) {
	if n := len(c.mine); c.in.ledger || n < 2 || n < 5 && c.random.IntN(3) == 0 {
		id = fmt.Sprintf("own-%d-%d%s", c.number, c.sent, c.user)
		c.mine = append(c.mine, id)
		return c.of.dataset.set(&c.randomClient, id), id
	}
	n := c.random.IntN(len(c.mine))
	id = c.mine[n]
	if c.random.IntN(2) == 0 {
		return c.of.dataset.set(&c.randomClient, id), id
	}
	c.mine = slices.Delete(c.mine, n, n+1)
	return c.of.dataset.remove(&c.randomClient, id), id
}

func (c *chaosClient) send(ctx context.Context, h *hosttest.Host, r request) porcupine.Operation {
	o := porcupine.Operation{ClientId: c.id, Input: r, Call: c.in.now()}
	o.Output = send(ctx, h, r)
	o.Return = c.in.now()
	return o
}

// send returns a host's answer to a request, or [unknown] without one.
func send(ctx context.Context, h *hosttest.Host, r request) string {
	got, err := h.Try(ctx, r.user, r.method, hosttest.V3+r.path, r.body)
	if err != nil || got.String() == hosttest.Unavailable {
		return unknown
	}
	return got.String()
}

func untilSent(ctx context.Context) context.Context {
	ctx, hangUp := context.WithCancel(ctx)
	return httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		WroteRequest: func(httptrace.WroteRequestInfo) { hangUp() },
	})
}

// withEnds makes requests without an answer last until the end of the history, each as a separate client, since
// its client has continued.
func withEnds(history []porcupine.Operation, clients int, end int64) []porcupine.Operation {
	for i := range history {
		if history[i].Output == unknown {
			history[i].ClientId, history[i].Return = clients, end
			clients++
		}
	}
	return history
}

func unanswered(history []porcupine.Operation) int {
	n := 0
	for _, operation := range history {
		if operation.Output == unknown {
			n++
		}
	}
	return n
}
