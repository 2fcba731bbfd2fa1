package redisclient

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/pushfx/pushfx/module/observe"
	"github.com/pushfx/pushfx/module/retry"
)

// Monitor checks the host's client and its servers at start, and watches the servers'
// health. It is safe for concurrent use.
type Monitor struct {
	client     redis.UniversalClient
	cfg        Config
	durability durabilityCheck
	observer   observe.Observer
	clock      *Clock
	interval   time.Duration
	evicting   atomic.Int64 // number of masters, at the last survey
	parts      []part
}

// part is a part of the module on the servers, with a harmless command on one of its keys.
type part struct {
	name    string
	command []any
}

// durabilityCheck is a [Durability].
type durabilityCheck interface {
	Check(ctx context.Context, client redis.UniversalClient) (shortages []string, err error)
}

// SettingError reports a harmful setting of the client.
type SettingError struct {
	Advice
	Address string // the client's servers
}

func (e *SettingError) Error() string { return e.Advice.String() }

// NewMonitor returns a monitor of the servers behind client. It does no I/O. If client
// is nil, the monitor is always healthy and its clock is the host's.
//
// At start, [Monitor.Check] reports to the observer each [SettingError], each shortage
// of durability, and masters that refuse INFO, so that evictions are unknown. Later,
// [Monitor.Run] reports masters that evict keys. The reports of [NewClock] go to the
// observer, too.
func NewMonitor(client redis.UniversalClient, cfg Config, durability durabilityCheck, observer observe.Observer) *Monitor {
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

// Require makes checks send a command that changes nothing, to find out whether the ACL of each
// master has the rights of a part of the module. Name is for the error. Call it before Check.
func (m *Monitor) Require(name string, command ...any) {
	m.parts = append(m.parts, part{name, command})
}

// Clock returns the clock of the servers.
func (m *Monitor) Clock() *Clock { return m.clock }

// EvictingMasters returns the number of masters that evicted keys at the last check.
func (m *Monitor) EvictingMasters() int { return int(m.evicting.Load()) }

// Check returns an error if the stores cannot work with the servers, and reports
// harmful settings. [Config].StartTimeout bounds it.
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
	for len(s.replicas) > 0 && retry.Sleep(ctx, checkAgain) == nil { // a failover may end in time
		if next := m.survey(ctx); ctx.Err() == nil {
			s = next
		}
	}
	if denied := joinSorted(s.denied); denied != nil {
		m.observer.Report(observe.RedisEvicts, denied)
	}
	if err := errors.Join(joinSorted(s.evicting), joinSorted(s.misfits), joinSorted(s.replicas), joinSorted(s.refused)); err != nil {
		return err
	}
	m.clock.Measure(ctx)
	shortages, err := m.durability.Check(ctx, m.client)
	for _, shortage := range shortages {
		m.observer.Report(observe.NoDurability, errors.New(shortage))
	}
	return err
}

// checkAgain is the wait before a server that is a replica is asked again.
const checkAgain = 250 * time.Millisecond

// Run watches for evictions and measures the clock, until ctx ends.
func (m *Monitor) Run(ctx context.Context) {
	var running sync.WaitGroup
	running.Go(func() { m.watchEvictions(ctx) })
	running.Go(func() { m.clock.run(ctx) })
	running.Wait()
}

// watchEvictions asks the masters every minute, and reports masters that evict keys,
// unless the last report was the same.
func (m *Monitor) watchEvictions(ctx context.Context) {
	last := ""
	for retry.Sleep(ctx, m.interval) == nil {
		evicting := joinSorted(m.survey(ctx).evicting)
		if evicting != nil && evicting.Error() != last {
			m.observer.Report(observe.RedisEvicts, evicting)
		}
		last = fmt.Sprint(evicting)
	}
}
