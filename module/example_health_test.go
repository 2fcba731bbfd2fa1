package module_test

import (
	"net/http"

	"github.com/pushfx/pushfx/module"
)

// The host's readiness probe.
func ExampleHealth() {
	var push module.Health // Push.Health of package pushfx, or out of the fx container
	http.HandleFunc("/ready", probes{push}.ready)
}

type probes struct{ push module.Health }

func (p probes) ready(w http.ResponseWriter, r *http.Request) {
	if err := p.push.Healthy(r.Context()); err != nil {
		http.Error(w, "not ready", http.StatusServiceUnavailable)
	}
}
