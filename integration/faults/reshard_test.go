package faults

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"go.uber.org/fx"

	"github.com/pushfx/pushfx"
	"github.com/pushfx/pushfx/integration/hosttest"
	"github.com/pushfx/pushfx/module/commit/rediscommit"
	"github.com/pushfx/pushfx/module/redistest"
)

// mutationCluster is a mutationServer on a cluster, with a slot for each user.
type mutationCluster struct {
	*mutationServer
	t          *testing.T // that ends the servers
	cluster    *redistest.ClusterServers
	durability rediscommit.Durability
	taken      map[int]bool // slots
}

func newMutationCluster(t *testing.T, d rediscommit.Durability) *mutationCluster {
	t.Helper()
	// The proxies stand before the first masters: no replica takes over from a master that is slow on a busy machine.
	cluster := redistest.Cluster(t, 3, d.Replicas, "--cluster-replica-no-failover", "yes")
	client := cluster.Client(t)
	return &mutationCluster{&mutationServer{client: client, host: hosttest.StartHost(t, client)}, t, cluster, d, map[int]bool{}}
}

func (s *mutationCluster) newUser(t *testing.T) (user string, slot int) {
	t.Helper()
	for {
		user := hosttest.NewUser()
		key, err := s.client.ClusterKeySlot(t.Context(), hosttest.EventKey(user)).Result()
		if err != nil {
			t.Fatal(err)
		}
		if slot := int(key); !s.taken[slot] {
			s.taken[slot] = true
			return user, slot
		}
	}
}

// moving is a mutationTest of a user whose slot moves to another master.
type moving struct {
	*mutationTest
	cluster  *redistest.ClusterServers
	slot     int
	to       *redistest.Server
	move     *redistest.SlotMove
	way      hosttest.Proxies
	refusals *refusals
}

// newMoving returns a move to the newcomer, or to another master if that is nil.
func (s *mutationCluster) newMoving(t *testing.T, n int, when phase, newcomer *redistest.Server) *moving {
	t.Helper()
	user, slot := s.newUser(t)
	to, err := hosttest.OtherMaster(t.Context(), s.cluster, slot)
	if err != nil {
		t.Fatal(err)
	}
	way := s.cluster.Masters()
	if newcomer != nil {
		to, way = newcomer, append(way, newcomer)
	}
	m := &moving{cluster: s.cluster, slot: slot, to: to, way: hosttest.NewProxies(t, way...), refusals: &refusals{}}
	received := make(chan string, 10)
	h := hosttest.StartHost(t, s.newClient(t, m),
		fx.Decorate(func(c pushfx.Config) pushfx.Config {
			hosttest.SetTimeouts(&c, hosttest.Never)
			c.Redis.Durability = s.durability
			return c
		}),
		fx.Provide(pushfx.AsChangeListener(func() versionRecorder { return versionRecorder{hosttest.Recorder(received), s.client, user} })),
	)
	m.mutationTest = &mutationTest{mutations[n], undisturbed(t)[n], t, s.mutationServer, user, nil, h, received}
	m.take("before anything is stored", when.empty)
	m.prepare(t, s.host, s.client, user)
	m.take("before the request", when.ready)
	return m
}

// newClient returns a client that knows the slots at first and later learns only from redirections.
func (s *mutationCluster) newClient(t *testing.T, m *moving) *redis.ClusterClient {
	client := redis.NewClusterClient(&redis.ClusterOptions{
		Addrs:                      s.cluster.Addrs(),
		Dialer:                     m.way.Dial,
		ContextTimeoutEnabled:      true,
		ClusterStateReloadInterval: time.Hour,
		MaintNotificationsConfig:   hosttest.NoMaintenance(),
	})
	t.Cleanup(func() { client.Close() })
	client.OnNewNode(func(node *redis.Client) { node.AddHook(m.refusals) })
	return client
}

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

func (m *moving) keys() []string {
	return []string{hosttest.EventKey(m.user), hosttest.PushersKey(m.user)}
}

func (m *moving) open(keys ...string) (err error) {
	if m.move, err = m.cluster.BeginMove(m.t.Context(), m.slot, m.to); err != nil {
		return err
	}
	return m.move.MoveKeys(m.t.Context(), keys...)
}

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
func movesEvent(m *moving) error  { return m.open(hosttest.EventKey(m.user)) }
func movesPusher(m *moving) error { return m.open(hosttest.PushersKey(m.user)) }
func movesBoth(m *moving) error   { return m.open(m.keys()...) }
func closes(m *moving) error      { return m.close() }
func movesSlot(m *moving) error   { return m.cluster.MoveSlot(m.t.Context(), m.slot, m.to) }

// phase is the progress of the move when the mutation arrives.
type phase struct {
	name       string
	empty      part   // before the user has data
	ready      part   // when the mutation applies
	writing    part   // between the read and the first write
	toNewcomer bool   // the new master has no slots before the end, so that the client does not know it
	redirect   string // word in the answer of a node; empty: any answer
	open       bool   // the move ends after the mutation
}

