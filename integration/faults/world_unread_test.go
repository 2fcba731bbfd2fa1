package faults

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/redis/go-redis/v9"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/commit/rediscommit"
	"github.com/pushfx/pushfx/module/match"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/pushrule"
	"github.com/pushfx/pushfx/module/stored"
	"github.com/pushfx/pushfx/module/unread"
	"github.com/pushfx/pushfx/module/unread/redisunread"
)

// unreadOp is a call of a history of one room: "add", "read", "forget" or "rooms".
type unreadOp struct {
	call     string
	thread   string
	position int
}

// unreadState is the state of a room with positions up to 63, as bits.
type unreadState struct {
	added, redacted uint64
	read            [3]int // marks of all threads, of main, and of $1
}

var unreadThreads = [...]string{module.AllThreads, module.MainThread, "$1"}

// threadAt returns the thread of the event at a position.
func threadAt(position int) int { return 1 + position%2 }

func (s unreadState) counts() string {
	var counts [3]int
	for position := range 64 {
		thread := threadAt(position)
		isUnread := s.added&^s.redacted>>position&1 == 1 && position > s.read[0] && position > s.read[thread]
		if isUnread {
			counts[thread]++
		}
	}
	return fmt.Sprint(counts[1], counts[2])
}

func (s unreadState) after(op unreadOp) unreadState {
	switch op.call {
	case "add":
		s.added |= 1 << op.position
	case "forget":
		s.redacted |= 1 << op.position
	case "read":
		for i, thread := range unreadThreads {
			if thread == op.thread {
				s.read[i] = max(s.read[i], op.position)
			}
		}
	}
	return s
}

var unreadModel = porcupine.Model{
	Init: func() any { return unreadState{} },
	Step: func(state, input, output any) (bool, any) {
		s, op := state.(unreadState), input.(unreadOp)
		if op.call == "rooms" {
			return s.counts() == output.(string), s
		}
		return true, s.after(op)
	},
}

