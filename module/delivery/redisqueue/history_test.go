package redisqueue_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/delivery/redisqueue"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/redisclient"
	"github.com/pushfx/pushfx/module/redistest"
	"github.com/pushfx/pushfx/module/stored"
)

// history is what hosts did, and the model: each pusher gets each acknowledged notification that
// no host has cut, and each for the first time in the order of the additions.
type history struct {
	*testing.T
	newClient func() redis.UniversalClient
	users     []mxid.UserID
	done      chan struct{}

	mu    sync.Mutex
	acked map[string][]string // by user and pusher
	sent  map[string][]string // for the first time
	cut   map[string][]string // may be gone
}

var historyPushers = []string{"p", "q", "r"}

// run runs hosts until they are told to end, and replaces the ones that die.
func (h *history) run() {
	for h.Context().Err() == nil && !h.isDone() {
		one := &host{T: h.T}
		one.before = func(redis.Cmder) error {
			time.Sleep(time.Duration(rand.N(4)) * time.Millisecond)
			if rand.N(600) == 0 {
				one.isStopped.Store(true)
				return errStopped
			}
			return nil
		}
		one.after = func(redis.Cmder) error {
			if rand.N(40) == 0 {
				return fmt.Errorf("the reply is lost: %w", context.DeadlineExceeded)
			}
			return nil
		}
		client := h.newClient()
		client.(interface{ AddHook(redis.Hook) }).AddHook(&one.steps)
		one.Queue = newQueue(h.T, client)
		var sending sync.WaitGroup
		for !one.isStopped.Load() && !h.isDone() {
			claims, _ := one.look(historyPushers...)
			for _, c := range claims {
				sending.Go(func() { h.send(one, c) })
			}
			time.Sleep(time.Duration(rand.N(20)) * time.Millisecond)
		}
		sending.Wait()
	}
}

func (h *history) isDone() bool {
	select {
	case <-h.done:
		return true
	default:
		return false
	}
}

// send sends what a pusher has, and sometimes fails, hangs or forgets it.
func (h *history) send(one *host, c *module.Claim) {
	for rand.N(12) > 0 && !one.isStopped.Load() {
		all, end, err := one.Read(h.Context(), c, 2)
		if err != nil {
			continue
		}
		switch rand.N(8) {
		case 0:
			_ = one.Postpone(h.Context(), c, time.Duration(rand.N(50))*time.Millisecond, module.Trouble{Text: "x"}, rand.N(2) == 0)
			return
		case 1:
			time.Sleep(lease + lease/2) // the claim lapses
		case 2:
			_ = one.Renew(h.Context(), c, lease, false)
		}
		for i, n := range all[:min(1, len(all))] {
			h.record(c, n.ID)
			if len(all) > i+1 {
				end = all[i+1].Number
			}
		}
		if left, err := one.Complete(h.Context(), c, module.Done{To: end, Answered: rand.N(2) == 0}); err != nil || left == 0 {
			return
		}
	}
}

// cutSome cuts the pushers of a user at random.
func (h *history) cutSome(one *redisqueue.Queue, user mxid.UserID) {
	log, err := one.Log(h.Context(), user)
	if err != nil {
		return
	}
	names := map[int64]string{}
	for _, n := range log.Notifications {
		names[n.Number] = n.ID
	}
	for i, p := range log.Pushers {
		if rand.N(2) == 0 {
			continue
		}
		log.Pushers[i].Waiting = slices.DeleteFunc(p.Waiting, func(number int64) bool {
			isCut := rand.N(8) == 0
			if isCut {
				h.mu.Lock()
				key := string(user) + " " + p.Pusher
				h.cut[key] = append(h.cut[key], names[number])
				h.mu.Unlock()
			}
			return isCut
		})
	}
	_, _ = one.Cut(h.Context(), user, log)
}

func (h *history) record(c *module.Claim, id string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	key := string(c.User) + " " + c.Pusher
	if !slices.Contains(h.sent[key], id) {
		h.sent[key] = append(h.sent[key], id)
	}
}

// notify adds notifications for a user, one after the other, each until it is acknowledged.
func (h *history) notify(user mxid.UserID, events int) {
	client := h.newClient()
	one := &host{T: h.T, Queue: newQueue(h.T, client)}
	var isAdding atomic.Bool
	one.before = func(redis.Cmder) error {
		if isAdding.Load() && rand.N(20) == 0 { // the host dies here
			return errStopped
		}
		return nil
	}
	one.after = func(redis.Cmder) error {
		if isAdding.Load() && rand.N(10) == 0 {
			return context.DeadlineExceeded
		}
		return nil
	}
	client.(interface{ AddHook(redis.Hook) }).AddHook(&one.steps)
	for n := range events {
		pushers := slices.Clone(historyPushers[:1+rand.N(len(historyPushers))])
		for {
			isAdding.Store(true)
			done, err := one.add(user, n, pushers...)
			isAdding.Store(false)
			if err != nil {
				continue
			}
			h.mu.Lock()
			for _, pusher := range pushers {
				key := string(user) + " " + pusher
				h.acked[key] = append(h.acked[key], note(n).ID)
			}
			h.mu.Unlock()
			if rand.N(3) > 0 { // otherwise the host dies with its claims
				for _, c := range done.Claims {
					if c != nil {
						h.send(one, c)
					}
				}
			}
			break
		}
		time.Sleep(time.Duration(rand.N(30)) * time.Millisecond)
	}
}

