package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/fx"
	"go.uber.org/zap"
	"go.yaml.in/yaml/v3"

	"github.com/pushfx/pushfx/integration/hosttest"
	"github.com/pushfx/pushfx/module/redistest"
)

const operationsFolder = "../operations"

func readFile(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// The image, and the hosts of compose.yaml, start with their flags.
func TestTheFlagsOfContainersStart(t *testing.T) {
	t.Parallel()
	redistest.Require(t)
	var flags []string
	if err := json.Unmarshal([]byte(regexp.MustCompile(`ENTRYPOINT (.*)`).FindStringSubmatch(readFile(t, "Dockerfile"))[1]), &flags); err != nil {
		t.Fatal(err)
	}
	startDemo(t, append(flags[1:], "-listen=127.0.0.1:0")...)
	var compose struct {
		Services map[string]struct{ Command []string }
	}
	if err := yaml.Unmarshal([]byte(readFile(t, filepath.Join(operationsFolder, "compose.yaml"))), &compose); err != nil {
		t.Fatal(err)
	}
	redis := redistest.Single(t).Addr()
	for _, host := range []string{"host1", "host2"} {
		d := startDemo(t, slices.Concat(flags[1:], compose.Services[host].Command, // of a flag's values the last counts
			[]string{"-listen=127.0.0.1:0", "-operators=127.0.0.1:0", "-redis=" + redis, "-data=" + hosttest.DataFile(t)})...)
		d.expect("GET", "/healthz", "", "", 200, "")
	}
}

// A counter with labels is exported from its first event on, so the test asks the registry and not /metrics: it refuses
// a metric with a name that it has.
func TestTheHostHasTheMetricsOfDashboardAndAlerts(t *testing.T) {
	t.Parallel()
	memory, err := startEmbedded()
	if err != nil {
		t.Fatal(err)
	}
	defer memory.Close()
	cfg, err := parseFlags([]string{"-redis-mode=standalone", "-redis=" + memory.Addr(), "-data=" + hosttest.DataFile(t)})
	if err != nil {
		t.Fatal(err)
	}
	cfg.module.DeliveryMetrics.NamedGateways = []string{"https://push.example.org"} // without these, one panel is empty
	var metrics *prometheus.Registry
	if err := fx.New(homeserver(cfg, hosttest.OpenData(t), zap.NewNop(), new(buffer)), fx.Populate(&metrics)).Err(); err != nil {
		t.Fatal(err)
	}
	part := regexp.MustCompile(`_(bucket|count|sum)$`)
	names := map[string]bool{}
	for _, file := range []string{"dashboard.json", "alerts.yml"} {
		for _, name := range regexp.MustCompile(`\bpushfx_[a-z_]+`).FindAllString(readFile(t, filepath.Join(operationsFolder, file)), -1) {
			names[part.ReplaceAllString(name, "")] = true
		}
	}
	for name := range names {
		if err := metrics.Register(prometheus.NewGauge(prometheus.GaugeOpts{Name: name, Help: "Not the host's."})); err == nil {
			t.Errorf("the host has no metric %s", name)
		}
	}
	if len(names) < 20 {
		t.Errorf("found only %d metrics", len(names))
	}
}
