package delivery

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/delivery/dialguard"
	"github.com/pushfx/pushfx/module/fault"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/observe"
	"github.com/pushfx/pushfx/module/pusher"
)

// What waits is seen within a minute, due or not, and by gateway.
func TestWhatWaitsIsSeen(t *testing.T) {
	for _, test := range []struct {
		name    string
		gateway func(context.Context, sent) (module.GatewayAnswer, error)
		waits   bool
	}{
		{"a gateway hangs", slow(time.Hour, 200), true},
		{"a gateway fails", always(502), true},
		{"a gateway asks for a wait", func(context.Context, sent) (module.GatewayAnswer, error) {
			return module.GatewayAnswer{Status: 429, RetryAfter: time.Hour}, nil
		}, true},
		{"a gateway is well", always(200), false},
	} {
		t.Run(test.name, func(t *testing.T) {
			inBubble(t, func(w *world) {
				w.answer("bad", test.gateway)
				d := w.host()
				for n := range 5 {
					w.set(name(n), key(n), "bad")
					w.notify(d, n, "!r:h", name(n))
				}
				time.Sleep(time.Minute)
				got := d.Stats()
				if !test.waits {
					if got.Waiting != 0 || got.Oldest != 0 || len(got.WaitingAt) != 0 {
						t.Errorf("got %+v", got)
					}
					return
				}
				if got.Waiting != 5 || got.Oldest < 40*time.Second || got.WaitingAt["https://bad:443"] != 5 {
					t.Errorf("got %+v", got)
				}
				w.answer("bad", always(200))
				time.Sleep(time.Hour + time.Minute)
				if got := d.Stats(); got.Waiting != 0 || got.Oldest != 0 {
					t.Errorf("afterwards: got %+v", got)
				}
			})
		})
	}
}

// What waits for a reason of one user or pusher does not make Oldest.
func TestTheOldestIsNotOfOneUser(t *testing.T) {
	for _, test := range []struct {
		name      string
		users     int
		gateway   func(context.Context, sent) (module.GatewayAnswer, error)
		attention module.Attention
		waits     bool
	}{
		{"a dead gateway of two users", 2, always(502), nil, false},
		{"a dead gateway of three users", 3, always(502), nil, true},
		{"no app listens for the pushkeys", 5, always(507), nil, false},
		{"pushkeys are not found", 5, always(404), nil, false},
		{"too many requests", 5, always(429), nil, true},
		{"users are active", 5, always(200), delayAll(4 * time.Minute), false},
	} {
		t.Run(test.name, func(t *testing.T) {
			inBubble(t, func(w *world) {
				w.answer("bad", test.gateway)
				w.attention = test.attention
				d := w.host()
				for n := range 10 {
					user := name(n % test.users)
					w.set(user, key(n), "bad")
					w.notify(d, n, "!r:h", user)
				}
				time.Sleep(3 * time.Minute)
				if got := d.Stats(); got.Waiting < 10 || got.Oldest > 2*time.Minute != test.waits {
					t.Errorf("got %+v", got)
				}
			})
		})
	}
}

// A gateway with an address that is not allowed is not closed: a single user may invent it.
func TestABlockedGatewayIsSeenAsBlocked(t *testing.T) {
	inBubble(t, func(w *world) {
		w.answer("bad", func(context.Context, sent) (module.GatewayAnswer, error) {
			return module.GatewayAnswer{}, dialguard.ErrRefused
		})
		w.set(name1, "key", "bad")
		d := w.host()
		w.notify(d, 1, "!r:h", name1)
		for range 2 {
			time.Sleep(59 * time.Minute)
			if got := d.Stats().Gateways; got != [gateStates]int{GateBlocked: 1} {
				t.Errorf("got %v", got)
			}
		}
	})
}

// fullQueue refuses writes.
type fullQueue struct{ module.DeliveryQueue }