var phases = []phase{
	{name: "nothing moved yet", ready: opens, open: true},
	{name: "both keys moved", ready: movesBoth, redirect: "ASK", open: true},
	{name: "event moved", ready: movesEvent, open: true},
	{name: "pushers moved", ready: movesPusher, open: true},
	{name: "everything made in the move", empty: opens, redirect: "ASK", open: true},
	{name: "both keys moved to a newcomer", ready: movesBoth, toNewcomer: true, redirect: "ASK", open: true},
	{name: "slot moved", ready: movesSlot, redirect: "MOVED"},
	{name: "keys move before the write", writing: movesBoth, redirect: "ASK", open: true},
	{name: "keys move to a newcomer before the write", writing: movesBoth, toNewcomer: true, redirect: "ASK", open: true},
	{name: "move ends before the write", ready: opens, writing: closes, redirect: "MOVED"},
	{name: "move with the keys ends before the write", ready: movesBoth, writing: closes, redirect: "MOVED"},
	{name: "slot moves before the write", writing: movesSlot, redirect: "MOVED"},
}

// refusals records the first word of each refusal, as a hook of the nodes' clients.
type refusals struct{ words sync.Map }

func (r *refusals) note(cmds ...redis.Cmder) {
	for _, cmd := range cmds {
		if err := cmd.Err(); err != nil {
			word, _, _ := strings.Cut(err.Error(), " ")
			r.words.Store(word, true)
		}
	}
}

func (r *refusals) DialHook(next redis.DialHook) redis.DialHook { return next }

func (r *refusals) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := next(ctx, cmd)
		cmd.SetErr(err)
		r.note(cmd)
		return err
	}
}

func (r *refusals) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		err := next(ctx, cmds)
		r.note(cmds...)
		return err
	}
}

// plan plans a fault at the first write to a key of the user, at each node.
func (m *moving) plan(fault func(p *redistest.Proxy) *redistest.Fault) (faults []*redistest.Fault) {
	for _, proxy := range m.way {
		faults = append(faults, fault(proxy).With("{"+m.user+"}"))
	}
	return faults
}

// struck is closed when one of the faults strikes.
func (m *moving) struck(faults []*redistest.Fault) <-chan struct{} {
	one, once := make(chan struct{}), sync.Once{}
	for _, f := range faults {
		go func() {
			select {
			case <-f.Struck():
				once.Do(func() { close(one) })
			case <-m.t.Context().Done():
			}
		}()
	}
	return one
}

func hasStruck(f *redistest.Fault) bool {
	select {
	case <-f.Struck():
		return true
	default:
		return false
	}
}

// play sends the mutation, whose first reply may be lost.
func (m *moving) play(when phase, losesReply bool) {
	var losses, holds []*redistest.Fault
	if losesReply {
		losses = m.plan(func(p *redistest.Proxy) *redistest.Fault { return p.CutReply(1, writing...) })
	}
	if when.writing != nil {
		holds = m.plan(func(p *redistest.Proxy) *redistest.Fault { return p.HoldRequest(1, writing...) })
	}
	held, answered := m.struck(holds), m.begin()
	if when.writing != nil {
		select {
		case <-held:
		case got := <-answered:
			m.errorf("answered before a write: %s", got)
			return
		}
		m.take("before the write", when.writing)
		for _, f := range holds {
			f.Release()
		}
	}
	m.wantSuccess(<-answered, m.after)
	m.wantStored(m.after)
	if losesReply && !slices.ContainsFunc(losses, hasStruck) {
		m.errorf("no reply was lost")
	}
	// After a lost reply the client looks up the nodes. It may then know the right node, which does not
	// redirect it. The claim of a new pusher comes first, on another slot.
	if _, redirected := m.refusals.words.Load(when.redirect); when.redirect != "" && m.name != "new pusher" && !losesReply && !redirected {
		m.errorf("no node has answered %s", when.redirect)
	}
	for _, entry := range m.host.Logs.FilterMessage("request failed").All() {
		m.errorf("logged: %s %v", entry.Message, entry.ContextMap())
	}
}

// Each phase has half of the mutations with a durability, and half without.
func TestEffectOnceWhileSlotMoves(t *testing.T) {
	t.Parallel()
	redistest.Require(t)
	for turn, durability := range []rediscommit.Durability{{}, {Replicas: 1, Timeout: time.Second}} {
		t.Run(fmt.Sprint("durability ", durability), func(t *testing.T) {
			t.Parallel()
			servers := newMutationCluster(t, durability)
			for n, when := range phases {
				for _, losesReply := range few(1, []bool{n%2 == 1, n%2 == 0}) {
					t.Run(fmt.Sprintf("%s/reply lost %t", when.name, losesReply), func(t *testing.T) { servers.playMoves(t, n, losesReply, turn) })
				}
			}
		})
	}
}

// playMoves plays a phase. The mutations of a turn are others in other phases.
func (s *mutationCluster) playMoves(t *testing.T, number int, losesReply bool, turn int) {
	when := phases[number]
	var newcomer *redistest.Server
	if when.toNewcomer {
		newcomer = s.cluster.Newcomer(s.t)
	}
	var moves []*moving
	var group sync.WaitGroup
	for n := range mutations {
		if isPlayed(n, number/2+turn, 2) {
			m := s.newMoving(t, n, when, newcomer)
			moves = append(moves, m)
			group.Go(func() { m.play(when, losesReply) })
		}
	}
	group.Wait()
	if when.open {
		for _, m := range moves {
			m.take("after all", closes)
			m.wantStored(m.after)
		}
	}
}
