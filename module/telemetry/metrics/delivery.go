package metrics

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/pushfx/pushfx/module/delivery"
	"github.com/pushfx/pushfx/module/fault"
	"github.com/pushfx/pushfx/module/observe"
)

// DeliveryConfig configures the metrics of delivery.
type DeliveryConfig struct {
	// NamedGateways are the push gateways with their own label, each as scheme, host and
	// port, for example "https://push.example.org" or "webpush://fcm.googleapis.com". Others have the
	// label "webpush", "mail", or "other": users choose them. At most 100; default none.
	NamedGateways []string
}

const maxNamedGateways = 100

// Validate checks the names.
func (c DeliveryConfig) Validate() error {
	isInvalid := func(of string) bool {
		_, ok := delivery.GatewayName(of)
		return !ok
	}
	if len(c.NamedGateways) > maxNamedGateways || slices.ContainsFunc(c.NamedGateways, isInvalid) {
		return errors.New(`NamedGateways are more than 100, or one has no scheme and host, like "https://push.example.org"`)
	}
	return nil
}

// The outcomes of Notify.
const (
	handedOver    = "ok"
	notHandedOver = "failed"
)

const (
	gatewayLabel = "gateway" // one of NamedGateways, mail or other
	reasonLabel  = "reason"
	causeLabel   = "cause"
	stateLabel   = "state"
	kindLabel    = "kind"
)

// ages range from the age on an idle host to the maximum age.
var ages = []float64{.001, .005, .01, .05, .1, .5, 1, 5, 10, 30, 60, 600, 3600, 24 * 3600}

type forDelivery struct {
	named map[string]string // labels by delivery.GatewayName

	handedOver    *prometheus.HistogramVec
	notHandedOver *prometheus.CounterVec
	failures      *prometheus.CounterVec
	posts         *prometheus.CounterVec
	durations     *prometheus.HistogramVec
	ages          prometheus.Histogram
	dropped       *prometheus.CounterVec
	late          *prometheus.CounterVec
	unconfirmed   prometheus.Counter
	audience      *prometheus.CounterVec
}

func newForDelivery(cfg DeliveryConfig) *forDelivery {
	m := &forDelivery{
		named: map[string]string{},
		handedOver: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "pushfx_delivery_handover_duration_seconds", Help: "Time to hand an event over.", Buckets: buckets,
		}, []string{outcomeLabel}),
		notHandedOver: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "pushfx_delivery_handover_failures_total", Help: "Failed calls of Notify, by reason.",
		}, []string{reasonLabel}),
		failures: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "pushfx_delivery_failures_total", Help: "Failures of background work, such as to look for what is due, by reason.",
		}, []string{reasonLabel}),
		posts: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "pushfx_delivery_posts_total", Help: "Requests to push gateways that have ended.",
		}, []string{gatewayLabel, outcomeLabel}),
		durations: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "pushfx_delivery_post_duration_seconds", Help: "Time of a request to a push gateway.", Buckets: append(slices.Clone(buckets), 30, 60),
		}, []string{gatewayLabel}),
		ages: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "pushfx_delivery_age_seconds", Help: "Time from the handover of a notification until a gateway accepted it.", Buckets: ages,
		}),
		dropped: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "pushfx_delivery_dropped_total", Help: "Notifications that are not sent.",
		}, []string{reasonLabel}),
		late: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "pushfx_delivery_late_total", Help: "Notifications that a gateway accepted more than 10 s after Notify, by cause.",
		}, []string{causeLabel}),
		unconfirmed: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "pushfx_delivery_unconfirmed_total", Help: "Notifications that were stored and sent, but not confirmed by replicas or a disk in time.",
		}),
		audience: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "pushfx_rule_cache_users_total", Help: "Users for whom an event was decided, with rules from memory (hit) or from the store (miss).",
		}, []string{outcomeLabel}),
	}
	for _, gateway := range cfg.NamedGateways {
		if name, ok := delivery.GatewayName(gateway); ok {
			m.named[name] = gateway
		}
	}
	for _, outcome := range []string{handedOver, notHandedOver} {
		m.handedOver.WithLabelValues(outcome)
	}
	for _, reason := range delivery.DropReasons() {
		m.dropped.WithLabelValues(string(reason))
	}
	for _, cause := range delivery.LateCauses() {
		m.late.WithLabelValues(string(cause))
	}
	for _, reason := range delivery.FailReasons() {
		m.notHandedOver.WithLabelValues(string(reason))
		m.failures.WithLabelValues(string(reason))
	}
	for _, label := range m.named {
		m.begin(label)
	}
	for _, label := range delivery.Labels() {
		m.begin(label)
	}
	return m
}