func newUnread(t testing.TB, client redis.UniversalClient) *unread.Service {
	t.Helper()
	store, err := redisunread.New(client, rediscommit.DefaultConfig(), rediscommit.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return unread.New(store, unread.Config{}, 24*time.Hour, nil, nil)
}

// notifying returns a decision that notifies a user.
func notifying(t testing.TB, user mxid.UserID) module.Decision {
	t.Helper()
	var rules pushrule.Ruleset
	if err := rules.Put(pushrule.Override, "all", pushrule.Draft{Actions: []pushrule.Action{`"notify"`}}, pushrule.Position{}); err != nil {
		t.Fatal(err)
	}
	event, err := match.ReadEvent(`{"type":"m.room.message"}`)
	if err != nil {
		t.Fatal(err)
	}
	return module.Decision{User: user, Result: match.Compile(rules).Evaluate(event, match.Facts{User: user})}
}

// Two hosts get calls about the same users, on a Redis that loses replies, on a cluster, and while the user's slot moves
// to other masters and back.
func TestUnreadCountsAreLinearizable(t *testing.T) {
	t.Parallel()
	play(t,
		row{name: "lost replies", servers: singleServer(), work: unreadCounts{}, lossy: lostReplies{5: {"RPUSH", "RPUSHX"}, 3: {"EVALSHA"}}, faults: []chaosFault{noFault}, rounds: 30},
		row{name: "a cluster", servers: clusterOf3(0), work: unreadCounts{}, faults: []chaosFault{noFault}, rounds: 30},
		row{name: "slots move", servers: clusterOf3(0), work: unreadCounts{}, faults: []chaosFault{slotMovedAgain}, rounds: 5},
	)
}

// unreadCounts is the work of clients that add events to a room of a user, read, redact and count them.
type unreadCounts struct{}

func (unreadCounts) start(w *world) func(context.Context, *strike) (history, error) {
	hosts := [2]*unread.Service{newUnread(w.t, w.client(w.t, 0)), newUnread(w.t, w.client(w.t, -1))}
	return func(_ context.Context, s *strike) (history, error) {
		user := mxid.UserID(fmt.Sprintf("@user%d:x", s.number))
		s.places = []*place{{name: string(user), keys: []string{stored.Keys{}.Unread(user)}}}
		return &unreadHistory{t: s.t, hosts: hosts, decision: notifying(s.t, user), seed: s.random.Uint64()}, nil
	}
}

// unreadHistory records the calls of several clients at two hosts about a user's room. A
// client repeats a call until it succeeds.
type unreadHistory struct {
	t        *testing.T
	hosts    [2]*unread.Service
	decision module.Decision
	seed     uint64
	next     atomic.Int64 // position
	added    [64]atomic.Bool

	mu  sync.Mutex
	ops []porcupine.Operation
}

func (h *unreadHistory) work(context.Context) {
	var clients sync.WaitGroup
	for id := range 8 {
		clients.Go(func() { h.client(id, rand.New(rand.NewPCG(h.seed, uint64(id)))) })
	}
	clients.Wait()
}

// waitServed returns at once: a client is served in the end, or the test runs into its deadline.
func (h *unreadHistory) waitServed(context.Context) error { return nil }

func (h *unreadHistory) client(id int, random *rand.Rand) {
	for range 12 {
		op := unreadOp{"rooms", "", 1 + random.IntN(63)}
		switch random.IntN(6) {
		case 0, 1:
			if op.position = int(h.next.Add(1)); op.position < 64 {
				op.call = "add"
			}
		case 2:
			op.call, op.thread = "read", unreadThreads[random.IntN(3)]
			op.position = 1 + random.IntN(int(h.next.Load())+1)
		case 3:
			if h.added[op.position].Load() { // a redaction follows its event
				op.call = "forget"
			}
		}
		h.record(id, op, func() *unread.Service { return h.hosts[random.IntN(2)] })
	}
}

// record makes a call until it succeeds, each time at a host.
func (h *unreadHistory) record(client int, op unreadOp, host func() *unread.Service) {
	began := time.Now().UnixNano()
	output, err := h.call(host(), op)
	for err != nil && h.t.Context().Err() == nil {
		output, err = h.call(host(), op)
	}
	if op.call == "add" {
		h.added[op.position].Store(true)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ops = append(h.ops, porcupine.Operation{ClientId: client, Input: op, Call: began, Output: output, Return: time.Now().UnixNano()})
}

func (h *unreadHistory) call(s *unread.Service, op unreadOp) (output string, err error) {
	const room = "!room:x"
	ctx, user := h.t.Context(), h.decision.User
	switch op.call {
	case "add":
		at := module.Place{Room: room, Position: int64(op.position), Thread: unreadThreads[threadAt(op.position)]}
		err = s.Add(ctx, at, module.Decisions{h.decision})
	case "read":
		err = s.Read(ctx, user, room, op.thread, int64(op.position))
	case "forget":
		err = s.Forget(ctx, room, int64(op.position), []mxid.UserID{user})
	default:
		var counts map[string]module.RoomCounts
		counts, err = s.Rooms(ctx, user, room)
		output = fmt.Sprint(counts[room].Main.Notifications, counts[room].Threads["$1"].Notifications)
	}
	return output, err
}

func (h *unreadHistory) judge(_ context.Context, s *strike) error {
	result := porcupine.CheckOperationsTimeout(unreadModel, h.ops, time.Minute)
	if result == porcupine.Ok {
		return nil
	}
	slices.SortFunc(h.ops, func(a, b porcupine.Operation) int { return int(a.Call - b.Call) })
	for _, op := range h.ops {
		s.t.Logf("client %d, %v: %v, from %d to %d", op.ClientId, op.Input, op.Output, op.Call, op.Return)
	}
	return fmt.Errorf("the history is %s", result)
}

// The checker finds a count that is a call old.
func TestTheUnreadModelFindsOldCounts(t *testing.T) {
	t.Parallel()
	history := []porcupine.Operation{
		{Input: unreadOp{"add", "", 2}, Call: 0, Output: "", Return: 1},
		{Input: unreadOp{"read", "", 2}, Call: 2, Output: "", Return: 3},
		{Input: unreadOp{"rooms", "", 0}, Call: 4, Output: "1 0", Return: 5},
	}
	if result := porcupine.CheckOperationsTimeout(unreadModel, history, time.Minute); result != porcupine.Illegal {
		t.Errorf("got %s", result)
	}
}
