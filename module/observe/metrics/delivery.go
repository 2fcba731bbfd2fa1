package metrics

import (
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/pushfx/pushfx/module/delivery"
)

var (
	_ delivery.Observer    = (*Delivery)(nil)
	_ prometheus.Collector = (*Delivery)(nil)
)

// DeliveryConfig configures the metrics of delivery.
type DeliveryConfig struct {
	// NamedGateways are the push gateways that metrics tell apart, each as scheme,
	// host and port, "https://push.example.org" for example. All others are
	// "other": users choose them. At most 100; default none.
	NamedGateways []string
}

const mostNamedGateways = 100

// Validate returns an error if a field is not as its comment says.
func (c DeliveryConfig) Validate() error {
	if len(c.NamedGateways) > mostNamedGateways || slices.Contains(c.NamedGateways, otherGateways) {
		return errors.New(`NamedGateways are more than 100, or one is "other"`)
	}
	return nil
}

// otherGateways is the label of those without a name.
const otherGateways = "other"

// The labels.
const (
	gatewayLabel = "gateway" // one of NamedGateways, or other
	reasonLabel  = "reason"
	stateLabel   = "state"
)

// ages are from what an idle host takes to the longest that is kept.
var ages = []float64{.001, .005, .01, .05, .1, .5, 1, 5, 10, 30, 60, 600, 3600, 24 * 3600}

// Delivery is the metrics of delivery: a [delivery.Observer] that counts, and a
// [prometheus.Collector] of the counts. It is safe for concurrent use.
type Delivery struct {
	named map[string]bool

	handedOver *prometheus.HistogramVec
	posts      *prometheus.CounterVec
	durations  *prometheus.HistogramVec
	ages       prometheus.Histogram
	dropped    *prometheus.CounterVec
	audience   *prometheus.CounterVec
	stats      func() delivery.Stats // nil until it is known
	shards     int
}

// NewDelivery returns metrics that are all zero.
func NewDelivery(cfg DeliveryConfig) *Delivery {
	m := &Delivery{
		named: map[string]bool{},
		handedOver: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "pushfx_delivery_handover_duration_seconds", Help: "Time to hand an event over.", Buckets: buckets,
		}, []string{outcomeLabel}),
		posts: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "pushfx_delivery_posts_total", Help: "Requests to push gateways that have ended.",
		}, []string{gatewayLabel, outcomeLabel}),
		durations: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "pushfx_delivery_post_duration_seconds", Help: "Time of a request to a push gateway.", Buckets: append(slices.Clone(buckets), 30, 60),
		}, []string{gatewayLabel}),
		ages: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "pushfx_delivery_age_seconds", Help: "Time from when a notification was handed over until a gateway took it.", Buckets: ages,
		}),
		dropped: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "pushfx_delivery_dropped_total", Help: "Notifications that are not sent.",
		}, []string{reasonLabel}),
		audience: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "pushfx_audience_users_total", Help: "Users for whom an event was decided: a hit had the rules in memory, a miss had them read.",
		}, []string{outcomeLabel}),
	}
	for _, gateway := range cfg.NamedGateways {
		m.named[strings.ToLower(gateway)] = true
	}
	for _, reason := range delivery.DropReasons() {
		m.dropped.WithLabelValues(string(reason))
	}
	for gateway := range m.named {
		m.begin(gateway)
	}
	m.begin(otherGateways)
	return m
}

func (m *Delivery) begin(gateway string) {
	for _, outcome := range delivery.PostOutcomes() {
		m.posts.WithLabelValues(gateway, string(outcome))
	}
}

// Show has the metrics tell what a host does right now, which stats returns at any
// time, and of how many shards there are. It is called before they are collected.
func (m *Delivery) Show(stats func() delivery.Stats, shards int) { m.stats, m.shards = stats, shards }

func (m *Delivery) gateway(name string) string {
	if m.named[name] {
		return name
	}
	return otherGateways
}

// HandedOver implements [delivery.Observer].
func (m *Delivery) HandedOver(took time.Duration, ok bool) {
	outcome := "ok"
	if !ok {
		outcome = "failed"
	}
	m.handedOver.WithLabelValues(outcome).Observe(took.Seconds())
}