func (m *forDelivery) begin(gateway string) {
	for _, outcome := range delivery.PostOutcomes() {
		m.posts.WithLabelValues(gateway, string(outcome))
	}
}

func (m *forDelivery) gateway(name string) string {
	if label, found := m.named[name]; found {
		return label
	}
	return delivery.LabelOf(name)
}

// called counts a call of Notify with a valid event.
func (m *forDelivery) called(op *observe.Operation, o observe.Outcome, took time.Duration) {
	if op.Verb != "Notify" || fault.KindOf(o.Err) == fault.InvalidParam {
		return
	}
	outcome := handedOver
	if o.Err != nil {
		outcome = notHandedOver
	}
	m.handedOver.WithLabelValues(outcome).Observe(took.Seconds())
}

// BeginPost implements [observe.Observer].
func (m *Metrics) BeginPost(ctx context.Context, gateway, _ string) (context.Context, func(string, int)) {
	start := time.Now()
	return ctx, func(outcome string, _ int) {
		if outcome == "" {
			return
		}
		gateway := m.delivery.gateway(gateway)
		m.delivery.posts.WithLabelValues(gateway, outcome).Inc()
		m.delivery.durations.WithLabelValues(gateway).Observe(time.Since(start).Seconds())
	}
}

// Delivery returns the collectors of a host with delivery. Stats returns its current state.
func (m *Metrics) Delivery(stats func() delivery.Stats) []prometheus.Collector {
	d := m.delivery
	all := []prometheus.Collector{d.handedOver, d.notHandedOver, d.failures, d.posts, d.durations, d.ages, d.dropped, d.late, d.unconfirmed, d.audience}
	gauge := func(name, help string, value func(delivery.Stats) float64) {
		all = append(all, prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "pushfx_delivery_" + name, Help: help},
			func() float64 { return value(stats()) }))
	}
	gauge("in_flight", "Requests to push gateways in flight for less than two seconds.",
		func(s delivery.Stats) float64 { return float64(s.InFlight) })
	gauge("slow", "Requests to push gateways in flight for longer.",
		func(s delivery.Stats) float64 { return float64(s.Slow) })
	gauge("late_seconds", "How long the user that is due the longest has been due. It grows while this host cannot look.",
		func(s delivery.Stats) float64 { return s.Late.Seconds() })
	gauge("waiting", "Notifications in the queue, counted for each pusher, due or not. One host shows the whole queue, the others 0.",
		func(s delivery.Stats) float64 { return float64(s.Waiting) })
	gauge("oldest_seconds", "For how long notifications of three users have waited at a gateway. It grows while this host cannot read the queue.",
		func(s delivery.Stats) float64 { return s.Oldest.Seconds() })
	gauge("worst_gateway_waiting", "Users for whom something waits at the push gateway with most, without mail.",
		func(s delivery.Stats) float64 { return float64(s.Worst) })
	for name, label := range d.named {
		all = append(all, prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "pushfx_delivery_gateway_waiting", Help: "Users for whom something waits at a named gateway.",
			ConstLabels: prometheus.Labels{gatewayLabel: label},
		}, func() float64 { return float64(stats().WaitingAt[name]) }))
	}
	all = append(all, notSent{stats})
	gauge("removals_stopped", "Apps at push gateways that reject so many pushkeys that no more pushers are removed.",
		func(s delivery.Stats) float64 { return float64(s.RemovalsStopped) })
	gauge("cut_off", "1 while this host reaches no push gateway.", func(s delivery.Stats) float64 {
		if s.CutOff {
			return 1
		}
		return 0
	})
	for state := range (delivery.Stats{}).Gateways {
		all = append(all, prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "pushfx_delivery_gateways", Help: "Push gateways that this host knows, for each app, by how it treats them.",
			ConstLabels: prometheus.Labels{stateLabel: delivery.GateState(state).String()},
		}, func() float64 { return float64(stats().Gateways[state]) }))
	}
	return all
}

// notSent collects how much waits of each kind of pusher that the host does not send.
type notSent struct{ stats func() delivery.Stats }

var notSentWaiting = prometheus.NewDesc("pushfx_delivery_not_sent_waiting",
	"Users for whom something of a kind of pusher waits that this host does not send.", []string{kindLabel}, nil)

func (c notSent) Describe(to chan<- *prometheus.Desc) { to <- notSentWaiting }

func (c notSent) Collect(to chan<- prometheus.Metric) {
	for kind, users := range c.stats().NotSent {
		to <- prometheus.MustNewConstMetric(notSentWaiting, prometheus.GaugeValue, float64(users), string(kind))
	}
}
