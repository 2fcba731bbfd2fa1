package redisclient

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/pushfx/pushfx/module/observe"
)

// Monitor checks the host's client and the servers behind it at start, and
// watches them while the host runs. It is safe for concurrent use.
type Monitor struct {
	client    redis.UniversalClient
	cfg       Config
	demands   Demands
	observer  observe.Observer
	clock     *Clock
	evictions *Evictions
}

// Demands are what the stores ask of the client and the servers.
type Demands struct {
	OperationTimeout time.Duration // bounds each of their operations
	Durability       Durability
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
// starts nothing. Without a client, nil, only its clock may be used, which is the
// host's own. The observer is told of each [SettingError] and each reason why changes
// will not be acknowledged, at start; of masters that evict keys; and of the clock, as
// [NewClock] tells.
func NewMonitor(client redis.UniversalClient, cfg Config, demands Demands, observer observe.Observer) *Monitor {
	return &Monitor{
		client: client, cfg: cfg, demands: demands, observer: observer,
		clock: NewClock(client, nil, func(err error) {
			problem := observe.ClockUnknown
			if differs := (*ClockError)(nil); errors.As(err, &differs) {
				problem = observe.ClockDiffers
			}
			observer.Report(problem, err)
		}),
		evictions: NewEvictions(client, cfg, func(err error) { observer.Report(observe.RedisEvicts, err) }),
	}
}

// Clock returns the clock of the servers.
func (m *Monitor) Clock() *Clock { return m.clock }

// EvictingMasters returns how many masters evicted keys at the last check.
func (m *Monitor) EvictingMasters() int { return m.evictions.Masters() }

// Check returns why the stores cannot work with the servers, and reports what will
// hurt. It takes [Config].StartTimeout at most.
func (m *Monitor) Check(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, m.cfg.StartTimeout)
	defer cancel()
	for _, advice := range Advise(m.client, m.demands.OperationTimeout) {
		m.observer.Report(observe.ClientSetting, &SettingError{advice, Address(m.client)})
	}
	if err := Ping(ctx, m.client); err != nil {
		return err
	}
	if err := m.evictions.Check(ctx); err != nil {
		return err
	}
	m.clock.Measure(ctx)
	shortages, err := m.demands.Durability.Check(ctx, m.client)
	for _, shortage := range shortages {
		m.observer.Report(observe.NoDurability, errors.New(shortage))
	}
	return err
}

// Run watches for masters that evict keys and measures the clock, until ctx ends.
func (m *Monitor) Run(ctx context.Context) {
	var running sync.WaitGroup
	running.Go(func() { m.evictions.Run(ctx) })
	running.Go(func() { m.clock.Run(ctx) })
	running.Wait()
}
