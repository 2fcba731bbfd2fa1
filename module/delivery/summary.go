package delivery

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/delivery/channel"
	"github.com/pushfx/pushfx/module/observe"
	"github.com/pushfx/pushfx/module/pusher"
)

// summarizeEvery is the time between two summaries of the queue.
const summarizeEvery = 15 * time.Second

// summaries has the last summary of the queue.
type summaries struct {
	queue    module.DeliveryQueue
	failures *failures
	channels channel.Set

	mu   sync.Mutex
	last module.QueueSummary
	at   time.Time

	reported map[pusher.Kind]bool // kinds that this host does not send
}

// run reads what waits in the queue until ctx ends.
func (s *summaries) run(ctx context.Context) {
	timer := time.NewTimer(rand.N(lookEvery))
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		s.read(ctx)
		timer.Reset(summarizeEvery)
	}
}

func (s *summaries) read(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, queueTimeout)
	defer cancel()
	began := time.Now()
	summary, err := s.queue.Summary(ctx, func(gate string, t module.Trouble) bool {
		return s.channels.Waits(gate) || readTrouble(t).isAlone()
	})
	if failed := cmp.Or(err, summary.Refused); failed != nil && ctx.Err() != context.Canceled {
		s.failures.add("read what waits", failed)
	}
	if err != nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.last, s.at = summary, began
	for kind, users := range s.unserved() {
		if !s.reported[kind] {
			s.reported[kind] = true
			s.failures.observer.Report(observe.KindNotSent, fmt.Errorf("kind %s: %d users", kind, users))
		}
	}
}

// unserved returns for how many users something waits that this host does not send, by kind.
func (s *summaries) unserved() map[pusher.Kind]int {
	all := map[pusher.Kind]int{}
	for gate, users := range s.last.Gates {
		if !s.channels.Sends(gate) {
			all[channel.KindOf(gate)] += users
		}
	}
	return all
}

// addTo adds the last summary to the state of this host. It assumes that the notifications of
// an old summary still wait, since the queue cannot be read.
func (s *summaries) addTo(all *Stats) {
	s.mu.Lock()
	defer s.mu.Unlock()
	all.Waiting, all.Oldest, all.WaitingAt = s.last.Notifications, s.last.Oldest, byGateway(s.last.Gates)
	all.NotSent = s.unserved()
	for gateway, users := range all.WaitingAt {
		if !s.channels.Waits(gateway) {
			all.Worst = max(all.Worst, users)
		}
	}
	if since := time.Since(s.at); all.Waiting == 0 {
		all.Oldest = 0
	} else if since > 2*summarizeEvery {
		all.Oldest += since
	}
}

// byGateway adds up the users of all apps of each gateway.
func byGateway(gates map[string]int) map[string]int {
	all := make(map[string]int, len(gates))
	for gate, users := range gates {
		gateway, _ := SplitGate(gate)
		all[gateway] += users
	}
	return all
}
