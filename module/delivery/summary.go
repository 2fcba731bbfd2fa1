package delivery

import (
	"cmp"
	"context"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/delivery/content"
)

// summarizeEvery is the time between two summaries of the queue.
const summarizeEvery = 15 * time.Second

// summarize reads what waits in the queue, for Stats, until ctx ends.
func (d *Delivery) summarize(ctx context.Context) {
	timer := time.NewTimer(rand.N(lookEvery))
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		d.summarizeOnce(ctx)
		timer.Reset(summarizeEvery)
	}
}

func (d *Delivery) summarizeOnce(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, queueTimeout)
	defer cancel()
	began := time.Now()
	summary, err := d.queue.Summary(ctx, func(t module.Trouble) bool { return content.ReadTrouble(t).IsAlone() })
	if failed := cmp.Or(err, summary.Refused); failed != nil && ctx.Err() != context.Canceled {
		d.failures.add("read what waits", failed)
	}
	if err != nil {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.summary, d.summaryAt = summary, began
}

// oldest returns for how long the oldest notifications have waited. While the queue cannot
// be read, it assumes that the notifications of the last summary still wait.
func oldest(s module.QueueSummary, at time.Time) time.Duration {
	if s.Notifications == 0 {
		return 0
	}
	if since := time.Since(at); since > 2*summarizeEvery {
		return s.Oldest + since
	}
	return s.Oldest
}

// byGateway adds up the users of all apps of each gateway.
func byGateway(gates map[string]int) map[string]int {
	all := make(map[string]int, len(gates))
	for gate, users := range gates {
		gateway, _, _ := strings.Cut(gate, " ")
		all[gateway] += users
	}
	return all
}
