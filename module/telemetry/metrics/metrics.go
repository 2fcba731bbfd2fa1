// Package metrics provides the module's metrics for Prometheus; except [DeliveryConfig], its
// API may change at any time.
package metrics

import (
	"context"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/pushfx/pushfx/module/delivery"
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

	named map[string]string // labels of gateways, by delivery.GatewayName

	always, ofUnread, ofDelivery []prometheus.Collector
	counters                     map[observe.Event]counter

	requests, operations, durability, lag *prometheus.HistogramVec
	handedOver, posts, ages               *prometheus.HistogramVec
	postsEnded                            *prometheus.CounterVec

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

var (
	lags      = slices.Concat([]float64{.0001}, buckets, []float64{60, 600})
	postTimes = slices.Concat(buckets, []float64{30, 60})
	ages      = []float64{.001, .005, .01, .05, .1, .5, 1, 5, 10, 30, 60, 600, 3600, 24 * 3600} // from an idle host to the maximum age
)

// counter counts an event.
type counter struct {
	vec   *prometheus.CounterVec
	name  string   // value of the last label, if it is the event
	begun []string // values of the first label, if it is what the event is counted with
}

func (c counter) with(label string) prometheus.Counter {
	var values []string
	if c.begun != nil {
		values = append(values, label)
	}
	if c.name != "" {
		values = append(values, c.name)
	}
	return c.vec.WithLabelValues(values...)
}

// New returns metrics with zero values: the increase of a series that begins with its first
// event would miss this event.
func New(cfg DeliveryConfig) *Metrics {
	m := &Metrics{Observer: observe.None, named: cfg.labels()}
	histogram := func(of *[]prometheus.Collector, name, help string, buckets []float64, labels ...string) *prometheus.HistogramVec {
		h := prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "pushfx_" + name, Help: help, Buckets: buckets}, labels)
		if *of = append(*of, h); len(labels) == 0 {
			h.WithLabelValues()
		}
		return h
	}
	count := func(of *[]prometheus.Collector, name, help string, labels ...string) *prometheus.CounterVec {
		c := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "pushfx_" + name, Help: help}, labels)
		*of = append(*of, c)
		return c
	}
	m.requests = histogram(&m.always, "request_duration_seconds",
		"Duration of a request, from when it reached the module.", buckets, routeLabel, methodLabel, statusLabel)
	m.operations = histogram(&m.always, "store_operation_duration_seconds",
		"Duration of an operation of a Redis store, with retries.", buckets, storeLabel, operationLabel, outcomeLabel)
	m.durability = histogram(&m.always, "durability_wait_seconds",
		"Duration of a change with its wait for replicas or disk.", buckets, storeLabel, outcomeLabel)
	m.lag = histogram(&m.always, "change_lag_seconds",
		"Time from a change of push rules, on any host, until this host called a listener or woke the user's syncs.", lags)
	m.handedOver = histogram(&m.ofDelivery, "delivery_handover_duration_seconds", "Time to hand an event over.", buckets, outcomeLabel)
	m.posts = histogram(&m.ofDelivery, "delivery_post_duration_seconds", "Time of a request to a push gateway.", postTimes, gatewayLabel)
	m.ages = histogram(&m.ofDelivery, "delivery_age_seconds", "Time from the handover of a notification until a gateway accepted it.", ages)
	m.postsEnded = count(&m.ofDelivery, "delivery_posts_total", "Requests to push gateways that have ended.", gatewayLabel, outcomeLabel)

	stores := []string{observe.PushRules, observe.Pushers, observe.Pushkeys}
	writes := count(&m.always, "store_write_events_total",
		"Repeated writes: lost_race, another write came first; stale_cache, the cached value was not current; unknown_outcome, the reply got lost.",
		storeLabel, eventLabel)
	sets := count(&m.always, "rule_sets_total", "Rule sets created with the defaults, imported, or repaired.", eventLabel)
	unread := count(&m.ofUnread, "unread_events_total",
		"Operations appended to lists of unread notifications, lists compacted, appends to lists of more than 64 operations (long), "+
			"tries to read or change a list that cannot be read (unreadable), and compacted lists without place for all (shortened).", eventLabel)
	audience := count(&m.ofDelivery, "rule_cache_users_total",
		"Users for whom an event was decided, with rules from memory (hit) or from the store (miss).", outcomeLabel)
	m.counters = map[observe.Event]counter{
		observe.LostRace:       {writes, "lost_race", stores},
		observe.UnknownOutcome: {writes, "unknown_outcome", stores},
		observe.StaleCache:     {writes, "stale_cache", stores},
		observe.WholeRead: {count(&m.always, "store_whole_reads_total",
			"Reads that transferred the value, since it was not cached or had changed.", storeLabel), "", stores},
		observe.RuleSetCreated:   {sets, "created", nil},
		observe.RuleSetImported:  {sets, "imported", nil},
		observe.RuleSetRepaired:  {sets, "repaired", nil},
		observe.UnreadAppended:   {unread, "appended", nil},
		observe.UnreadCompacted:  {unread, "compacted", nil},
		observe.UnreadLong:       {unread, "long", nil},
		observe.UnreadUnreadable: {unread, "unreadable", nil},
		observe.UnreadShortened:  {unread, "shortened", nil},
		observe.RulesKept:        {audience, "hit", nil},
		observe.RulesRead:        {audience, "miss", nil},
		observe.NotificationDropped: {count(&m.ofDelivery, "delivery_dropped_total",
			"Notifications that are not sent.", reasonLabel), "", texts(delivery.DropReasons())},
		observe.NotificationLate: {count(&m.ofDelivery, "delivery_late_total",
			"Notifications that a gateway accepted more than 10 s after Notify, by cause.", causeLabel), "", texts(delivery.LateCauses())},
		observe.NotificationUnconfirmed: {count(&m.ofDelivery, "delivery_unconfirmed_total",
			"Notifications that were stored and sent, but not confirmed by replicas or a disk in time."), "", nil},
		observe.HandoverFailed: {count(&m.ofDelivery, "delivery_handover_failures_total",
			"Failed calls of Notify, by reason.", reasonLabel), "", texts(delivery.FailReasons())},
		observe.DeliveryFailed: {count(&m.ofDelivery, "delivery_failures_total",
			"Failures of background work, such as a look for due pushers, by reason.", reasonLabel), "", texts(delivery.FailReasons())},
	}
	m.begin(stores)
	return m
}

