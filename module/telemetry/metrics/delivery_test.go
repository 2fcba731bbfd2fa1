package metrics_test

import (
	"errors"
	"maps"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/delivery"
	"github.com/pushfx/pushfx/module/fault"
	"github.com/pushfx/pushfx/module/observe"
	"github.com/pushfx/pushfx/module/pusher"
	"github.com/pushfx/pushfx/module/telemetry/metrics"
)

// The series exist before the first failure, since Prometheus sees no increase in a series
// that begins with 1.
func TestHandoversAreCountedFromZero(t *testing.T) {
	t.Parallel()
	m, registry := metrics.New(metrics.DeliveryConfig{}), prometheus.NewRegistry()
	for _, c := range m.Delivery(func() delivery.Stats { return delivery.Stats{} }) {
		registry.MustRegister(c)
	}
	want := func(wanted map[string]uint64) {
		t.Helper()
		families, err := registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		got := map[string]uint64{}
		for _, family := range families {
			if family.GetName() == "pushfx_delivery_handover_duration_seconds" {
				for _, series := range family.GetMetric() {
					got[series.GetLabel()[0].GetValue()] = series.GetHistogram().GetSampleCount()
				}
			}
		}
		if !maps.Equal(got, wanted) {
			t.Errorf("got %v, want %v", got, wanted)
		}
	}
	want(map[string]uint64{"ok": 0, "failed": 0})
	notify := &observe.Operation{Kind: observe.Call, Name: observe.Delivery, Verb: "Notify"}
	for _, err := range []error{nil, nil, module.Unavailable(errors.New("down")), fault.New(fault.InvalidParam, "no event_id")} {
		_, end := m.Begin(t.Context(), notify)
		end(observe.Outcome{Err: err})
	}
	want(map[string]uint64{"ok": 2, "failed": 1})
}

// A gateway has its own label in whatever form it is named, and no other gateway has one.
func TestNamedGatewaysHaveALabel(t *testing.T) {
	t.Parallel()
	cfg := metrics.DeliveryConfig{NamedGateways: []string{"https://Push.example.org", "http://[2001:db8::1]:8080"}}
	if err := cfg.Validate(); err != nil {
		t.Fatal(err)
	}
	m, registry := metrics.New(cfg), prometheus.NewRegistry()
	stats := delivery.Stats{WaitingAt: map[string]int{"https://push.example.org:443": 3, "https://other.example.org:443": 5, "mail://relay": 9}, Worst: 5, NotSent: map[pusher.Kind]int{"com.example.sms": 7}}
	for _, c := range m.Delivery(func() delivery.Stats { return stats }) {
		registry.MustRegister(c)
	}
	for _, gateway := range []string{"https://push.example.org:443", "http://[2001:db8::1]:8080", "https://other.example.org:443", "https://other.example.org:444", "mail://relay", "mail://relay"} {
		_, end := m.BeginPost(t.Context(), gateway, "")
		end("delivered", 200)
	}
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]float64{}
	for _, family := range families {
		for _, series := range family.GetMetric() {
			switch family.GetName() {
			case "pushfx_delivery_posts_total":
				got["posts "+series.GetLabel()[0].GetValue()] += series.GetCounter().GetValue()
			case "pushfx_delivery_gateway_waiting":
				got["waiting "+series.GetLabel()[0].GetValue()] = series.GetGauge().GetValue()
			case "pushfx_delivery_not_sent_waiting":
				got["not sent "+series.GetLabel()[0].GetValue()] = series.GetGauge().GetValue()
			case "pushfx_delivery_worst_gateway_waiting":
				got["worst"] = series.GetGauge().GetValue()
			}
		}
	}
	want := map[string]float64{
		"posts https://Push.example.org": 1, "posts http://[2001:db8::1]:8080": 1, "posts other": 2, "posts mail": 2, "posts webpush": 0, "not sent com.example.sms": 7,
		"waiting https://Push.example.org": 3, "waiting http://[2001:db8::1]:8080": 0, "worst": 5,
	}
	if !maps.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	for _, name := range []string{"other", "push.example.org", ""} {
		if (metrics.DeliveryConfig{NamedGateways: []string{name}}).Validate() == nil {
			t.Errorf("the name %q is accepted", name)
		}
	}
}