func (q fullQueue) Summary(ctx context.Context, isAlone func(string, module.Trouble) bool) (module.QueueSummary, error) {
	s, err := q.DeliveryQueue.Summary(ctx, isAlone)
	s.Refused = refusal("OOM command not allowed when used memory > 'maxmemory'.")
	return s, err
}

func (fullQueue) Look(context.Context, module.Look) (module.Looked, error) {
	return module.Looked{}, module.Unavailable(errNoResult)
}

// A host that starts while the queue is full sees what waits.
func TestWhatWaitsInAFullQueueIsSeen(t *testing.T) {
	inBubble(t, func(w *world) {
		before, stop := w.hostOn(w.queue, w)
		w.answer("gw", slow(time.Hour, 200))
		for n := range 3 {
			w.set(name(n), key(n), "gw")
			w.notify(before, n, "!r:h", name(n))
		}
		stop()
		d, _ := w.hostOn(fullQueue{w.queue}, w)
		time.Sleep(time.Minute)
		if got := d.Stats(); got.Waiting != 3 || got.Oldest < 40*time.Second {
			t.Errorf("got %+v", got)
		}
		if n := w.counted(observe.DeliveryFailed, FailOOM); n < 3 {
			t.Errorf("%d failures were counted", n)
		}
	})
}

// The age of what waits grows while the queue cannot be read, and every failure is counted.
func TestWhatWaitsIsSeenWithoutTheQueue(t *testing.T) {
	inBubble(t, func(w *world) {
		w.answer("gw", always(502))
		w.set(name1, "key", "gw")
		d := w.host()
		w.notify(d, 1, "!r:h", name1)
		time.Sleep(20 * time.Second)
		w.fail(refusal("OOM command not allowed when used memory > 'maxmemory'."))
		time.Sleep(5 * time.Minute)
		if got := d.Stats().Oldest; got < 5*time.Minute {
			t.Errorf("the oldest is %v old", got)
		}
		if n := w.counted(observe.DeliveryFailed, FailOOM); n < 300 {
			t.Errorf("%d failures were counted", n)
		}
		if err := w.tryNotify(d, 2, "!r:h", name1); err == nil || w.counted(observe.HandoverFailed, FailOOM) != 1 {
			t.Errorf("got error %v, counts %v", err, w.counts)
		}
	})
}

type refusal string

func (r refusal) Error() string { return string(r) }
func (refusal) RedisError()     {}

func TestReasonsOfFailures(t *testing.T) {
	t.Parallel()
	reached := map[FailReason]bool{FailOther: true}
	for text, want := range map[string]FailReason{
		"OOM command not allowed when used memory > 'maxmemory'. script: 12, on @user_script:5.":               FailOOM,
		"ERR Error running script (call to f_12): @user_script:1: -OOM command not allowed":                    FailOOM,
		"READONLY You can't write against a read only replica.":                                                FailReadOnly,
		"NOREPLICAS Not enough good replicas to write.":                                                        FailReadOnly,
		"MISCONF Redis is configured to save RDB snapshots":                                                    FailReadOnly,
		"NOPERM User pushfx has no permissions to run the 'zadd' command":                                      FailNoPerm,
		"ERR The user executing the script can't run this command or subcommand script: 12, on @user_script:3": FailNoPerm,
		"WRONGPASS invalid username-password pair or user is disabled.":                                        FailNoPerm,
		"LOADING Redis is loading the dataset in memory":                                                       FailUnreachable,
		"CLUSTERDOWN The cluster is down":                                                                      FailUnreachable,
		"WRONGTYPE Operation against a key holding the wrong kind of value":                                    FailOther,
	} {
		if got := reasonOf(module.Unavailable(fmt.Errorf("delivery queue: %w", refusal(text)))); got != want {
			t.Errorf("%s: got %s, want %s", text, got, want)
		}
		reached[want] = true
	}
	dialing := &net.OpError{Op: "dial", Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)}
	reading := &net.OpError{Op: "read", Err: os.ErrDeadlineExceeded}
	for want, all := range map[FailReason][]error{
		FailDurability:  {fmt.Errorf("1 of 2: %w", fault.ErrNotConfirmed)},
		FailTimeout:     {context.DeadlineExceeded, reading},
		FailUnreachable: {dialing, io.EOF},
		FailCanceled:    {context.Canceled},
		FailOther:       {errors.New("x"), fault.New(fault.Unavailable, "x")},
	} {
		for _, err := range all {
			if got := reasonOf(module.Unavailable(err)); got != want {
				t.Errorf("%v: got %s, want %s", err, got, want)
			}
		}
		reached[want] = true
	}
	for _, reason := range FailReasons() {
		if !reached[reason] {
			t.Errorf("no error has the reason %s", reason)
		}
	}
}