// check waits until all is sent, and returns what is missing.
func (h *history) check() string {
	var missing string
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		missing = ""
		h.mu.Lock()
		for key, want := range h.acked {
			want = slices.DeleteFunc(slices.Clone(want), func(id string) bool { return slices.Contains(h.cut[key], id) })
			if got := h.sent[key]; !slices.Equal(slices.DeleteFunc(slices.Clone(got), func(id string) bool { return !slices.Contains(want, id) }), want) {
				missing += fmt.Sprintf("%s\n got %v\nwant %v\n", key, got, want)
			}
		}
		h.mu.Unlock()
		if missing == "" {
			return ""
		}
	}
	return missing
}

func TestHistories(t *testing.T) {
	t.Parallel()
	for name, start := range map[string]func(t *testing.T) (newClient func() redis.UniversalClient, move func(mxid.UserID)){
		"single": func(t *testing.T) (func() redis.UniversalClient, func(mxid.UserID)) {
			server := redistest.Single(t)
			return func() redis.UniversalClient { return server.Client(t) }, func(mxid.UserID) {}
		},
		"slots that move": func(t *testing.T) (func() redis.UniversalClient, func(mxid.UserID)) {
			cluster := redistest.Cluster(t, 2, 0)
			return func() redis.UniversalClient { return cluster.Client(t) }, func(user mxid.UserID) {
				for _, slot := range []int{redisclient.SlotOf(stored.Keys{}.UserLog(user)), redisclient.SlotOf(stored.Keys{}.ShardGates(rand.N(16)))} {
					if err := cluster.MoveSlot(t.Context(), slot, cluster.Masters()[rand.N(2)]); err != nil && t.Context().Err() == nil {
						t.Log(err)
					}
				}
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			newClient, move := start(t)
			h := &history{
				T: t, newClient: newClient, done: make(chan struct{}), acked: map[string][]string{}, sent: map[string][]string{}, cut: map[string][]string{},
			}
			if err := newQueue(t, newClient()).Open(t.Context()); err != nil {
				t.Fatal(err)
			}
			var hosts, outboxes sync.WaitGroup
			for range 2 {
				hosts.Go(h.run)
			}
			for n := range 6 {
				user := mxid.UserID(fmt.Sprintf("@user%d:x", n))
				h.users = append(h.users, user)
				outboxes.Go(func() { h.notify(user, 30) })
			}
			stopMoving := make(chan struct{})
			for range 2 {
				cutter := newQueue(t, newClient())
				hosts.Go(func() {
					for !h.isDone() {
						h.cutSome(cutter, h.users[rand.N(len(h.users))])
						time.Sleep(time.Duration(rand.N(4)) * time.Millisecond)
					}
				})
			}
			hosts.Go(func() {
				for {
					select {
					case <-stopMoving:
						return
					case <-time.After(50 * time.Millisecond):
						move(h.users[rand.N(len(h.users))])
					}
				}
			})
			outboxes.Wait()
			close(stopMoving)
			if missing := h.check(); missing != "" {
				t.Error(missing)
			}
			close(h.done)
			hosts.Wait()
			h.wantEmpty()
		})
	}
}

// wantEmpty checks that looks empty the index, and that each log expires.
func (h *history) wantEmpty() {
	client := h.newClient()
	one := newHost(h.T, client)
	for deadline := time.Now().Add(100 * lease); ; time.Sleep(lease / 4) {
		claims, err := one.look(historyPushers...)
		if err != nil {
			h.Fatal(err)
		}
		for _, c := range claims {
			_ = one.send(c, func(n module.Notification) { h.record(c, n.ID) })
		}
		byShard, err := one.Index.GateNames(h.Context())
		if err != nil {
			h.Fatal(err)
		}
		gates := slices.Concat(byShard...)
		if len(gates) == 0 {
			break
		}
		if time.Now().After(deadline) {
			h.Fatalf("left in the index: %v", gates)
		}
	}
	for _, user := range h.users {
		key := stored.Keys{}.UserLog(user)
		head, found := stored.ReadLogHead(client.HGet(h.Context(), key, stored.LogField).Val())
		if expires := client.PTTL(h.Context(), key).Val() > 0; !found || !expires || head.Count+head.Bytes+head.States > 0 {
			h.Errorf("%s: %+v, expires %t", user, head, expires)
		}
		if fields := client.HLen(h.Context(), key).Val(); fields != 2 {
			h.Error(strings.Join(client.HKeys(h.Context(), key).Val(), " "))
		}
	}
}
