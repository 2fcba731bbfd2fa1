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
	"github.com/pushfx/pushfx/module/observe/metrics"
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
