package redisclient

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/observe"
)

var _ module.Health = (*Monitor)(nil)

// Monitor checks the host's client and the servers behind it at start, watches them
// while the host runs, and tells their health. It is safe for concurrent use.
type Monitor struct {
	client     redis.UniversalClient
	cfg        Config
	durability Durability
	observer   observe.Observer
	clock      *Clock
	interval   time.Duration
	evicting   atomic.Int64
}

// Durability is what must have happened to a change before it is acknowledged.
type Durability interface {
	// Check asks every master whether it can do that. An error says that one never
	// will, a shortage that one cannot at the moment.
	Check(ctx context.Context, client redis.UniversalClient) (shortages []string, err error)
}

// SettingError reports a setting of the client that will hurt.
type SettingError struct {
	Advice
	Address string // of the client
}

// Error is the advice.
func (e *SettingError) Error() string { return e.Advice.String() }

// NewMonitor returns a monitor of the servers behind client. It does no I/O and
// starts nothing. Without a client, nil, its clock is the host's own, and it is
// healthy. The observer is told of each [SettingError] and each reason why changes
// will not be acknowledged, at start; of masters that evict keys; and of the clock, as
// [NewClock] tells.
func NewMonitor(client redis.UniversalClient, cfg Config, durability Durability, observer observe.Observer) *Monitor {
	return &Monitor{
		client: client, cfg: cfg, durability: durability, observer: observer, interval: time.Minute,
		clock: NewClock(client, nil, func(err error) {
			problem := observe.ClockUnknown
			if differs := (*ClockError)(nil); errors.As(err, &differs) {
				problem = observe.ClockDiffers
			}
			observer.Report(problem, err)
		}),
	}
}

// Clock returns the clock of the servers.
func (m *Monitor) Clock() *Clock { return m.clock }

// EvictingMasters returns how many masters evicted keys when they were last asked.
func (m *Monitor) EvictingMasters() int { return int(m.evicting.Load()) }

// Check returns why the stores cannot work with the servers, and reports what will
// hurt. It takes [Config].StartTimeout at most.
func (m *Monitor) Check(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, m.cfg.StartTimeout)
	defer cancel()
	for _, advice := range Advise(m.client) {
		m.observer.Report(observe.ClientSetting, &SettingError{advice, address(m.client)})
	}
	if err := ping(ctx, m.client); err != nil {
		return err
	}
	s := m.survey(ctx)
	if denied := joinSorted(s.denied); denied != nil {
		m.observer.Report(observe.RedisEvicts, denied)
	}
	if evicting := joinSorted(s.evicting); evicting != nil {
		return evicting
	}
	m.clock.Measure(ctx)
	shortages, err := m.durability.Check(ctx, m.client)
	for _, shortage := range shortages {
		m.observer.Report(observe.NoDurability, errors.New(shortage))
	}
	return err
}

// Run watches for masters that evict keys and measures the clock, until ctx ends.
func (m *Monitor) Run(ctx context.Context) {
	var running sync.WaitGroup
	running.Go(func() { m.watchEvictions(ctx) })
	running.Go(func() { m.clock.run(ctx) })
	running.Wait()
}

// watchEvictions asks every minute, and reports an answer that differs from the one
// before.
func (m *Monitor) watchEvictions(ctx context.Context) {
	ticker := time.NewTicker(m.interval)
	defer ticker.Stop()
	last := ""
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		evicting := joinSorted(m.survey(ctx).evicting)
		if evicting != nil && evicting.Error() != last {
			m.observer.Report(observe.RedisEvicts, evicting)
		}
		last = fmt.Sprint(evicting)
	}
}