// Posted implements [delivery.Observer].
func (m *Delivery) Posted(gateway string, outcome delivery.PostOutcome, took time.Duration) {
	gateway = m.gateway(gateway)
	m.posts.WithLabelValues(gateway, string(outcome)).Inc()
	m.durations.WithLabelValues(gateway).Observe(took.Seconds())
}

// Delivered implements [delivery.Observer].
func (m *Delivery) Delivered(age time.Duration) { m.ages.Observe(max(0, age.Seconds())) }

// Dropped implements [delivery.Observer].
func (m *Delivery) Dropped(reason delivery.DropReason, notifications int) {
	m.dropped.WithLabelValues(string(reason)).Add(float64(notifications))
}

// Remembered implements [delivery.Observer].
func (m *Delivery) Remembered(hits, misses int) {
	m.audience.WithLabelValues("hit").Add(float64(hits))
	m.audience.WithLabelValues("miss").Add(float64(misses))
}

func (m *Delivery) collectors() []prometheus.Collector {
	return []prometheus.Collector{m.handedOver, m.posts, m.durations, m.ages, m.dropped, m.audience}
}

// statMetric is a metric of [delivery.Stats].
type statMetric struct {
	desc  *prometheus.Desc
	kind  prometheus.ValueType
	value func(delivery.Stats) float64
}

func (m *Delivery) statMetrics() []statMetric {
	one := func(kind prometheus.ValueType, name, help string, value func(delivery.Stats) float64) statMetric {
		return statMetric{prometheus.NewDesc("pushfx_delivery_"+name, help, nil, nil), kind, value}
	}
	gauge := func(name, help string, value func(delivery.Stats) int) statMetric {
		return one(prometheus.GaugeValue, name, help, func(s delivery.Stats) float64 { return float64(value(s)) })
	}
	return []statMetric{
		gauge("in_flight", "Requests to push gateways that are under way, but for slow ones.", func(s delivery.Stats) int { return s.InFlight }),
		gauge("slow", "Requests to push gateways that have been under way for a second, or are to one that hangs.",
			func(s delivery.Stats) int { return s.Slow }),
		gauge("shards", "Shards that there are, on all hosts together.", func(delivery.Stats) int { return m.shards }),
		gauge("shards_owned", "Shards that this host owns.", func(s delivery.Stats) int { return s.ShardsOwned }),
		gauge("open_entries", "Events that this host has read from its shards and not finished.", func(s delivery.Stats) int { return s.OpenEntries }),
		one(prometheus.GaugeValue, "oldest_seconds", "Time since the oldest of them was handed over.",
			func(s delivery.Stats) float64 { return s.Oldest.Seconds() }),
		gauge("held_pushers", "Pushers of this host's shards that are in trouble.", func(s delivery.Stats) int { return s.HeldPushers }),
		gauge("held_bytes", "What is kept of them.", func(s delivery.Stats) int { return s.HeldBytes }),
		gauge("rejections_braked", "Push gateways that reject so many pushkeys that none is removed.", func(s delivery.Stats) int { return s.Braked }),
		one(prometheus.CounterValue, "takeovers_total", "Shards that this host has taken.",
			func(s delivery.Stats) float64 { return float64(s.Takeovers) }),
	}
}

func gatewaysDesc() *prometheus.Desc {
	return prometheus.NewDesc("pushfx_delivery_gateways", "Push gateways that this host knows, by how it treats them.", []string{stateLabel}, nil)
}

// Describe implements [prometheus.Collector].
func (m *Delivery) Describe(out chan<- *prometheus.Desc) {
	for _, c := range m.collectors() {
		c.Describe(out)
	}
	for _, s := range m.statMetrics() {
		out <- s.desc
	}
	out <- gatewaysDesc()
}

// Collect implements [prometheus.Collector].
func (m *Delivery) Collect(out chan<- prometheus.Metric) {
	for _, c := range m.collectors() {
		c.Collect(out)
	}
	var stats delivery.Stats
	if m.stats != nil {
		stats = m.stats()
	}
	for _, s := range m.statMetrics() {
		out <- prometheus.MustNewConstMetric(s.desc, s.kind, s.value(stats))
	}
	for state, gateways := range stats.Gateways {
		out <- prometheus.MustNewConstMetric(gatewaysDesc(), prometheus.GaugeValue, float64(gateways), delivery.GateState(state).String())
	}
}
