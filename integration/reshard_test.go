package integration

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"go.uber.org/fx"

	"github.com/pushfx/pushfx"
	"github.com/pushfx/pushfx/module/commit/rediscommit"
	"github.com/pushfx/pushfx/module/redistest"
)

// clusterStage is a stage on a cluster, for users with a slot of their own.
type clusterStage struct {
	*stage
	cluster    *redistest.ClusterServers
	durability rediscommit.Durability
	taken      map[int]bool // slots
}

func newClusterStage(t *testing.T, d rediscommit.Durability) *clusterStage {
	t.Helper()
	cluster := redistest.Cluster(t, 3, d.Replicas)
	client := cluster.Client(t)
	return &clusterStage{&stage{client: client, host: startHost(t, client)}, cluster, d, map[int]bool{}}
}

func (s *clusterStage) newUser(t *testing.T) (user string, slot int) {
	t.Helper()
	for {
		user := newEffectsUser()
		key, err := s.client.ClusterKeySlot(t.Context(), eventKey(user)).Result()
		if err != nil {
			t.Fatal(err)
		}
		if slot := int(key); !s.taken[slot] {
			s.taken[slot] = true
			return user, slot
		}
	}
}

// moving is a scene of a user whose slot moves to another master.
type moving struct {
	*scene
	cluster *redistest.ClusterServers
	slot    int
	to      *redistest.Server
	move    *redistest.SlotMove
	wire    *wire
}

// newMoving prepares the scene.
func (s *clusterStage) newMoving(t *testing.T, n int, when phase, which loss) *moving {
	t.Helper()
	user, slot := s.newUser(t)
	m := &moving{cluster: s.cluster, slot: slot, to: s.otherMaster(t, slot), wire: &wire{user: user, told: map[string]bool{}}}
	m.wire.writing = func() { m.take("before the write", when.writing) }
	if when.toNewcomer {
		m.wire.hidden = m.to.Addr()
	}
	client := s.newClient(t, m.wire)
	which.plan(client, m.wire)
	heard := make(chan string, 10)
	h := startHost(t, client,
		fx.Decorate(func(c pushfx.Config) pushfx.Config {
			setTimeouts(&c, never)
			c.Redis.Durability = s.durability
			return c
		}),
		fx.Provide(pushfx.AsChangeListener(func() recorder { return recorder{heard} })),
	)
	m.scene = &scene{mutations[n], undisturbed(t)[n], t, s.stage, user, nil, h, heard}
	m.take("before anything is stored", when.empty)
	m.prepare(t, s.host, s.client, user)
	m.take("before the request", when.ready)
	return m
}

// newClient returns one that knows where the slots are at first, and hears of
// nothing else but what nodes tell it.
func (s *clusterStage) newClient(t *testing.T, w *wire) *redis.ClusterClient {
	client := redis.NewClusterClient(&redis.ClusterOptions{
		Addrs:                      s.cluster.Addrs(),
		ContextTimeoutEnabled:      true,
		ClusterStateReloadInterval: time.Hour,
		MaintNotificationsConfig:   noMaintenance(),
	})
	t.Cleanup(func() { client.Close() })
	client.OnNewNode(func(node *redis.Client) { node.AddHook(w) })
	return client
}

// otherMaster returns one to which the slot can move.
func (s *clusterStage) otherMaster(t *testing.T, slot int) *redistest.Server {
	t.Helper()
	from, err := s.cluster.MasterOf(t.Context(), slot)
	if err != nil {
		t.Fatal(err)
	}
	masters := s.cluster.Masters()
	return masters[(slices.Index(masters, from)+1)%len(masters)]
}

// part is one of a move.
type part func(m *moving) error

func (m *moving) take(when string, do part) {
	m.t.Helper()
	if do == nil {
		return
	}
	if err := do(m); err != nil {
		m.errorf("the move %s: %v", when, err)
	}
}

func (m *moving) keys() []string { return []string{eventKey(m.user), pushersKey(m.user)} }

// open begins the move with the given keys.
func (m *moving) open(keys ...string) (err error) {
	if m.move, err = m.cluster.BeginMove(m.t.Context(), m.slot, m.to); err != nil {
		return err
	}
	return m.move.MoveKeys(m.t.Context(), keys...)
}

// close ends the move with the keys that are left.
func (m *moving) close() error {
	if m.move == nil {
		return errors.New("it has not begun")
	}
	if err := m.move.MoveRest(m.t.Context()); err != nil {
		return err
	}
	return m.move.Finish(m.t.Context())
}

func opens(m *moving) error       { return m.open() }
func movesEvent(m *moving) error  { return m.open(eventKey(m.user)) }
func movesPusher(m *moving) error { return m.open(pushersKey(m.user)) }
func movesBoth(m *moving) error   { return m.open(m.keys()...) }
func closes(m *moving) error      { return m.close() }
func movesSlot(m *moving) error   { return m.cluster.MoveSlot(m.t.Context(), m.slot, m.to) }

// phase is how far the move has come when a mutation meets it.
type phase struct {
	name       string
	empty      part   // before the user has anything
	ready      part   // when the mutation applies
	writing    part   // after it was read, when the first write is about to be sent
	toNewcomer bool   // the new master has no slots yet, so that the client does not know it
	told       string // what a node must have answered; empty if that depends
	open       bool   // whether the move goes on in the end
}

