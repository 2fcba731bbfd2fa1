package main

import (
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/pushfx/pushfx/module/redistest"
)

func TestReadinessAndMetrics(t *testing.T) {
	t.Parallel()
	redistest.Require(t)
	server := redistest.Single(t)
	d := startDemo(t, "-redis-mode", "standalone", "-redis", server.Addr(), "-operators", "127.0.0.1:0")
	o := d.forOperators()
	o.expect("GET", "/healthz", "", "", 200, "ok")
	o.expect("GET", "/readyz", "", "", 200, "ok")
	d.expect("GET", rulesPath, "demo-alice", "", 200, "")
	for _, path := range []string{"/metrics", "/readyz"} { // are not for clients
		d.expect("GET", path, "demo-alice", "", 404, `{"errcode":"M_UNRECOGNIZED","error":"Unrecognized request."}`)
	}
	metrics := o.do("GET", "/metrics", "", "").body
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
	o.expect("GET", "/healthz", "", "", 200, "ok")
	o.expect("GET", "/readyz", "", "", 503, "Redis cannot be used")
	server.Start()
	for end := time.Now().Add(patience); o.do("GET", "/readyz", "", "").status == 503 && time.Now().Before(end); {
		time.Sleep(10 * time.Millisecond) // a check takes a second at most, which a busy machine may exceed
	}
	o.expect("GET", "/readyz", "", "", 200, "ok")
	o.expect("GET", "/nowhere", "", "", 404, `{"errcode":"M_UNRECOGNIZED","error":"Unrecognized request."}`)
}

func (d *demo) forOperators() *demo {
	d.t.Helper()
	found := regexp.MustCompile(`For operators: (http://[^/]+)/metrics`).FindStringSubmatch(strings.Join(d.greeting, "\n"))
	if found == nil {
		d.t.Fatalf("the greeting does not say where: %q", d.greeting)
	}
	o := *d
	o.url = found[1]
	return &o
}
