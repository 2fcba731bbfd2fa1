// Package metrics counts what the module does, as collectors for Prometheus.
package metrics

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/fault"
	"github.com/pushfx/pushfx/module/observe"
)

var (
	_ observe.Observer     = (*Metrics)(nil)
	_ prometheus.Collector = (*Metrics)(nil)
)

// Metrics is the module's metrics: an [observe.Observer] that counts, and a
// [prometheus.Collector] of the counts. The host registers it once. It is safe for concurrent use.
//
// All names begin with pushfx_; times are in seconds. No label has a value that
// a client sends.
type Metrics struct {
	requests   *prometheus.HistogramVec
	operations *prometheus.HistogramVec
	writes     *prometheus.CounterVec
	wholeReads *prometheus.CounterVec
	ruleSets   *prometheus.CounterVec
	durability *prometheus.HistogramVec
	lag        prometheus.Histogram

	known sync.Map // the series of each *observe.Operation
}

// series are the histograms of an operation, by its outcome. They are looked up
// by their labels once.
type series [len(outcomes)]atomic.Pointer[prometheus.Observer]

// outcomes are those that the labels tell: classes of status, of errors, and
// gone for both.
var outcomes = [...]string{"1xx", "2xx", "3xx", "4xx", "5xx", "ok", "refused", "unreadable", "unavailable", "gone"}

// The places in outcomes of what is not a class of status.
const (
	ok = iota + 5
	refused
	unreadable
	unavailable
	gone
)

// The labels.
const (
	routeLabel     = "route"     // as the host mounted it
	methodLabel    = "method"    // GET, PUT, POST, DELETE or OTHER
	statusLabel    = "status"    // 2xx, 4xx, 5xx or gone, whose client hung up
	storeLabel     = "store"     // push_rules, pushers or pushkeys
	operationLabel = "operation" // load, load_many, versions, update or remove
	outcomeLabel   = "outcome"   // ok, refused, unreadable, unavailable or gone; of a wait ok or not_reached
	eventLabel     = "event"
)

// buckets are from a round trip in the same machine to the longest that an
// operation may take.
var buckets = []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10}

// New returns metrics that are all zero.
func New() *Metrics {
	histogram := func(name, help string, labels ...string) *prometheus.HistogramVec {
		return prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets}, labels)
	}
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
	}
	m := &Metrics{
		requests: histogram("pushfx_request_duration_seconds",
			"Time to answer a request, from when it reached the module.", routeLabel, methodLabel, statusLabel),
		operations: histogram("pushfx_store_operation_duration_seconds",
			"Time of an operation of a Redis store, its retries included.", storeLabel, operationLabel, outcomeLabel),
		writes: counter("pushfx_store_write_events_total",
			"Writes that were tried again: lost_race, another write came first; missed_guess, what the host had cached was not current; "+
				"unknown_outcome, the reply got lost.",
			storeLabel, eventLabel),
		wholeReads: counter("pushfx_store_whole_reads_total",
			"Reads of a whole value, since it was not cached or had changed.", storeLabel),
		ruleSets: counter("pushfx_rule_sets_total",
			"Rule sets that were created for users who had none, imported, or repaired.", eventLabel),
		durability: histogram("pushfx_durability_wait_seconds",
			"Time that a change took with its wait for replicas or a disk.", storeLabel, outcomeLabel),
		lag: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "pushfx_change_lag_seconds", Buckets: append([]float64{.0001}, append(buckets, 60, 600)...),
			Help: "Time from a change of push rules, on any host, until a listener on this host was called.",
		}),
	}
	m.begin()
	return m
}

// begin creates the series that alerts watch, so that their first increase shows:
// Prometheus sees none in a series that begins with 1.
func (m *Metrics) begin() {
	stores := []string{observe.PushRules, observe.Pushers, observe.Pushkeys}
	for _, store := range stores {
		for _, verb := range []string{"load", "load_many", "versions", "update", "remove"} {
			m.operations.WithLabelValues(store, verb, outcomes[unreadable])
		}
	}
	for _, event := range observe.Events() {
		switch event {
		case observe.RuleSetCreated, observe.RuleSetImported, observe.RuleSetRepaired:
			m.ruleSets.WithLabelValues(ruleSetEvent(event))
		case observe.WholeRead:
			for _, store := range stores {
				m.wholeReads.WithLabelValues(store)
			}
		default:
			for _, store := range stores {
				m.writes.WithLabelValues(store, event.String())
			}
		}
	}
}

func ruleSetEvent(event observe.Event) string {
	switch event {
	case observe.RuleSetCreated:
		return "created"
	case observe.RuleSetImported:
		return "imported"
	default:
		return "repaired"
	}
}

func (m *Metrics) collectors() []prometheus.Collector {
	return []prometheus.Collector{m.requests, m.operations, m.writes, m.wholeReads, m.ruleSets, m.durability, m.lag}
}

// Describe implements [prometheus.Collector].
func (m *Metrics) Describe(out chan<- *prometheus.Desc) {
	for _, c := range m.collectors() {
		c.Describe(out)
	}
}

// Collect implements [prometheus.Collector].
func (m *Metrics) Collect(out chan<- prometheus.Metric) {
	for _, c := range m.collectors() {
		c.Collect(out)
	}
}

// Begin implements [observe.Observer].
func (m *Metrics) Begin(ctx context.Context, op *observe.Operation) (context.Context, func(observe.Outcome)) {
	start := time.Now()
	return ctx, func(o observe.Outcome) {
		m.histogram(op, class(ctx, op, o)).Observe(time.Since(start).Seconds())
	}
}

