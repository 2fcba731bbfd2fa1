package hosttest

import (
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/redis/go-redis/v9"
	"go.uber.org/fx"

	"github.com/pushfx/pushfx/module/fault"
)

// Scraped holds metrics by name and labels, such as "pushfx_x_total{event=a,store=b}": a counter's or gauge's
// value, or a histogram's count.
type Scraped map[string]float64

// StartMeasured starts a host with metrics.
func StartMeasured(t *testing.T, client redis.UniversalClient, options ...fx.Option) (*Host, *prometheus.Registry) {
	t.Helper()
	registry := prometheus.NewRegistry()
	options = append(options, fx.Supply(fx.Annotate(registry, fx.As(new(prometheus.Registerer)))))
	return StartHost(t, client, options...), registry
}

// Scrape returns the metrics.
func Scrape(t *testing.T, registry *prometheus.Registry) Scraped {
	t.Helper()
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	all := Scraped{}
	for _, family := range families {
		for _, m := range family.GetMetric() {
			all[family.GetName()+labels(m)] = value(m)
		}
	}
	return all
}

func labels(m *dto.Metric) string {
	var parts []string
	for _, pair := range m.GetLabel() {
		parts = append(parts, pair.GetName()+"="+pair.GetValue())
	}
	return "{" + strings.Join(parts, ",") + "}"
}

func value(m *dto.Metric) float64 {
	if h := m.GetHistogram(); h != nil {
		return float64(h.GetSampleCount())
	}
	return m.GetCounter().GetValue() + m.GetGauge().GetValue()
}

// Want checks some of the metrics.
func (s Scraped) Want(t *testing.T, wanted Scraped) {
	t.Helper()
	for name, want := range wanted {
		if got, found := s[name]; got != want || !found {
			t.Errorf("%s is %v (found: %v), want %v", name, got, found, want)
		}
	}
}

// Eventually waits until it is so.
func Eventually(t *testing.T, what string, isSo func() bool) {
	t.Helper()
	for start := time.Now(); !isSo(); time.Sleep(10 * time.Millisecond) {
		if time.Since(start) > Never {
			t.Fatalf("not so after %v: %s", Never, what)
		}
	}
}

// Persist repeats do while storage is unavailable, as it may be on a busy machine.
func Persist(do func() error) (err error) {
	for start := time.Now(); time.Since(start) < time.Minute; {
		if err = do(); fault.KindOf(err) != fault.Unavailable {
			break
		}
	}
	return err
}
