package metrics_test

import (
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/pushfx/pushfx/module/observe"
	"github.com/pushfx/pushfx/module/telemetry/metrics"
)

func registered(t *testing.T, r *prometheus.Registry) int {
	t.Helper()
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	return len(families)
}

func newSet(r prometheus.Registerer) *metrics.Set {
	s := metrics.NewSet(r, metrics.DeliveryConfig{})
	s.Add(metrics.NewClockOffset(func() time.Duration { return time.Second }), metrics.NewEvicting(func() int { return 0 }))
	return s
}

func TestASetIsRegisteredAsAWholeAndTakenOutAgain(t *testing.T) {
	t.Parallel()
	registry := prometheus.NewRegistry()
	set := newSet(registry)
	if err := set.Register(); err != nil {
		t.Fatal(err)
	}
	set.Observer().Took(observe.ChangeLag, "", time.Second, true)
	if n := registered(t, registry); n < 3 {
		t.Errorf("%d families are registered", n)
	}
	set.Unregister()
	if n := registered(t, registry); n != 0 {
		t.Errorf("%d families are left", n)
	}
}

func TestAPartlyRegisteredSetIsNotRegistered(t *testing.T) {
	t.Parallel()
	registry := prometheus.NewRegistry()
	foreign := metrics.NewEvicting(func() int { return 7 })
	registry.MustRegister(foreign)
	set := newSet(registry)
	if err := set.Register(); err == nil || !strings.HasPrefix(err.Error(), "pushfx: metrics: ") {
		t.Errorf("got error %v", err)
	}
	if n := registered(t, registry); n != 1 {
		t.Errorf("%d families are registered, want the foreign one", n)
	}
	set.Unregister() // a host may do so, and start in spite of the error
	if !registry.Unregister(foreign) {
		t.Error("the foreign one was taken out")
	}
}

func TestAHostWithoutARegistererHasNoMetrics(t *testing.T) {
	t.Parallel()
	set := newSet(nil)
	if set.Observer() != observe.None {
		t.Error("something is counted")
	}
	if err := set.Register(); err != nil {
		t.Error(err)
	}
	set.Unregister()
}
