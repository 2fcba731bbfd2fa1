package delivery

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/delivery/dialguard"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/pusher"
)

// pusherIDs are the digests of the one pusher that each of some users has.
func pusherIDs(users ...int) (ids []string) {
	for _, i := range users {
		ids = append(ids, PusherID(name(i), pusher.Key{AppID: "app", Pushkey: key(i)}))
	}
	return ids
}

// instruct has the owners of all shards do something, and returns what they did in
// all.
func (w *world) instruct(in Instruction) (total Effect) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	instructions := map[int][]byte{}
	for n := range w.cfg.Shards {
		instructions[n] = in.AppendTo(nil)
	}
	for n, result := range w.queue.Instruct(ctx, instructions) {
		e, err := ReadEffect(result.Value)
		if err = errors.Join(result.Err, err); err != nil {
			w.t.Fatalf("shard %d: %v", n, err)
		}
		total.Pushers += e.Pushers
		total.Notifications += e.Notifications
		total.Behind = total.Behind || e.Behind
	}
	return total
}

// wantLeft checks what the queue holds.
func (w *world) wantLeft(entries, held int) {
	w.t.Helper()
	if e, h := w.queue.counts(); e != entries || h != held {
		w.t.Errorf("%d entries and %d held pushers are left, want %d and %d", e, h, entries, held)
	}
}

func TestRetrySendsAtOnceWhatWaits(t *testing.T) {
	inBubble(t, func(w *world) {
		d, stop := w.started()
		defer stop()
		w.answer("gw", func(context.Context, sent) (module.GatewayAnswer, error) {
			return module.GatewayAnswer{}, fmt.Errorf("dial: %w", dialguard.ErrRefused)
		})
		for i := range 3 {
			w.set(name(i), key(i), "gw")
		}
		w.notify(d, 1, "!r:h", name(0), name(1), name(2))
		time.Sleep(10 * time.Second)
		w.answer("gw", always(200))
		if got, want := w.instruct(Instruction{Action: Retry, Pushers: pusherIDs(0, 1, 77)}), (Effect{Pushers: 2}); got != want {
			t.Errorf("got %+v, want %+v", got, want)
		}
		time.Sleep(time.Second)
		for i, want := range []string{"[$1 $1]", "[$1 $1]", "[$1]"} {
			if got := fmt.Sprint(w.got(key(i))); got != want {
				t.Errorf("pusher %d got %s, want %s", i, got, want)
			}
		}
		w.wantLeft(0, 1)
	})
}

func TestRetryTriesAGatewayThatToldToWait(t *testing.T) {
	inBubble(t, func(w *world) {
		d, stop := w.started()
		defer stop()
		w.answer("gw", script(module.GatewayAnswer{Status: 429, RetryAfter: time.Hour}))
		var users []mxid.UserID
		var all []int
		for i := range 20 {
			w.set(name(i), key(i), "gw")
			users, all = append(users, name(i)), append(all, i)
		}
		w.notify(d, 1, "!r:h", users...)
		time.Sleep(10 * time.Second)
		w.answer("gw", always(200))
		w.instruct(Instruction{Action: Retry, Pushers: pusherIDs(all...), Gateways: []string{"https://gw:443"}})
		time.Sleep(5 * time.Second)
		for i := range users {
			if got := w.got(key(i)); len(got) == 0 || w.all()[len(w.all())-1].status != 200 {
				t.Errorf("pusher %d got %v", i, got)
			}
		}
		w.wantLeft(0, 0)
	})
}

