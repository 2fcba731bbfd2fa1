package metrics

import (
	"fmt"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/pushfx/pushfx/module/delivery"
	"github.com/pushfx/pushfx/module/observe"
)

// Set is all metrics of one host, registered together. It is not safe for concurrent use.
type Set struct {
	registerer prometheus.Registerer // nil for a host without metrics
	counts     *Metrics
	collectors []prometheus.Collector
	registered int // how many of the collectors are registered
}

// NewSet returns a set with [Metrics]. With a nil registerer nothing is counted.
func NewSet(r prometheus.Registerer, cfg DeliveryConfig) *Set {
	counts := New(cfg)
	return &Set{registerer: r, counts: counts, collectors: counts.Collectors()}
}

// Observer returns the observer that counts.
func (s *Set) Observer() observe.Observer {
	if s.registerer == nil {
		return observe.None
	}
	return s.counts
}

// Add adds collectors before they are registered.
func (s *Set) Add(collectors ...prometheus.Collector) {
	s.collectors = append(s.collectors, collectors...)
}

// AddDelivery adds the metrics of a host with delivery; see [Metrics.Delivery].
func (s *Set) AddDelivery(stats func() delivery.Stats) {
	s.Add(s.counts.Delivery(stats)...)
}

// AddUnread adds the metrics of a host with unread counts.
func (s *Set) AddUnread() { s.Add(s.counts.Unread()...) }

// Register registers all metrics, or none after an error.
func (s *Set) Register() error {
	if s.registerer == nil {
		return nil
	}
	for _, collector := range s.collectors {
		if err := s.registerer.Register(collector); err != nil {
			s.Unregister()
			return fmt.Errorf("pushfx: metrics: %w", err)
		}
		s.registered++
	}
	return nil
}

// Unregister reverts [Set.Register].
func (s *Set) Unregister() {
	for _, collector := range s.collectors[:s.registered] {
		s.registerer.Unregister(collector)
	}
	s.registered = 0
}
