package delivery

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/mxid"
)

// The first answer is not 200. It counts how long the pusher waits for the second try.
func TestARetryWaitsAsTheAnswerSays(t *testing.T) {
	const second, minute = time.Second, time.Minute
	for label, test := range map[string]struct {
		status      int
		retryAfter  time.Duration
		least, most time.Duration
	}{
		"429, in 90 seconds": {429, 90 * second, 90 * second, 92 * second}, "503, in 90 seconds": {503, 90 * second, 90 * second, 92 * second},
		"429, at no time": {429, 0, 0, 2 * second}, "503, at no time": {503, 0, 0, 2 * second}, "429, in a day": {429, 24 * time.Hour, 60 * minute, 60*minute + 2*second},
		"502, not asked for": {502, 90 * second, 0, 2 * second}, "404, not asked for": {404, 90 * second, 0, 2 * second},
	} {
		t.Run(label, func(t *testing.T) {
			inBubble(t, func(w *world) {
				w.set(name1, "key", "gw")
				w.answer("gw", func(context.Context, sent) (module.GatewayAnswer, error) {
					if len(w.all()) == 0 {
						return module.GatewayAnswer{Status: test.status, RetryAfter: test.retryAfter}, nil
					}
					return module.GatewayAnswer{Status: 200}, nil
				})
				d := w.host()
				w.notify(d, 1, "!r:h", name1)
				w.notify(d, 2, "!r:h", name1)
				time.Sleep(test.most)
				synctest.Wait()
				w.want("key", 1, 1, 2)
				if all := w.all(); len(all) > 1 && all[1].at.Sub(all[0].at) < test.least {
					t.Errorf("tried again after %v, want at least %v", all[1].at.Sub(all[0].at), test.least)
				}
			})
		})
	}
}

// countedReads is a queue that counts the notifications that hosts have read.
type countedReads struct {
	module.DeliveryQueue
	n atomic.Int64
}

func (q *countedReads) Read(ctx context.Context, c *module.Claim, limit int) ([]module.Notification, int64, error) {
	all, end, err := q.DeliveryQueue.Read(ctx, c, limit)
	q.n.Add(int64(len(all)))
	return all, end, err
}

func (q *countedReads) Claim(ctx context.Context, requests []module.ClaimRequest) []module.Result[module.Claimed] {
	results := q.DeliveryQueue.Claim(ctx, requests)
	for _, r := range results {
		for _, p := range r.Value.Pushers {
			q.n.Add(int64(len(p.Notifications)))
		}
	}
	return results
}

// While a pusher fails, the notifications behind the first one are not read.
func TestARetryReadsOneNotification(t *testing.T) {
	inBubble(t, func(w *world) {
		const failures, all = 7, 20
		w.answer("gw", statuses(append(slices.Repeat([]int{404}, failures), 200)...))
		w.set(name1, "key", "gw")
		queue := &countedReads{DeliveryQueue: w.queue}
		d, _ := w.hostOn(queue, w)
		for n := range all {
			w.notify(d, n, "!r:h", name1)
			synctest.Wait()
		}
		time.Sleep(10 * time.Minute)
		if sent, read := len(w.delivered("key")), int(queue.n.Load()); sent != all || read > failures+all {
			t.Errorf("%d notifications were delivered, %d read", sent, read)
		}
	})
}

// At a gateway that answers some users, those who fail are tried less and less, however many they are.
func TestWaitsGrowWhileOthersAreAnswered(t *testing.T) {
	inBubble(t, func(w *world) {
		const users, answered = 300, 3
		w.answer("gw", func(_ context.Context, s sent) (module.GatewayAnswer, error) {
			for n := range answered {
				if s.pushkey == key(n) {
					return module.GatewayAnswer{Status: 200}, nil
				}
			}
			return module.GatewayAnswer{Status: 502}, nil
		})
		d := w.host()
		w.notify(d, 0, "!r:h", w.innocents(users)...)
		minute := func(first int) (requests int) {
			before := len(w.all())
			for n := range 30 {
				w.notify(d, first+n, "!r:h", name(n%answered))
				time.Sleep(2 * time.Second)
			}
			return len(w.all()) - before
		}
		minute(1)
		if got := minute(100) / (users - answered); got < 2 || got > 15 {
			t.Errorf("%d requests in a minute for each user who fails", got)
		}
	})
}

// A wait that the queue did not store would end with the claim.
func TestAPostponementIsRepeated(t *testing.T) {
	inBubble(t, func(w *world) {
		var asked, lost atomic.Int64
		w.answer("gw", func(context.Context, sent) (module.GatewayAnswer, error) {
			asked.Add(1)
			return module.GatewayAnswer{Status: 429, RetryAfter: 10 * time.Minute}, nil
		})
		w.queue.Fail = func(operation string, _ mxid.UserID) error {
			if operation == "postpone" && lost.Load() < 3 {
				lost.Add(1)
				return errors.New("away")
			}
			return nil
		}
		w.set(name1, "key", "gw")
		w.notify(w.host(), 1, "!r:h", name1)
		time.Sleep(9 * time.Minute)
		if asked.Load() != 1 || lost.Load() != 3 {
			t.Errorf("asked %d times, after %d lost postponements", asked.Load(), lost.Load())
		}
	})
}
