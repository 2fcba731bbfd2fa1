package pages

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.yaml.in/yaml/v3"

	"github.com/pushfx/pushfx/integration/operations"
	"github.com/pushfx/pushfx/module/delivery"
	"github.com/pushfx/pushfx/module/feed"
	"github.com/pushfx/pushfx/module/telemetry/metrics"
)

type query struct{ where, expr string }

func queries(t *testing.T) (all []query) {
	t.Helper()
	var dashboard struct {
		Panels []struct {
			Title   string
			Targets []struct{ Expr string }
		}
	}
	text, err := os.ReadFile("operations/dashboard.json")
	if err == nil {
		err = json.Unmarshal(text, &dashboard)
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, panel := range dashboard.Panels {
		if len(panel.Targets) == 0 {
			t.Errorf("panel %q has no query", panel.Title)
		}
		for _, target := range panel.Targets {
			all = append(all, query{"panel " + panel.Title, target.Expr})
		}
	}
	for _, alert := range alerts(t) {
		all = append(all, query{"alert " + alert.Alert, alert.Expr})
	}
	return all
}

type alert struct {
	Alert, Expr, For    string
	Labels, Annotations map[string]string
}

func alerts(t *testing.T) (all []alert) {
	t.Helper()
	var file struct {
		Groups []struct {
			Name  string
			Rules []alert
		}
	}
	text, err := os.ReadFile("operations/alerts.yml")
	if err == nil {
		err = yaml.Unmarshal(text, &file)
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, group := range file.Groups {
		all = append(all, group.Rules...)
	}
	return all
}

func exposed(t *testing.T) map[string][]string {
	t.Helper()
	descs := make(chan *prometheus.Desc, 100)
	counts := metrics.New(metrics.DeliveryConfig{NamedGateways: []string{"https://push.example.org"}})
	for _, c := range slices.Concat(
		counts.Collectors(), counts.Unread(), counts.Delivery(func() delivery.Stats { return delivery.Stats{} }),
		metrics.Feed(func() feed.Stats { return feed.Stats{} }),
		[]prometheus.Collector{metrics.NewEvicting(func() int { return 0 }), metrics.NewSilent(nil), metrics.NewClockOffset(func() time.Duration { return 0 })},
	) {
		c.Describe(descs)
	}
	close(descs)
	all := map[string][]string{}
	form := regexp.MustCompile(`fqName: "([^"]+)".*constLabels: \{(\w*).*variableLabels: \{([^}]*)\}`)
	for desc := range descs {
		found := form.FindStringSubmatch(desc.String())
		if found == nil {
			t.Fatalf("unexpected description: %s", desc)
		}
		names := append(strings.FieldsFunc(found[2]+","+found[3], func(r rune) bool { return r == ',' }), "job", "instance")
		gauges := []string{"pushfx_clock_offset_seconds", "pushfx_delivery_late_seconds", "pushfx_delivery_oldest_seconds"} // other times are histograms
		if !strings.HasSuffix(found[1], "_seconds") || slices.Contains(gauges, found[1]) {
			all[found[1]] = names
			continue
		}
		all[found[1]+"_count"] = names
		all[found[1]+"_sum"] = names
		all[found[1]+"_bucket"] = append(names, "le")
	}
	return all
}

var (
	metricName = regexp.MustCompile(`pushfx_[a-z_]+`)
	matchers   = regexp.MustCompile(`(pushfx_[a-z_]+)\{([^}]*)\}`)
	matcher    = regexp.MustCompile(`([a-z_]+)(?:=~|!~|!=|=)"`)
	grouping   = regexp.MustCompile(`by \(([a-z_, ]*)\)`)
)

func TestPanelsAndAlertsQueryExistingMetrics(t *testing.T) {
	t.Parallel()
	metrics, queried := exposed(t), map[string]bool{}
	for _, q := range queries(t) {
		names := metricName.FindAllString(q.expr, -1)
		if len(names) == 0 {
			t.Errorf("%s queries no metric: %s", q.where, q.expr)
		}
		var labels []string
		for _, name := range names {
			if queried[strings.TrimSuffix(strings.TrimSuffix(name, "_count"), "_bucket")] = true; metrics[name] == nil {
				t.Errorf("%s: there is no metric %s", q.where, name)
			}
			labels = append(labels, metrics[name]...)
		}
		for _, found := range matchers.FindAllStringSubmatch(q.expr, -1) {
			for _, label := range matcher.FindAllStringSubmatch(found[2], -1) {
				if !slices.Contains(metrics[found[1]], label[1]) {
					t.Errorf("%s: %s has no label %s", q.where, found[1], label[1])
				}
			}
		}
		for _, found := range grouping.FindAllStringSubmatch(q.expr, -1) {
			for label := range strings.SplitSeq(found[1], ", ") {
				if !slices.Contains(labels, label) {
					t.Errorf("%s: groups by %s, which %v do not have", q.where, label, names)
				}
			}
		}
		if strings.Count(q.expr, "(") != strings.Count(q.expr, ")") || strings.Count(q.expr, "{") != strings.Count(q.expr, "}") {
			t.Errorf("%s: %s", q.where, q.expr)
		}
	}
	for name := range maps.Keys(metrics) {
		name = strings.TrimSuffix(strings.TrimSuffix(strings.TrimSuffix(name, "_count"), "_bucket"), "_sum")
		if !queried[name] {
			t.Errorf("%s is neither on the dashboard nor in an alert", name)
		}
	}
}

func TestEachAlertIsExplained(t *testing.T) {
	t.Parallel()
	pages, err := operations.Pages()
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range alerts(t) {
		if a.Annotations["summary"] == "" || a.Labels["severity"] == "" {
			t.Errorf("alert %s lacks a summary or a severity", a.Alert)
		}
		if !strings.Contains(pages, "`"+a.Alert+"`") {
			t.Errorf("the operators' pages do not explain %s", a.Alert)
		}
	}
}

// Promtool plays each fault of alerts_test.yml, and an hour of peace, and compares all alerts that fire.
func TestEachAlertFiresInItsFaultAndNoneInPeace(t *testing.T) {
	t.Parallel()
	const faults = "operations/alerts_test.yml"
	text, err := os.ReadFile(faults)
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range alerts(t) {
		if !strings.Contains(string(text), `alertname="`+a.Alert+`"`) {
			t.Errorf("there is no fault for %s", a.Alert)
		}
	}
	runPromtool(t, "test", "rules", faults)
}

// The configuration has the alerts.
func TestPromtoolReadsTheConfiguration(t *testing.T) {
	t.Parallel()
	if report := runPromtool(t, "check", "config", "operations/prometheus.yml"); !strings.Contains(report, fmt.Sprint(len(alerts(t)), " rules found")) {
		t.Error(report)
	}
}

func runPromtool(t *testing.T, arguments ...string) (report string) {
	t.Helper()
	promtool, err := exec.LookPath("promtool")
	switch {
	case err == nil:
	case os.Getenv("REQUIRE_PROMTOOL") == "1":
		t.Fatal("promtool is not on the PATH")
	default:
		t.Skip("promtool is not on the PATH")
	}
	output, err := exec.CommandContext(t.Context(), promtool, arguments...).CombinedOutput()
	if err != nil {
		t.Errorf("%v\n%s", err, output)
	}
	return string(output)
}
