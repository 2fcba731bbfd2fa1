// Package metrics provides the module's metrics for Prometheus; except [DeliveryConfig], its
// API may change at any time.
package metrics

import (
	"context"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/pushfx/pushfx/module/fault"
	"github.com/pushfx/pushfx/module/feed"
	"github.com/pushfx/pushfx/module/observe"
)

var _ observe.Observer = (*Metrics)(nil)

// Metrics is an [observe.Observer] with Prometheus collectors. It is safe for concurrent
// use.
//
// All names begin with pushfx_; times are in seconds. No label value comes from a client.
type Metrics struct {
	observe.Observer // receives all other reports

	delivery   *forDelivery
	requests   *prometheus.HistogramVec
	operations *prometheus.HistogramVec
	writes     *prometheus.CounterVec
	wholeReads *prometheus.CounterVec
	ruleSets   *prometheus.CounterVec
	unread     *prometheus.CounterVec
	durability *prometheus.HistogramVec
	lag        prometheus.Histogram

	known sync.Map // the series of each *observe.Operation
}

// series are the histograms of an operation by outcome.
type series [len(outcomes)]atomic.Pointer[prometheus.Observer]

// outcomes are the label values: classes of status, classes of errors, and gone for both.
var outcomes = [...]string{"1xx", "2xx", "3xx", "4xx", "5xx", "ok", "refused", "unreadable", "unavailable", "gone"}

const (
	ok = iota + 5
	refused
	unreadable
	unavailable
	gone
)

const (
	routeLabel     = "route"     // as mounted by the host
	methodLabel    = "method"    // GET, PUT, POST, DELETE or OTHER
	statusLabel    = "status"    // 2xx, 4xx, 5xx, or gone if the client hung up
	storeLabel     = "store"     // push_rules, pushers, pushkeys or unread
	operationLabel = "operation" // load, load_many, versions, update or remove; of unread the verb of a call
	outcomeLabel   = "outcome"   // ok, refused, unreadable, unavailable or gone; of a wait ok or not_reached
	eventLabel     = "event"
)

// buckets range from a local round trip to the maximum duration of an operation.
var buckets = []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10}

// New returns metrics with zero values.
func New(cfg DeliveryConfig) *Metrics {
	histogram := func(name, help string, labels ...string) *prometheus.HistogramVec {
		return prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets}, labels)
	}
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
	}
	m := &Metrics{
		Observer: observe.None, delivery: newForDelivery(cfg),
		requests: histogram("pushfx_request_duration_seconds",
			"Duration of a request, from when it reached the module.", routeLabel, methodLabel, statusLabel),
		operations: histogram("pushfx_store_operation_duration_seconds",
			"Duration of an operation of a Redis store, with retries.", storeLabel, operationLabel, outcomeLabel),
		writes: counter("pushfx_store_write_events_total",
			"Repeated writes: lost_race, another write came first; stale_cache, the cached value was not current; "+
				"unknown_outcome, the reply got lost.",
			storeLabel, eventLabel),
		wholeReads: counter("pushfx_store_whole_reads_total",
			"Reads that transferred the value, since it was not cached or had changed.", storeLabel),
		ruleSets: counter("pushfx_rule_sets_total",
			"Rule sets created with the defaults, imported, or repaired.", eventLabel),
		unread: counter("pushfx_unread_events_total",
			"Operations appended to lists of unread notifications, lists compacted, appends to lists of more than 64 operations (long), "+
				"tries to read or change a list that cannot be read (unreadable), and compacted lists without place for all (shortened).", eventLabel),
		durability: histogram("pushfx_durability_wait_seconds",
			"Duration of a change with its wait for replicas or disk.", storeLabel, outcomeLabel),
		lag: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "pushfx_change_lag_seconds", Buckets: append([]float64{.0001}, append(buckets, 60, 600)...),
			Help: "Time from a change of push rules, on any host, until this host called a listener or woke the user's syncs.",
		}),
	}
	m.begin()
	return m
}

// begin creates the series of the alerts with 0, since Prometheus sees no increase in a
// series that begins with 1.
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
		case observe.UnreadAppended, observe.UnreadCompacted, observe.UnreadLong, observe.UnreadUnreadable, observe.UnreadShortened: // see Unread
		case observe.NotificationDropped, observe.NotificationLate, observe.NotificationUnconfirmed, observe.HandoverFailed, observe.DeliveryFailed,
			observe.RulesKept, observe.RulesRead: // see newForDelivery
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

func unreadEvent(event observe.Event) string { return strings.TrimPrefix(event.String(), "unread_") }

// Unread returns the collector of a host with unread counts.
func (m *Metrics) Unread() prometheus.Collector {
	for _, event := range []observe.Event{observe.UnreadAppended, observe.UnreadCompacted, observe.UnreadLong, observe.UnreadUnreadable, observe.UnreadShortened} {
		m.unread.WithLabelValues(unreadEvent(event))
	}
	return m.unread
}

// Collectors returns the collectors of every host.
func (m *Metrics) Collectors() []prometheus.Collector {
	return []prometheus.Collector{m.requests, m.operations, m.writes, m.wholeReads, m.ruleSets, m.durability, m.lag}
}

