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
	gatewayLabel = "gateway" // one of NamedGateways, or of delivery.Labels
	reasonLabel  = "reason"
	causeLabel   = "cause"
	stateLabel   = "state"
	kindLabel    = "kind"
)

// labels returns the labels of named gateways, by [delivery.GatewayName].
func (c DeliveryConfig) labels() map[string]string {
	labels := map[string]string{}
	for _, gateway := range c.NamedGateways {
		if name, ok := delivery.GatewayName(gateway); ok {
			labels[name] = gateway
		}
	}
	return labels
}

func (m *Metrics) gateway(name string) string {
	if label, found := m.named[name]; found {
		return label
	}
	return delivery.LabelOf(name)
}

// called counts a call of Notify with a valid event.
func (m *Metrics) called(op *observe.Operation, o observe.Outcome, took time.Duration) {
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
		gateway := m.gateway(gateway)
		m.postsEnded.WithLabelValues(gateway, outcome).Inc()
		m.posts.WithLabelValues(gateway).Observe(time.Since(start).Seconds())
	}
}

// Delivery returns the collectors of a host with delivery. Stats returns its current state.
func (m *Metrics) Delivery(stats func() delivery.Stats) []prometheus.Collector {
	all := slices.Clone(m.ofDelivery)
	for _, g := range []struct {
		name, help string
		value      func(delivery.Stats) float64
	}{
		{"in_flight", "Requests to push gateways in flight for less than two seconds.", func(s delivery.Stats) float64 { return float64(s.InFlight) }},
		{"slow", "Requests to push gateways in flight for longer.", func(s delivery.Stats) float64 { return float64(s.Slow) }},
		{"late_seconds", "How long the user that is due the longest has been due. It grows while this host cannot look.",
			func(s delivery.Stats) float64 { return s.Late.Seconds() }},
		{"waiting", "Notifications in the queue, counted for each pusher, due or not. One host shows the whole queue, the others 0.",
			func(s delivery.Stats) float64 { return float64(s.Waiting) }},
		{"oldest_seconds", "For how long notifications of three users have waited at a gateway. It grows while this host cannot read the queue.",
			func(s delivery.Stats) float64 { return s.Oldest.Seconds() }},
		{"worst_gateway_waiting", "Users for whom something waits at the push gateway with most, without mail.",
			func(s delivery.Stats) float64 { return float64(s.Worst) }},
		{"removals_stopped", "Apps at push gateways that reject so many pushkeys that no more pushers are removed.",
			func(s delivery.Stats) float64 { return float64(s.RemovalsStopped) }},
		{"cut_off", "1 while this host reaches no push gateway.", func(s delivery.Stats) float64 { return oneIf(s.CutOff) }},
	} {
		all = append(all, gauge("delivery_"+g.name, g.help, func() float64 { return g.value(stats()) }))
	}
	for _, l := range []struct {
		name, help, label string
		each              func(s delivery.Stats, add func(label string, value float64))
	}{
		{"gateway_waiting", "Users for whom something waits at a named gateway.", gatewayLabel, func(s delivery.Stats, add func(string, float64)) {
			for name, label := range m.named {
				add(label, float64(s.WaitingAt[name]))
			}
		}},
		{"not_sent_waiting", "Users for whom something of a kind of pusher waits that this host does not send.", kindLabel,
			func(s delivery.Stats, add func(string, float64)) {
				for kind, users := range s.NotSent {
					add(string(kind), float64(users))
				}
			}},
		{"gateways", "Push gateways that this host knows, for each app, by how it treats them.", stateLabel, func(s delivery.Stats, add func(string, float64)) {
			for state, n := range s.Gateways {
				add(delivery.GateState(state).String(), float64(n))
			}
		}},
	} {
		desc := prometheus.NewDesc("pushfx_delivery_"+l.name, l.help, []string{l.label}, nil)
		all = append(all, labelled{desc, func(add func(string, float64)) { l.each(stats(), add) }})
	}
	return all
}
