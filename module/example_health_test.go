package module_test

import (
	"net/http"

	"github.com/pushfx/pushfx/module"
)

// The host's readiness probe.
func ExampleHealth() {
	var health module.Health // Push.Health of package pushfx, or out of the fx container
	http.HandleFunc("/ready", probes{health}.ready)
}

type probes struct{ health module.Health }

func (p probes) ready(w http.ResponseWriter, r *http.Request) {
	if err := p.health.Healthy(r.Context()); err != nil {
		http.Error(w, "not ready", http.StatusServiceUnavailable)
	}
}