// A notification that arrives late says why, and so do those that waited behind it.
func TestALateNotificationSaysWhy(t *testing.T) {
	after := func(d time.Duration, first func(context.Context, sent) (module.GatewayAnswer, error)) func(context.Context, sent) (module.GatewayAnswer, error) {
		var start time.Time // of the bubble
		return func(ctx context.Context, s sent) (module.GatewayAnswer, error) {
			if start.IsZero() {
				start = time.Now()
			}
			if time.Since(start) < d {
				return first(ctx, s)
			}
			return module.GatewayAnswer{Status: 200}, nil
		}
	}
	told := func(context.Context, sent) (module.GatewayAnswer, error) {
		return module.GatewayAnswer{Status: 429, RetryAfter: 40 * time.Second}, nil
	}
	for _, test := range []struct {
		name      string
		gateway   func(context.Context, sent) (module.GatewayAnswer, error)
		attention module.Attention
		outage    bool
		want      map[LateCause]int
		last      string
	}{
		{"429", after(time.Second, told), nil, false, map[LateCause]int{LateThrottled: 3}, "429"},
		{"502", after(30*time.Second, always(502)), nil, false, map[LateCause]int{LateFailed: 3}, "502"},
		{"it hangs", after(30*time.Second, slow(time.Hour, 200)), nil, false, map[LateCause]int{LateFailed: 3}, "timeout"},
		{"it is slow", slow(15*time.Second, 200), nil, false, map[LateCause]int{LateSlow: 1, LateWaited: 2}, ""},
		{"the user is active", always(200), delayAll(20 * time.Second), false, map[LateCause]int{LateDelayed: 3}, ""},
		{"Redis is away", always(200), nil, true, map[LateCause]int{LateWaited: 3}, ""},
		{"well", always(200), nil, false, map[LateCause]int{}, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			inBubble(t, func(w *world) {
				w.answer("gw", test.gateway)
				w.attention = test.attention
				w.set(name1, "key", "gw")
				sender := w.stopped(w.queue, w)
				if !test.outage {
					d := w.host()
					sender = d
				}
				for n := range 3 {
					w.notify(sender, n, "!r:h", name1)
				}
				if test.outage {
					time.Sleep(40 * time.Second)
					w.host()
				}
				time.Sleep(4 * time.Minute)
				for _, cause := range LateCauses() {
					if n := w.counted(observe.NotificationLate, FailReason(cause)); n != test.want[cause] {
						t.Errorf("%s: %d, want %d", cause, n, test.want[cause])
					}
				}
				for _, late := range w.late {
					if late.Last != test.last || late.Age < lateAfter || late.Pusher == "" {
						t.Errorf("got %+v", late)
					}
				}
			})
		})
	}
}

