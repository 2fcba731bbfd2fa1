package redisclient

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/pushfx/pushfx/module/retry"
)

// Clock is the clock of Redis, on which all hosts agree to within a round trip. It asks
// the masters once a minute and continues with the host's monotonic clock in between.
// If masters differ, the time that is furthest ahead counts, so that times keep growing
// when a slot moves.
//
// Before the first measurement, it is the host's own clock. It is safe for concurrent
// use.
type Clock struct {
	client   redis.UniversalClient
	host     func() time.Time
	report   func(error) // see NewClock
	interval time.Duration
	last     atomic.Pointer[reading]
	denied   atomic.Bool // whether a master refused TIME at the last measurement
}

// reading is a measurement. Its durations say how far Redis is ahead of the host.
type reading struct {
	at    time.Time     // by the host's clock
	ahead time.Duration // of the master that is furthest ahead

	offset  time.Duration // of the master that differs most
	addr    string        // of that master
	differs bool          // whether a master certainly differs by more than clockTolerance
}

// A measurement waits for silent masters up to clockTimeout. Differences above
// clockTolerance are reported.
const (
	clockInterval  = time.Minute
	clockTimeout   = time.Second
	clockTolerance = time.Second
)

// NewClock returns the clock of the masters behind client. Host is the host's own
// clock, by default [time.Now]. Report must return at once. It receives a [*ClockError]
// when a master starts to differ from the host by more than a second, and the error of
// Redis when a master starts to refuse TIME.
func NewClock(client redis.UniversalClient, host func() time.Time, report func(error)) *Clock {
	if host == nil {
		host = time.Now
	}
	return &Clock{client: client, host: host, report: report, interval: clockInterval}
}

// ClockError says that a master's clock differs from the host's by more than a second.
// The module still works correctly.
type ClockError struct {
	Addr   string        // of the master
	Offset time.Duration // positive if the master is ahead
}

// Error names the master and its offset.
func (e *ClockError) Error() string {
	return fmt.Sprintf("the clock of the Redis at %s is %v ahead of this host's", e.Addr, e.Offset.Round(time.Millisecond))
}

// Now returns the time of Redis. It does no I/O.
func (c *Clock) Now() time.Time {
	now, last := c.host(), c.last.Load()
	if last == nil {
		return now
	}
	elapsed := now.Sub(last.at) // by the monotonic clock
	return last.at.Add(elapsed + last.ahead)
}

// Offset returns how far the clock of Redis was ahead of the host's at the last
// measurement, for the master that differed most; 0 before the first.
func (c *Clock) Offset() time.Duration {
	if last := c.last.Load(); last != nil {
		return last.offset
	}
	return 0
}

// Measure asks the masters for their time. It skips masters that do not reply within a
// second; without any reply, the clock keeps its last measurement.
func (c *Clock) Measure(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, clockTimeout)
	defer cancel()
	m := measurement{host: c.host}
	// Other checks report masters that do not reply.
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

func (c *Clock) run(ctx context.Context) {
	for retry.Sleep(ctx, c.interval) == nil {
		c.Measure(ctx)
	}
}

type measurement struct {
	host func() time.Time

	mu      sync.Mutex
	reading *reading // nil before the first reply
	denied  error
}

// ask assumes that the reply was made halfway through the round trip, which is wrong by
// half a round trip at most.
func (m *measurement) ask(ctx context.Context, master redis.UniversalClient) error {
	before := m.host()
	now, err := master.Time(ctx).Result()
	took := m.host().Sub(before)
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case redis.HasErrorPrefix(err, "NOPERM"):
		m.denied = fmt.Errorf("the Redis at %s does not tell its time: %w", address(master), err)
	case err == nil:
		m.add(address(master), now.Sub(before)-took/2, took/2)
	}
	return nil
}

func (m *measurement) add(addr string, ahead, maxError time.Duration) {
	if m.reading == nil {
		m.reading = &reading{at: m.host(), ahead: ahead, addr: addr, offset: ahead}
	}
	r := m.reading
	r.ahead = max(r.ahead, ahead)
	if ahead.Abs() >= r.offset.Abs() {
		r.addr, r.offset = addr, ahead
	}
	r.differs = r.differs || ahead.Abs() > clockTolerance+maxError
}
