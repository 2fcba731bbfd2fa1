package main

import (
	"strings"
	"testing"

	"github.com/pushfx/pushfx/integration/redistest"
)

func TestOperatorsSeeWhetherTheHostIsReadyAndWhatItDoes(t *testing.T) {
	t.Parallel()
	redistest.Require(t)
	server := redistest.Single(t)
	d := startDemo(t, "-redis-mode", "standalone", "-redis", server.Addr())
	d.expect("GET", "/healthz", "", "", 200, "ok")
	d.expect("GET", "/readyz", "", "", 200, "ok")
	d.expect("GET", rulesPath, "demo-alice", "", 200, "")
	metrics := d.do("GET", "/metrics", "", "").body
	for _, want := range []string{
		`pushfx_request_duration_seconds_count{method="GET",route="/_matrix/client/v3/pushrules/",status="2xx"} 1`,
		"pushfx_watching 1", "go_goroutines ", "process_resident_memory_bytes ", "redis_pool_connections ",
	} {
		if !strings.Contains(metrics, want) {
			t.Errorf("no %q among the metrics", want)
		}
	}
	server.Stop()
	d.expect("GET", "/healthz", "", "", 200, "ok")
	d.expect("GET", "/readyz", "", "", 503, "Redis cannot be used")
	server.Start()
	d.expect("GET", "/readyz", "", "", 200, "ok")
}
