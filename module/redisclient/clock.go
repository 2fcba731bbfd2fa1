package redisclient

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

// Clock is the clock of Redis, which all hosts share whatever their own clocks
// say. It asks the masters for their time once a minute, and goes on by the host's
// monotonic clock in between. Of masters that differ, the one that is ahead
// counts, so that what is given by the clock grows when a slot moves.
//
// Hosts agree to within the time of a round trip. Before the first measurement it
// is the host's own clock. It is safe for concurrent use.
type Clock struct {
	client   redis.UniversalClient
	host     func() time.Time
	report   func(error)
	interval time.Duration
	last     atomic.Pointer[reading]
	denied   atomic.Bool // at the last measurement
}

// reading is what a measurement came to.
type reading struct {
	at    time.Time     // by the host's clock
	ahead time.Duration // of the host: the master that is ahead of the others

	offset  time.Duration // of the master that differs most from the host
	addr    string        // where that one is
	differs bool          // more than tolerated, for certain
}

// Clocks are measured every minute. A measurement ends after a second, for masters
// that are silent. A host's clock may differ from that of Redis by a second before
// somebody hears of it.
const (
	clockInterval  = time.Minute
	clockTimeout   = time.Second
	clockTolerance = time.Second
)

// NewClock returns the clock of the masters behind client. Host is the host's own
// clock, nil for [time.Now]. Report gets a [*ClockError] when the host's clock
// begins to differ from that of Redis by more than a second, and what Redis answers
// when it begins to refuse to tell its time; it must return at once.
func NewClock(client redis.UniversalClient, host func() time.Time, report func(error)) *Clock {
	if host == nil {
		host = time.Now
	}
	return &Clock{client: client, host: host, report: report, interval: clockInterval}
}

// ClockError says that the clock of this host differs from that of a Redis by more
// than a second. The module works right nevertheless.
type ClockError struct {
	Addr   string        // where the Redis is
	Offset time.Duration // by how much the Redis is ahead
}

// Error implements error.
func (e *ClockError) Error() string {
	return fmt.Sprintf("the clock of the Redis at %s is %v ahead of this host's", e.Addr, e.Offset.Round(time.Millisecond))
}

// Now returns the time of Redis.
func (c *Clock) Now() time.Time {
	now, last := c.host(), c.last.Load()
	if last == nil {
		return now
	}
	elapsed := now.Sub(last.at) // by the monotonic clock
	return last.at.Add(elapsed + last.ahead)
}

// Offset returns by how much the clock of Redis was ahead of the host's at the
// last measurement: that of the master that differs most. 0 before the first.
func (c *Clock) Offset() time.Duration {
	if last := c.last.Load(); last != nil {
		return last.offset
	}
	return 0
}

// Measure asks the masters for their time. A master that does not answer within a
// second is passed over; if none answers, the clock goes on as it was.
func (c *Clock) Measure(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, clockTimeout)
	defer cancel()
	m := measurement{host: c.host}
	// That some do not answer is for others to tell.
	_ = EachMaster(ctx, c.client, m.ask)
	if wasDenied := c.denied.Swap(m.denied != nil); m.denied != nil && !wasDenied {
		c.report(m.denied)
	}
	if m.reading == nil {
		return
	}
	before := c.last.Swap(m.reading)
	if m.reading.differs && (before == nil || !before.differs) {
		c.report(&ClockError{m.reading.addr, m.reading.offset})
	}
}

// run measures every minute until ctx ends.
func (c *Clock) run(ctx context.Context) {
	ticker := time.NewTicker(c.interval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			c.Measure(ctx)
		}
	}
}

// measurement is one of the clocks of all masters.
type measurement struct {
	host func() time.Time

	mu      sync.Mutex
	reading *reading // nil before the first answer
	denied  error
}

// ask asks a master. Its answer is the time in the middle of the round trip, or
// half a round trip away from it.
func (m *measurement) ask(ctx context.Context, master *redis.Client) error {
	before := m.host()
	now, err := master.Time(ctx).Result()
	took := m.host().Sub(before)
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case redis.HasErrorPrefix(err, "NOPERM"):
		m.denied = fmt.Errorf("the Redis at %s does not tell its time: %w", master.Options().Addr, err)
	case err == nil:
		m.add(master.Options().Addr, now.Sub(before)-took/2, took/2)
	}
	return nil
}

// add adds that a master is so far ahead of the host, give or take an error.
func (m *measurement) add(addr string, ahead, mayErr time.Duration) {
	if m.reading == nil {
		m.reading = &reading{at: m.host(), ahead: ahead, addr: addr, offset: ahead}
	}
	r := m.reading
	r.ahead = max(r.ahead, ahead)
	if ahead.Abs() >= r.offset.Abs() {
		r.addr, r.offset = addr, ahead
	}
	r.differs = r.differs || ahead.Abs() > clockTolerance+mayErr
}