// The other hosts learn of an operator's retry though the queue fails meanwhile, and
// though the gateway has answered by then.
func TestARetryReachesAllHostsOnceTheQueueIsBack(t *testing.T) {
	inBubble(t, func(w *world) {
		hosts, stop := w.several(hostsOfWorld)
		defer stop()
		users := w.users(300, "gw")
		w.answer("gw", script(module.GatewayAnswer{Status: 429, RetryAfter: time.Hour}))
		w.notify(hosts[0], 1, "!r:h", users...)
		time.Sleep(10 * time.Second)
		for i, d := range hosts {
			if s := d.Stats(); s.Gateways[GateWaiting] != 1 {
				t.Fatalf("host %d: %+v", i, s)
			}
		}
		w.answer("gw", always(200))
		w.queue.failWith(func(op string) (before, lost error) {
			if op == "share" {
				return errAway, nil
			}
			return nil, nil
		})
		// The owner of one shard is asked.
		n := ShardOf(users[0], w.cfg.Shards)
		in := Instruction{Action: Retry, Pushers: pusherIDs(0), Gateways: []string{"https://gw:443"}}
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if result := w.queue.Instruct(ctx, map[int][]byte{n: in.AppendTo(nil)})[n]; result.Err != nil {
			t.Fatal(result.Err)
		}
		time.Sleep(30 * time.Second)
		served := w.served("$1")
		if served == 0 || served == len(users) {
			t.Fatalf("%d of %d pushers are served by the host that was asked", served, len(users))
		}
		w.queue.failWith(func(string) (before, lost error) { return nil, nil })
		// At each host one or two pushers wait for themselves, since before the gateway did.
		most := len(users) - hostsOfWorld*(closePushers-1)
		if took := until(time.Minute, func() bool { return w.served("$1") >= most }); took > 10*time.Second {
			t.Errorf("after %v %d of %d pushers are served", took, w.served("$1"), len(users))
		}
		synctest.Wait()
		if left := w.queue.gateways(); len(left) > 0 {
			t.Errorf("the hosts still know %v", left)
		}
	})
}

func TestFlushDropsWhatWaits(t *testing.T) {
	inBubble(t, func(w *world) {
		d, stop := w.started()
		defer stop()
		w.set(name(1), key(1), "gw")
		w.answer("gw", always(507))
		w.notify(d, 1, "!1:h", name(1))
		w.notify(d, 2, "!2:h", name(1))
		time.Sleep(time.Minute)
		between := time.Now()
		w.notify(d, 3, "!3:h", name(1))
		time.Sleep(time.Minute)
		one := pusherIDs(1)
		if got, want := w.instruct(Instruction{Action: Flush, Pushers: one, Before: between}), (Effect{Pushers: 1, Notifications: 2}); got != want {
			t.Errorf("what is older: got %+v, want %+v", got, want)
		}
		w.wantLeft(0, 1)
		if got, want := w.instruct(Instruction{Action: Flush, Pushers: one}), (Effect{Pushers: 1, Notifications: 1}); got != want {
			t.Errorf("the rest: got %+v, want %+v", got, want)
		}
		w.wantLeft(0, 0)
		if got := w.drops(DropFlushed); got != 3 {
			t.Errorf("%d are counted", got)
		}
		w.answer("gw", always(200))
		before := len(w.got(key(1)))
		w.notify(d, 4, "!r:h", name(1))
		synctest.Wait()
		if got := fmt.Sprint(w.got(key(1))[before:]); got != "[$4]" {
			t.Errorf("after it, the pusher got %s", got)
		}
	})
}

// What the owner has not read yet is dropped when it or another one reads it, and
// nothing else is.
func TestFlushDropsWhatIsNotReadYet(t *testing.T) {
	for name, in := range map[string]Instruction{
		"of a user":    {User: name(1)},
		"of a gateway": {Gateway: "GW1"},
		"of both":      {User: name(1), Gateway: "https://gw1:443"},
		"of another":   {User: name(1), Gateway: "gw2"},
		"of all":       {},
	} {
		t.Run(name, func(t *testing.T) { testFlushOfLog(t, in) })
	}
}