// Most users of a gateway that fails for others wait without a request.
func TestLateSinceTheGateWasClosed(t *testing.T) {
	for _, test := range []struct {
		name   string
		noHost time.Duration // after the gate has closed
		cause  LateCause
	}{{"closed", 0, LateClosed}, {"closed, then without a host for longer", 2 * time.Minute, LateWaited}} {
		t.Run(test.name, func(t *testing.T) {
			inBubble(t, func(w *world) {
				w.answer("gw", always(502))
				d, stop := w.hostOn(w.queue, w)
				const first, all = 5, 105
				for n := range all {
					if n == first {
						time.Sleep(15 * time.Second)
					}
					w.set(name(n), key(n), "gw")
					w.notify(d, n, "!r:h", name(n))
				}
				time.Sleep(30 * time.Second)
				if test.noHost > 0 {
					stop()
					time.Sleep(test.noHost)
				}
				w.answer("gw", always(200))
				if test.noHost > 0 {
					w.host()
				}
				time.Sleep(2 * time.Minute)
				failed, late := w.counted(observe.NotificationLate, FailReason(LateFailed)), w.counted(observe.NotificationLate, FailReason(test.cause))
				if reports := len(w.late); reports > 4*maxLateReports {
					t.Errorf("%d reports in two minutes", reports)
				}
				if late < 30 || failed+late < all {
					t.Errorf("%d %s, %d failed, of %d: %v", late, test.cause, failed, all, w.counts)
				}
			})
		})
	}
}

type delayAll time.Duration

func (d delayAll) Delay(_ context.Context, devices []module.UserDevice) []time.Duration {
	return slices.Repeat([]time.Duration{time.Duration(d)}, len(devices))
}

// A gateway that serves some users each minute, and fails else, makes the others late.
func TestLateAtAGateThatOpensAndCloses(t *testing.T) {
	for label, test := range map[string]struct {
		serves time.Duration // of each 20 s
		isLate bool
	}{"it opens and closes": {6 * time.Second, true}, "it is down": {0, false}, "it is well": {20 * time.Second, false}} {
		t.Run(label, func(t *testing.T) {
			inBubble(t, func(w *world) {
				began := time.Now()
				w.answer("gw", func(context.Context, sent) (module.GatewayAnswer, error) {
					if time.Since(began)%(20*time.Second) < test.serves {
						return module.GatewayAnswer{Status: 200}, nil
					}
					return module.GatewayAnswer{Status: 502}, nil
				})
				d := w.host()
				var users []mxid.UserID
				for n := range 200 {
					w.set(name(n), key(n), "gw")
					users = append(users, name(n))
				}
				late, samples := 0, 0
				for n := range 120 {
					w.notify(d, n, "!r:h", users...)
					time.Sleep(time.Second)
					if n > 60 {
						samples++
						if d.Stats().Late > 3*time.Second {
							late++
						}
					}
				}
				if test.isLate && late < samples/3 || !test.isLate && late > 0 {
					t.Errorf("late in %d of %d samples", late, samples)
				}
			})
		})
	}
}

// Tools describe a log without content and pushkeys.
func TestALogIsDescribed(t *testing.T) {
	inBubble(t, func(w *world) {
		w.answer("bad", always(502))
		w.set(name1, "good", "gw")
		w.set(name1, "bad", "bad")
		d := w.host()
		synctest.Wait()
		first := time.Now()
		for e := range 3 {
			w.notify(d, e, "!r:h", name1)
			time.Sleep(100 * time.Millisecond)
		}
		log := w.log(name1)
		all := ReadLog(name1, log)
		if len(all) != 1 {
			t.Fatalf("got %+v", all)
		}
		got := all[0]
		if got.User != name1 || got.Pusher != PusherID(name1, pusher.Key{AppID: "app", Pushkey: "bad"}) || got.Notifications != 3 || got.Unreadable != 0 ||
			!got.Oldest.Equal(first) || got.Claimed || got.Due.Before(time.Now().Add(-time.Second)) || got.Attempts == 0 || got.Status != 502 ||
			got.Class != "status" || got.Gateway != "https://bad:443" || got.App != "app" || got.Since.IsZero() || got.Last.IsZero() {
			t.Errorf("got %+v", got)
		}
		log.Pushers[0].Waiting = log.Pushers[0].Waiting[1:] // one was cut
		if got := ReadLog(name1, log)[0]; got.Notifications != 2 || got.Oldest.Equal(first) {
			t.Errorf("after a cut: got %+v", got)
		}
	})
}
