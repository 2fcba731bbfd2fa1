package redisclient

import (
	"context"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// Monitor checks the host's client and the servers behind it at start, and
// watches them while the host runs. It is safe for concurrent use.
type Monitor struct {
	client    redis.UniversalClient
	cfg       Config
	demands   Demands
	report    Reporter
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

// Reporter is told what operators should know. Its methods return at once.
type Reporter interface {
	// Setting is called at start for each setting of the client that will hurt.
	Setting(advice Advice, address string)

	// Shortage is called at start for each reason why changes will not be
	// acknowledged.
	Shortage(why string)

	// Evicting is called when a master begins to evict keys, and at start if the
	// client may not ask.
	Evicting(err error)

	// Clock is called as the report of [NewClock].
	Clock(err error)
}

// NewMonitor returns a monitor of the servers behind client. It does no I/O and
// starts nothing. Without a client, nil, only its clock may be used, which is the
// host's own.
func NewMonitor(client redis.UniversalClient, cfg Config, demands Demands, report Reporter) *Monitor {
	return &Monitor{
		client: client, cfg: cfg, demands: demands, report: report,
		clock:     NewClock(client, nil, report.Clock),
		evictions: NewEvictions(client, cfg, report.Evicting),
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
		m.report.Setting(advice, Address(m.client))
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
		m.report.Shortage(shortage)
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
