package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// panel is one of the dashboard, with its queries.
type panel struct {
	Title       string
	FieldConfig struct{ Defaults struct{ Unit string } }
	Targets     []struct{ Expr, LegendFormat string }
}

func readPanels(file string) ([]panel, error) {
	var dashboard struct{ Panels []panel }
	text, err := os.ReadFile(file)
	if err == nil {
		err = json.Unmarshal(text, &dashboard)
	}
	if err == nil && len(dashboard.Panels) == 0 {
		err = errors.New("no panels")
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return dashboard.Panels, nil
}

// sample is a value of a metric, as Prometheus stores it.
type sample struct {
	labels map[string]string
	value  float64
}

// samples are those of one look, by the name of the metric.
type samples map[string][]sample

// scrape adds the metrics of a host.
func (s samples) scrape(address string) error {
	response, err := client.Get("http://" + address + "/metrics")
	if err != nil {
		return err
	}
	defer response.Body.Close()
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(response.Body)
	if err != nil || response.StatusCode != http.StatusOK {
		return fmt.Errorf("metrics of %s: %s, %w", address, response.Status, err)
	}
	for name, family := range families {
		if strings.HasPrefix(name, "pushfx_") {
			for _, m := range family.GetMetric() {
				s.add(name, address, m)
			}
		}
	}
	return nil
}

func (s samples) add(name, address string, m *dto.Metric) {
	labels := map[string]string{"job": "homeserver", "instance": address}
	for _, pair := range m.GetLabel() {
		labels[pair.GetName()] = pair.GetValue()
	}
	put := func(name string, value float64, extra ...string) {
		own := map[string]string{}
		for k, v := range labels {
			own[k] = v
		}
		for i := 0; i < len(extra); i += 2 {
			own[extra[i]] = extra[i+1]
		}
		s[name] = append(s[name], sample{own, value})
	}
	h := m.GetHistogram()
	if h == nil {
		put(name, m.GetCounter().GetValue()+m.GetGauge().GetValue())
		return
	}
	put(name+"_count", float64(h.GetSampleCount()))
	for _, b := range h.GetBucket() {
		put(name+"_bucket", float64(b.GetCumulativeCount()), "le", strconv.FormatFloat(b.GetUpperBound(), 'g', -1, 64))
	}
}

// The forms that the queries have.
var (
	quantileForm = regexp.MustCompile(`^histogram_quantile\(([0-9.]+), sum by \(([a-z_, ]+)\) \(rate\(([a-z_]+)(\{[^}]*\})?\[[^\]]*\]\)\)\)$`)
	rateForm     = regexp.MustCompile(`^sum(?: by \(([a-z_, ]+)\))? ?\(rate\(([a-z_]+)(\{[^}]*\})?\[[^\]]*\]\)\)$`)
	gaugeForm    = regexp.MustCompile(`^(?:sum|min) by \(([a-z_, ]+)\) \(([a-z_]+)(\{[^}]*\})?\)$`)
	matcherForm  = regexp.MustCompile(`([a-z_]+)=~?"([^"$]*)"`)
)

// evaluate returns what a query gives at each look, by its legend.
func evaluate(expr, legend string, seen []samples) (map[string][]float64, error) {
	series := map[string][]float64{}
	put := func(at int, labels map[string]string, value float64) {
		name := legend
		for label, text := range labels {
			name = strings.ReplaceAll(name, "{{"+label+"}}", text)
		}
		if series[name] == nil {
			series[name] = slices.Repeat([]float64{math.NaN()}, len(seen))
		}
		series[name][at] = value
	}
	for at := range seen {
		if at == 0 {
			continue
		}
		before, now := seen[max(0, at-window)], seen[at]
		seconds := step.Seconds() * float64(at-max(0, at-window))
		if f := quantileForm.FindStringSubmatch(expr); f != nil {
			quantiles(f, before, now, func(labels map[string]string, v float64) { put(at, labels, v) })
		} else if f := rateForm.FindStringSubmatch(expr); f != nil {
			for _, g := range group(f[1], f[3], now[f[2]], before[f[2]]) {
				put(at, g.labels, g.value/seconds)
			}
		} else if f := gaugeForm.FindStringSubmatch(expr); f != nil {
			for _, g := range group(f[1], f[3], now[f[2]], nil) {
				put(at, g.labels, g.value)
			}
		} else {
			return nil, fmt.Errorf("a query in another form: %s", expr)
		}
	}
	return series, nil
}

// group sums the samples that match by some labels, less what they were before.
func group(by, matchers string, now, before []sample) []sample {
	names := strings.Split(by, ", ")
	sums := map[string]*sample{}
	var order []string
	for i, list := range [][]sample{now, before} {
		for _, s := range list {
			if !matches(matchers, s.labels) {
				continue
			}
			labels := map[string]string{}
			for _, name := range names {
				labels[name] = s.labels[name]
			}
			key := fmt.Sprint(labels)
			if sums[key] == nil {
				sums[key] = &sample{labels: labels}
				order = append(order, key)
			}
			sums[key].value += s.value * []float64{1, -1}[i]
		}
	}
	slices.Sort(order)
	all := make([]sample, len(order))
	for i, key := range order {
		all[i] = *sums[key]
	}
	return all
}

func matches(matchers string, labels map[string]string) bool {
	for _, m := range matcherForm.FindAllStringSubmatch(matchers, -1) {
		if m[2] != "" && !slices.Contains(strings.Split(m[2], "|"), labels[m[1]]) {
			return false
		}
	}
	return true
}

// quantiles are those of the histograms between two looks, interpolated in their
// buckets.
func quantiles(form []string, before, now samples, put func(map[string]string, float64)) {
	q, _ := strconv.ParseFloat(form[1], 64)
	type bucket struct{ le, count float64 }
	buckets, of := map[string][]bucket{}, map[string]map[string]string{}
	for _, s := range group(form[2], form[4], now[form[3]], before[form[3]]) {
		le, _ := strconv.ParseFloat(s.labels["le"], 64)
		delete(s.labels, "le")
		key := fmt.Sprint(s.labels)
		buckets[key], of[key] = append(buckets[key], bucket{le, s.value}), s.labels
	}
	for key, list := range buckets {
		slices.SortFunc(list, func(a, b bucket) int { return int(math.Copysign(1, a.le-b.le)) })
		rank := q * list[len(list)-1].count
		if rank == 0 {
			continue
		}
		i := slices.IndexFunc(list, func(b bucket) bool { return b.count >= rank })
		low, below, high := 0.0, 0.0, list[i].le
		if i > 0 {
			low, below = list[i-1].le, list[i-1].count
		}
		if math.IsInf(high, 1) {
			high = low
		}
		put(of[key], low+(high-low)*(rank-below)/max(1e-9, list[i].count-below))
	}
}