var phases = []phase{
	{name: "nothing moved yet", ready: opens, open: true},
	{name: "both keys moved", ready: movesBoth, told: "ASK", open: true},
	{name: "event moved", ready: movesEvent, open: true},
	{name: "pushers moved", ready: movesPusher, open: true},
	{name: "everything made in the move", empty: opens, told: "ASK", open: true},
	{name: "both keys moved to a newcomer", ready: movesBoth, toNewcomer: true, told: "ASK", open: true},
	{name: "slot moved", ready: movesSlot, told: "MOVED"},
	{name: "keys move before the write", writing: movesBoth, told: "ASK", open: true},
	{name: "keys move to a newcomer before the write", writing: movesBoth, toNewcomer: true, told: "ASK", open: true},
	{name: "move ends before the write", ready: opens, writing: closes, told: "MOVED"},
	{name: "move with the keys ends before the write", ready: movesBoth, writing: closes, told: "MOVED"},
	{name: "slot moves before the write", writing: movesSlot, told: "MOVED"},
}

// loss is of a reply to a write.
type loss struct {
	name string
	plan func(client *redis.ClusterClient, w *wire)
}

var (
	lossOfNothing = loss{"no reply lost", func(*redis.ClusterClient, *wire) {}}

	// lossOnTheWay is seen by the cluster's client, which repeats on its own.
	lossOnTheWay = loss{"reply lost on the way", func(_ *redis.ClusterClient, w *wire) { w.lose.Store(1) }}

	// lossInTheEnd is seen by the store.
	lossInTheEnd = loss{"reply lost in the end", func(c *redis.ClusterClient, _ *wire) {
		redistest.LoseScriptReplies(c, func(n int64) bool { return n == 1 })
	}}
)

// wire is what a client says to the nodes of a cluster, as a hook of each of
// their clients.
type wire struct {
	user    string       // whose writes count
	writing func()       // called before the first write is sent
	hidden  string       // the address of a node that others do not tell of
	lose    atomic.Int64 // how many replies to writes

	first sync.Once
	mu    sync.Mutex
	told  map[string]bool // the first words of all errors
}

func (w *wire) DialHook(next redis.DialHook) redis.DialHook { return next }

func (w *wire) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		return w.pass([]redis.Cmder{cmd}, func() error {
			err := next(ctx, cmd)
			cmd.SetErr(err)
			return err
		})
	}
}

func (w *wire) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		return w.pass(cmds, func() error { return next(ctx, cmds) })
	}
}

func (w *wire) pass(cmds []redis.Cmder, send func() error) error {
	write := slices.IndexFunc(cmds, w.isWrite)
	if write >= 0 {
		w.first.Do(w.writing)
	}
	err := send()
	for _, cmd := range cmds {
		w.listen(cmd)
	}
	if write < 0 || cmds[write].Err() != nil || w.lose.Add(-1) < 0 {
		return err
	}
	for _, cmd := range cmds[write:] {
		cmd.SetErr(io.EOF)
	}
	return io.EOF
}

// isWrite reports whether a command is a write to a key of the user.
func (w *wire) isWrite(cmd redis.Cmder) bool {
	if !strings.HasPrefix(cmd.Name(), "eval") || cmd.Args()[1] == "return 1" { // which fences reads
		return false
	}
	key, _ := cmd.Args()[3].(string)
	return strings.Contains(key, w.user)
}

// listen takes down what nodes refuse, and takes out of the list of nodes what
// is to be hidden.
func (w *wire) listen(cmd redis.Cmder) {
	if err := cmd.Err(); err != nil {
		kind, _, _ := strings.Cut(err.Error(), " ")
		w.mu.Lock()
		defer w.mu.Unlock()
		w.told[kind] = true
		return
	}
	if list, is := cmd.(*redis.ClusterSlotsCmd); is {
		hidden := func(s redis.ClusterSlot) bool { return s.Nodes[0].Addr == w.hidden }
		list.SetVal(slices.DeleteFunc(list.Val(), hidden))
	}
}

func (w *wire) hasTold(kind string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.told[kind]
}

// play makes the mutation, and has the move end after it.
func (m *moving) play(when phase) {
	loses := m.wire.lose.Load() > 0
	m.wantSuccess(<-m.begin(), m.after)
	m.wantStored(m.after)
	if m.wire.lose.Load() > 0 {
		m.errorf("no reply was lost")
	}
	// Where a reply is lost, the client looks for the nodes, and may have found
	// them before it tries again: a node need not tell it then. The claim of a new
	// pusher comes first, on another slot.
	if when.told != "" && m.name != "new pusher" && !loses && !m.wire.hasTold(when.told) {
		m.errorf("no node has answered %s", when.told)
	}
	for _, entry := range m.host.logs.FilterMessage("request failed").All() {
		m.errorf("logged: %s %v", entry.Message, entry.ContextMap())
	}
	if when.open {
		m.take("after all", closes)
		m.wantStored(m.after)
	}
}

func TestEveryChangeTakesEffectOnceWhileItsSlotMoves(t *testing.T) {
	t.Parallel()
	redistest.Require(t)
	for _, test := range []struct {
		durability rediscommit.Durability
		losses     []loss
	}{
		{rediscommit.Durability{}, []loss{lossOfNothing, lossOnTheWay, lossInTheEnd}},
		{rediscommit.Durability{Replicas: 1, Timeout: time.Second}, []loss{lossOfNothing, lossOnTheWay}},
	} {
		t.Run(fmt.Sprint("durability ", test.durability), func(t *testing.T) {
			t.Parallel()
			stage := newClusterStage(t, test.durability)
			for _, when := range phases {
				for _, which := range test.losses {
					t.Run(when.name+"/"+which.name, func(t *testing.T) { stage.everyMove(t, when, which) })
				}
			}
		})
	}
}

// everyMove plays a scene for each mutation, all at once.
func (s *clusterStage) everyMove(t *testing.T, when phase, which loss) {
	var group sync.WaitGroup
	for n := range mutations {
		m := s.newMoving(t, n, when, which)
		group.Go(func() { m.play(when) })
	}
	group.Wait()
}