func texts[T ~string](all []T) (texts []string) {
	for _, one := range all {
		texts = append(texts, string(one))
	}
	return texts
}

// begin creates the series that alerts and panels need before the first event.
func (m *Metrics) begin(stores []string) {
	for _, store := range stores {
		for _, verb := range []string{"load", "load_many", "versions", "update", "remove"} {
			m.operations.WithLabelValues(store, verb, outcomes[unreadable])
		}
	}
	for _, c := range m.counters {
		for _, label := range append(c.begun, "")[:max(1, len(c.begun))] {
			c.with(label)
		}
	}
	for _, outcome := range []string{handedOver, notHandedOver} {
		m.handedOver.WithLabelValues(outcome)
	}
	for _, gateway := range slices.Concat(slices.Collect(maps.Values(m.named)), delivery.Labels()) {
		for _, outcome := range delivery.PostOutcomes() {
			m.postsEnded.WithLabelValues(gateway, string(outcome))
		}
	}
}

// Unread returns the collectors of a host with unread counts.
func (m *Metrics) Unread() []prometheus.Collector { return m.ofUnread }

// Collectors returns the collectors of every host.
func (m *Metrics) Collectors() []prometheus.Collector { return m.always }

// Begin implements [observe.Observer].
func (m *Metrics) Begin(ctx context.Context, op *observe.Operation) (context.Context, func(observe.Outcome)) {
	start := time.Now()
	return ctx, func(o observe.Outcome) {
		if op.Kind == observe.Call {
			m.called(op, o, time.Since(start))
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
	if c, known := m.counters[event]; known {
		c.with(label).Add(float64(n))
	}
}

// Took implements [observe.Observer]. Clocks differ, so an age may be below 0.
func (m *Metrics) Took(what observe.Span, label string, took time.Duration, reached bool) {
	switch what {
	case observe.ChangeLag:
		m.lag.WithLabelValues().Observe(max(0, took.Seconds()))
	case observe.DeliveryAge:
		m.ages.WithLabelValues().Observe(max(0, took.Seconds()))
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
func Feed(stats func() feed.Stats) (all []prometheus.Collector) {
	for _, c := range []struct {
		name, help string
		value      func(feed.Stats) int64
	}{
		{"changes_received_total", "Changes of push rules that the watch of the store reported, including those made here.",
			func(s feed.Stats) int64 { return s.Received }},
		{"changes_notified_total", "Calls of change listeners, and changes that woke syncs.", func(s feed.Stats) int64 { return s.Notified }},
		{"changes_dropped_total", "Changes dropped because too many waited for a listener; the next recheck notifies it.",
			func(s feed.Stats) int64 { return s.Dropped }},
		{"users_rechecked_total", "Comparisons of a user's version with the store, which find missed changes.",
			func(s feed.Stats) int64 { return s.Rechecked }},
		{"changes_missed_total", "Changes that the watch missed and a recheck found.", func(s feed.Stats) int64 { return s.Missed }},
		{"listener_panics_total", "Change listeners that panicked.", func(s feed.Stats) int64 { return s.Panics }},
	} {
		all = append(all, prometheus.NewCounterFunc(prometheus.CounterOpts{Name: "pushfx_" + c.name, Help: c.help},
			func() float64 { return float64(c.value(stats())) }))
	}
	return append(all,
		gauge("changes_waiting", "Users whose change waits for a listener.", func() float64 { return float64(stats().Waiting) }),
		gauge("watching", "1 while this host watches the store for changes, else 0.", func() float64 { return oneIf(stats().Watching) }))
}

func gauge(name, help string, value func() float64) prometheus.Collector {
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "pushfx_" + name, Help: help}, value)
}

func oneIf(is bool) float64 {
	if is {
		return 1
	}
	return 0
}

// NewEvicting returns a collector of the number of Redis masters that may evict keys.
func NewEvicting(masters func() int) prometheus.Collector {
	return gauge("evicting_masters", "Redis masters that evict keys when their memory is full, which loses users' push rules.",
		func() float64 { return float64(masters()) })
}

// NewClockOffset returns a collector of how far the clock of Redis is ahead of the
// host's.
func NewClockOffset(offset func() time.Duration) prometheus.Collector {
	return gauge("clock_offset_seconds", "By how much the clock of Redis is ahead of this host's.", func() float64 { return offset().Seconds() })
}

// NewSilent returns a collector of which Redis nodes are silent, by address.
func NewSilent(nodes func() map[string]bool) prometheus.Collector {
	return labelled{prometheus.NewDesc("pushfx_redis_silent",
		"1 while a master of the cluster does not reply, so that calls for many users leave out its users.", []string{"node"}, nil), func(add func(string, float64)) {
		for node, isSilent := range nodes() {
			add(node, oneIf(isSilent))
		}
	}}
}

// labelled collects a gauge for each value of a label.
type labelled struct {
	desc *prometheus.Desc
	each func(add func(label string, value float64))
}

func (l labelled) Describe(to chan<- *prometheus.Desc) { to <- l.desc }

func (l labelled) Collect(to chan<- prometheus.Metric) {
	l.each(func(label string, value float64) {
		to <- prometheus.MustNewConstMetric(l.desc, prometheus.GaugeValue, value, label)
	})
}