// histogram returns the one of an operation with an outcome.
func (m *Metrics) histogram(op *observe.Operation, outcome int) prometheus.Observer {
	known, found := m.known.Load(op)
	if !found {
		known, _ = m.known.LoadOrStore(op, new(series))
	}
	one := &known.(*series)[outcome]
	if h := one.Load(); h != nil {
		return *h
	}
	of := m.operations
	if op.Kind == observe.Request {
		of = m.requests
	}
	h := of.WithLabelValues(op.Name, op.Verb, outcomes[outcome])
	one.Store(&h)
	return h
}

// Count implements [observe.Observer].
func (m *Metrics) Count(event observe.Event, store string) {
	switch event {
	case observe.RuleSetCreated, observe.RuleSetImported, observe.RuleSetRepaired:
		m.ruleSets.WithLabelValues(ruleSetEvent(event)).Inc()
	case observe.WholeRead:
		m.wholeReads.WithLabelValues(store).Inc()
	default:
		m.writes.WithLabelValues(store, event.String()).Inc()
	}
}

// Took implements [observe.Observer].
func (m *Metrics) Took(what observe.Span, store string, took time.Duration, reached bool) {
	if what == observe.ChangeLag {
		m.lag.Observe(max(0, took.Seconds())) // clocks differ
		return
	}
	outcome := "ok"
	if !reached {
		outcome = "not_reached"
	}
	m.durability.WithLabelValues(store, outcome).Observe(took.Seconds())
}

// class is an outcome's place in outcomes. What an edit refuses is no failure of
// a store. Ctx is the one that the operation began with.
func class(ctx context.Context, op *observe.Operation, o observe.Outcome) int {
	if o.CallerGone(ctx) {
		return gone
	}
	if op.Kind == observe.Request {
		return min(max(o.Status/100, 1), 5) - 1
	}
	switch {
	case o.Err == nil:
		return ok
	case fault.KindOf(o.Err) == fault.Unavailable:
		return unavailable
	case fault.KindOf(o.Err) == fault.Database:
		return unreadable
	}
	return refused
}

// Feed collects what a [module.Feed] has counted.
type Feed struct{ stats func() module.FeedStats }

// NewFeed returns a collector of stats, which may be called at any time.
func NewFeed(stats func() module.FeedStats) *Feed { return &Feed{stats} }

// feedMetric is a metric with how it is read.
type feedMetric struct {
	desc  *prometheus.Desc
	kind  prometheus.ValueType
	value func(module.FeedStats) float64
}

// feedMetrics are made anew each time: a collector is asked rarely.
func feedMetrics() []feedMetric {
	counter := func(name, help string, value func(module.FeedStats) int64) feedMetric {
		desc := prometheus.NewDesc("pushfx_"+name, help, nil, nil)
		return feedMetric{desc, prometheus.CounterValue, func(s module.FeedStats) float64 { return float64(value(s)) }}
	}
	gauge := func(name, help string, value func(module.FeedStats) float64) feedMetric {
		return feedMetric{prometheus.NewDesc("pushfx_"+name, help, nil, nil), prometheus.GaugeValue, value}
	}
	return []feedMetric{
		counter("changes_heard_total", "Changes of push rules that this host has heard of from the store, its own included.",
			func(s module.FeedStats) int64 { return s.Heard }),
		counter("changes_told_total", "Calls of change listeners.",
			func(s module.FeedStats) int64 { return s.Delivered }),
		counter("changes_dropped_total", "Changes that a listener was not notified of at once because too many waited; the next recheck notifies it.",
			func(s module.FeedStats) int64 { return s.Dropped }),
		counter("users_rechecked_total", "Users whose version was compared with the stored one, to find changes that this host did not hear of.",
			func(s module.FeedStats) int64 { return s.Rechecked }),
		counter("changes_missed_total", "Changes that this host did not hear of, and found in a recheck.",
			func(s module.FeedStats) int64 { return s.Missed }),
		counter("listener_panics_total", "Change listeners that panicked.",
			func(s module.FeedStats) int64 { return s.Panics }),
		gauge("changes_waiting", "Users whose change waits for a listener, now.",
			func(s module.FeedStats) float64 { return float64(s.Waiting) }),
		gauge("watching", "1 while this host hears of changes made by others, else 0.",
			func(s module.FeedStats) float64 {
				if s.Watching {
					return 1
				}
				return 0
			}),
	}
}

// Describe implements [prometheus.Collector].
func (f *Feed) Describe(out chan<- *prometheus.Desc) {
	for _, m := range feedMetrics() {
		out <- m.desc
	}
}

// Collect implements [prometheus.Collector].
func (f *Feed) Collect(out chan<- prometheus.Metric) {
	stats := f.stats()
	for _, m := range feedMetrics() {
		out <- prometheus.MustNewConstMetric(m.desc, m.kind, m.value(stats))
	}
}

// NewEvicting returns a collector of how many Redis masters may evict keys, of
// which masters tells at any time.
func NewEvicting(masters func() int) prometheus.Collector {
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "pushfx_evicting_masters", Help: "Redis masters that evict keys when their memory is full, which loses users' push rules.",
	}, func() float64 { return float64(masters()) })
}

// NewClockOffset returns a collector of by how much the clock of Redis is ahead of
// the host's, which offset tells at any time.
func NewClockOffset(offset func() time.Duration) prometheus.Collector {
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "pushfx_clock_offset_seconds", Help: "By how much the clock of Redis is ahead of this host's.",
	}, func() float64 { return offset().Seconds() })
}