func testFlushOfLog(t *testing.T, in Instruction) {
	inBubble(t, func(w *world) {
		w.cfg.Shards = 1
		d, stop := w.started()
		w.set(name(1), key(1), "gw1")
		w.set(name(2), key(2), "gw2")
		w.queue.failWith(func(op string) (before, lost error) {
			if op == "read" {
				return errAway, nil
			}
			return nil, nil
		})
		w.notify(d, 1, "!r:h", name(1), name(2))
		time.Sleep(time.Second)
		in.Action, in.Before = FlushLog, time.Now()
		if got, want := w.instruct(in), (Effect{Behind: true}); got != want {
			t.Errorf("got %+v, want %+v", got, want)
		}
		time.Sleep(time.Second)
		w.notify(d, 2, "!r:h", name(1), name(2))
		stop() // before it has read
		d, stop = w.started()
		defer stop()
		w.queue.failWith(func(string) (before, lost error) { return nil, nil })
		time.Sleep(2 * time.Second)
		w.notify(d, 3, "!r:h", name(1), name(2))
		time.Sleep(time.Second)
		dropped := 0
		for i, gateway := range map[int]string{1: "gw1", 2: "gw2"} {
			want := "[$1 $2 $3]"
			if (in.User == "" || in.User == name(i)) && (in.Gateway == "" || strings.Contains(strings.ToLower(in.Gateway), gateway)) {
				want = "[$2 $3]"
				dropped++
			}
			if got := fmt.Sprint(w.got(key(i))); got != want {
				t.Errorf("pusher %d got %s, want %s", i, got, want)
			}
		}
		if got := w.drops(DropFlushed); got != dropped {
			t.Errorf("%d are counted, want %d", got, dropped)
		}
		w.wantLeft(0, 0)
		if got := w.instruct(Instruction{Action: FlushLog, Before: time.Now()}); got != (Effect{}) {
			t.Errorf("when all is read: got %+v", got)
		}
	})
}

// What is being sent is not dropped, though the answer comes later.
func TestFlushLeavesWhatIsBeingSent(t *testing.T) {
	inBubble(t, func(w *world) {
		d, stop := w.started()
		defer stop()
		w.set(name(1), key(1), "gw")
		w.answer("gw", func(context.Context, sent) (module.GatewayAnswer, error) {
			time.Sleep(20 * time.Second)
			return status(200), nil
		})
		for e := range 3 {
			w.notify(d, e, "!r:h", name(1))
		}
		time.Sleep(time.Second)
		if got, want := w.instruct(Instruction{Action: Flush, Pushers: pusherIDs(1)}), (Effect{Pushers: 1, Notifications: 2}); got != want {
			t.Errorf("got %+v, want %+v", got, want)
		}
		time.Sleep(time.Minute)
		if got := fmt.Sprint(w.got(key(1))); got != "[$0]" {
			t.Errorf("the pusher got %s", got)
		}
		w.wantLeft(0, 0)
	})
}

// An answer says that the queue has what was done, however many checkpoints that
// takes, and whatever fails meanwhile.
func TestAnInstructionIsDoneOnceAndThenAnswered(t *testing.T) {
	const many = 2*maxBatch + 100
	inBubble(t, func(w *world) {
		w.cfg.Shards = 1
		d, stop := w.started()
		defer stop()
		w.answer("gw", func(context.Context, sent) (module.GatewayAnswer, error) {
			return module.GatewayAnswer{}, dialguard.ErrRefused
		})
		var users []mxid.UserID
		var all []int
		for i := range many {
			w.set(name(i), key(i), "gw")
			users, all = append(users, name(i)), append(all, i)
		}
		w.notify(d, 1, "!r:h", users...)
		time.Sleep(time.Minute)
		w.wantLeft(0, many)
		failures := 0
		w.queue.failWith(func(op string) (before, lost error) {
			if op == "checkpoint" && failures < 10 {
				if failures++; failures%2 == 0 {
					return errAway, nil
				}
				return nil, errAway
			}
			return nil, nil
		})
		if got, want := w.instruct(Instruction{Action: Flush, Pushers: pusherIDs(all...)}), (Effect{Pushers: many, Notifications: many}); got != want {
			t.Errorf("got %+v, want %+v", got, want)
		}
		w.wantLeft(0, 0)
		if got := w.drops(DropFlushed); got != many {
			t.Errorf("%d are counted", got)
		}
	})
}

// rejectedByOne has a gateway reject many pushers at once, so that they are kept.
func rejectedByOne(w *world, d *Delivery, many int) (users []mxid.UserID) {
	for i := range many {
		w.set(name(i), key(i), "gw")
		users = append(users, name(i))
	}
	w.answer("gw", rejects(func(string) bool { return true }))
	w.notify(d, 1, "!r:h", users...)
	time.Sleep(10 * time.Minute)
	if got := w.pushersOf(users...); got != many {
		w.t.Fatalf("%d of %d pushers are kept", got, many)
	}
	return users
}