// Begin implements [observe.Observer].
func (m *Metrics) Begin(ctx context.Context, op *observe.Operation) (context.Context, func(observe.Outcome)) {
	start := time.Now()
	return ctx, func(o observe.Outcome) {
		if op.Kind == observe.Call {
			m.delivery.called(op, o, time.Since(start))
			return
		}
		m.histogram(op, class(ctx, op, o)).Observe(time.Since(start).Seconds())
	}
}

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
func (m *Metrics) Count(event observe.Event, label string, n int) {
	count := float64(n)
	switch event {
	case observe.RuleSetCreated, observe.RuleSetImported, observe.RuleSetRepaired:
		m.ruleSets.WithLabelValues(ruleSetEvent(event)).Add(count)
	case observe.WholeRead:
		m.wholeReads.WithLabelValues(label).Add(count)
	case observe.NotificationDropped:
		m.delivery.dropped.WithLabelValues(label).Add(count)
	case observe.NotificationLate:
		m.delivery.late.WithLabelValues(label).Add(count)
	case observe.NotificationUnconfirmed:
		m.delivery.unconfirmed.Add(count)
	case observe.HandoverFailed:
		m.delivery.notHandedOver.WithLabelValues(label).Add(count)
	case observe.DeliveryFailed:
		m.delivery.failures.WithLabelValues(label).Add(count)
	case observe.UnreadAppended, observe.UnreadCompacted, observe.UnreadLong, observe.UnreadUnreadable, observe.UnreadShortened:
		m.unread.WithLabelValues(unreadEvent(event)).Add(count)
	case observe.RulesKept:
		m.delivery.audience.WithLabelValues("hit").Add(count)
	case observe.RulesRead:
		m.delivery.audience.WithLabelValues("miss").Add(count)
	default:
		m.writes.WithLabelValues(label, event.String()).Add(count)
	}
}

// Took implements [observe.Observer]. Clocks differ, so an age may be below 0.
func (m *Metrics) Took(what observe.Span, label string, took time.Duration, reached bool) {
	switch what {
	case observe.ChangeLag:
		m.lag.Observe(max(0, took.Seconds()))
	case observe.DeliveryAge:
		m.delivery.ages.Observe(max(0, took.Seconds()))
	default:
		outcome := "ok"
		if !reached {
			outcome = "not_reached"
		}
		m.durability.WithLabelValues(label, outcome).Observe(took.Seconds())
	}
}

// class returns an index in outcomes. A refusal by an edit is no failure of the store.
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

// Feed returns the collectors of a [feed.Feed].
func Feed(stats func() feed.Stats) []prometheus.Collector {
	counter := func(name, help string, value func(feed.Stats) int64) prometheus.Collector {
		return prometheus.NewCounterFunc(prometheus.CounterOpts{Name: "pushfx_" + name, Help: help},
			func() float64 { return float64(value(stats())) })
	}
	gauge := func(name, help string, value func(feed.Stats) float64) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "pushfx_" + name, Help: help},
			func() float64 { return value(stats()) })
	}
	return []prometheus.Collector{
		counter("changes_received_total", "Changes of push rules that the watch of the store reported, including those made here.",
			func(s feed.Stats) int64 { return s.Received }),
		counter("changes_notified_total", "Calls of change listeners, and changes that woke syncs.",
			func(s feed.Stats) int64 { return s.Notified }),
		counter("changes_dropped_total", "Changes dropped because too many waited for a listener; the next recheck notifies it.",
			func(s feed.Stats) int64 { return s.Dropped }),
		counter("users_rechecked_total", "Comparisons of a user's version with the store, which find missed changes.",
			func(s feed.Stats) int64 { return s.Rechecked }),
		counter("changes_missed_total", "Changes that the watch missed and a recheck found.",
			func(s feed.Stats) int64 { return s.Missed }),
		counter("listener_panics_total", "Change listeners that panicked.",
			func(s feed.Stats) int64 { return s.Panics }),
		gauge("changes_waiting", "Users whose change waits for a listener.",
			func(s feed.Stats) float64 { return float64(s.Waiting) }),
		gauge("watching", "1 while this host watches the store for changes, else 0.",
			func(s feed.Stats) float64 {
				if s.Watching {
					return 1
				}
				return 0
			}),
	}
}

// NewEvicting returns a collector of the number of Redis masters that may evict keys.
func NewEvicting(masters func() int) prometheus.Collector {
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "pushfx_evicting_masters", Help: "Redis masters that evict keys when their memory is full, which loses users' push rules.",
	}, func() float64 { return float64(masters()) })
}

// NewSilent returns a collector of which Redis nodes are silent, by address.
func NewSilent(nodes func() map[string]bool) prometheus.Collector { return silent(nodes) }

type silent func() map[string]bool

var silentNodes = prometheus.NewDesc("pushfx_redis_silent",
	"1 while a master of the cluster does not reply, so that calls for many users leave out its users.", []string{"node"}, nil)

func (c silent) Describe(to chan<- *prometheus.Desc) { to <- silentNodes }

func (c silent) Collect(to chan<- prometheus.Metric) {
	for node, isSilent := range c() {
		value := 0.0
		if isSilent {
			value = 1
		}
		to <- prometheus.MustNewConstMetric(silentNodes, prometheus.GaugeValue, value, node)
	}
}

// NewClockOffset returns a collector of how far the clock of Redis is ahead of the
// host's.
func NewClockOffset(offset func() time.Duration) prometheus.Collector {
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "pushfx_clock_offset_seconds", Help: "By how much the clock of Redis is ahead of this host's.",
	}, func() float64 { return offset().Seconds() })
}