func TestRejectionsAreConfirmedOrReleased(t *testing.T) {
	const many = 80
	inBubble(t, func(w *world) {
		d, stop := w.started()
		defer stop()
		users := rejectedByOne(w, d, many)
		if got, want := w.instruct(Instruction{Action: Confirm, Pushers: pusherIDs(0, 1, 2)}), (Effect{Pushers: 3}); got != want {
			t.Errorf("confirmed: got %+v, want %+v", got, want)
		}
		time.Sleep(time.Second)
		if first, rest := w.pushersOf(users[:3]...), w.pushersOf(users[3:]...); first != 0 || rest != many-3 {
			t.Errorf("%d of those that were confirmed are left, and %d others", first, rest)
		}
		w.answer("gw", always(200))
		if got, want := w.instruct(Instruction{Action: Release, Pushers: pusherIDs(3, 4)}), (Effect{Pushers: 2}); got != want {
			t.Errorf("released: got %+v, want %+v", got, want)
		}
		w.notify(d, 2, "!r:h", users...)
		time.Sleep(time.Second)
		for i, want := range map[int]string{0: "[$1]", 3: "[$1 $2]", 4: "[$1 $2]", 5: "[$1]"} {
			if got := fmt.Sprint(w.got(key(i))); got != want {
				t.Errorf("pusher %d got %s, want %s", i, got, want)
			}
		}
		w.wantLeft(0, many-5)
		if got := w.pushersOf(users...); got != many-3 {
			t.Errorf("%d pushers are left", got)
		}
	})
}

// A host that dies after it has answered leaves the removal to another.
func TestAConfirmationOutlivesItsHost(t *testing.T) {
	inBubble(t, func(w *world) {
		d, stop := w.started()
		users := rejectedByOne(w, d, 80)
		w.reading = func() error { return errAway }
		w.instruct(Instruction{Action: Confirm, Pushers: pusherIDs(0)})
		stop()
		w.mu.Lock()
		w.reading = func() error { return nil }
		w.mu.Unlock()
		if got := w.pushersOf(users...); got != 80 {
			t.Fatalf("%d pushers are left", got)
		}
		_, stop = w.started()
		defer stop()
		time.Sleep(5 * time.Second)
		if first, rest := w.pushersOf(users[0]), w.pushersOf(users[1:]...); first != 0 || rest != 79 {
			t.Errorf("%d and %d pushers are left", first, rest)
		}
	})
}

func TestAnInstructionThatCannotBeReadChangesNothing(t *testing.T) {
	inBubble(t, func(w *world) {
		d, stop := w.started()
		defer stop()
		w.set(name(1), key(1), "gw")
		w.answer("gw", always(507))
		w.notify(d, 1, "!r:h", name(1))
		time.Sleep(time.Second)
		n := ShardOf(name(1), w.cfg.Shards)
		for _, data := range [][]byte{nil, []byte("x"), Instruction{Action: FlushLog + 1, Pushers: pusherIDs(1)}.AppendTo(nil)} {
			ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
			result := w.queue.Instruct(ctx, map[int][]byte{n: data})[n]
			cancel()
			if _, err := ReadEffect(result.Value); result.Err != nil || err == nil {
				t.Errorf("%q: got %q, %v", data, result.Value, result.Err)
			}
		}
		w.wantLeft(0, 1)
	})
}

// A pusher in trouble that is deleted, or for which nothing waits any more, leaves
// nothing behind.
func TestNoRecordStaysForWhatIsOver(t *testing.T) {
	inBubble(t, func(w *world) {
		d, stop := w.started()
		defer stop()
		w.set(name(1), key(1), "gw")
		w.answer("gw", always(507))
		w.notify(d, 1, "!r:h", name(1))
		time.Sleep(w.cfg.MaxAge)
		w.wantLeft(0, 1)
		time.Sleep(longestWait + time.Second)
		w.wantLeft(0, 0)
		if got := w.drops(DropExpired); got != 1 {
			t.Errorf("%d have expired", got)
		}
	})
}
