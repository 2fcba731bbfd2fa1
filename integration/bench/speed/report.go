package speed

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/plotutil"
	"gonum.org/v1/plot/vg"
)

// report is what was found.
type report struct {
	plan       plan
	operations []row
	sizes      []sizeRow
	users      []sizeRow
	hot        [2][]outcome // one writer, and many
	memory     []int64      // of the demo host, after each load
	starts     []time.Duration
}

// row is an operation with what was found of it.
type row struct {
	name string
	goal float64 // 0 for none
	pair
}

// sizeRow is a row for a number of rules or users.
type sizeRow struct {
	row
	size int
}

// of returns the medians of a part of outcomes.
func of[T ~int64 | ~float64](outcomes []outcome, part func(outcome) T) T {
	values := make([]T, len(outcomes))
	for i, o := range outcomes {
		values[i] = part(o)
	}
	return median(values)
}

func rate(o outcome) float64      { return o.rate }
func p50(o outcome) time.Duration { return o.p50 }
func p99(o outcome) time.Duration { return o.p99 }

// rate is the median of the ratios of the rates of each round.
func (p pair) rate() float64 { return p.ratio(rate) }

// slower is the same for the 99th percentiles.
func (p pair) slower() float64 {
	return p.ratio(func(o outcome) float64 { return float64(o.p99) })
}

func (p pair) ratio(part func(outcome) float64) float64 {
	ratios := make([]float64, len(p.demo))
	for i := range ratios {
		ratios[i] = part(p.demo[i]) / part(p.floor[i])
	}
	return median(ratios)
}

func (r *report) hotRatio() float64 { return of(r.hot[1], rate) / of(r.hot[0], rate) }

func (r *report) mebibytes() []int64 {
	all := make([]int64, len(r.memory))
	for i, bytes := range r.memory {
		all[i] = bytes >> 20
	}
	return all
}

// write prints the report, and writes it and the picture into a folder.
func (r *report) write(folder string) error {
	text := r.markdown()
	fmt.Print(text)
	table, picture := filepath.Join(folder, "results.md"), filepath.Join(folder, "growth.svg")
	if err := os.WriteFile(table, []byte(text), 0o644); err != nil {
		return err
	}
	if err := r.draw(picture); err != nil {
		return err
	}
	progress("written: %s %s", table, picture)
	return nil
}

func (r *report) markdown() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s, %s/%s with %d cores, %s; %d connections, %d rounds of %v on either host in turn, medians.\n\n",
		time.Now().Format(time.DateOnly), runtime.GOOS, runtime.GOARCH, runtime.NumCPU(), runtime.Version(), r.plan.connections, r.plan.rounds, r.plan.phase)
	b.WriteString("| Operation | floor/s | demo host/s | ratio | goal | p50 floor, demo host | p99 floor, demo host | ratio |\n|---|---|---|---|---|---|---|---|\n")
	for _, row := range r.operations {
		fmt.Fprintf(&b, "| %s | %.0f | %.0f | %.2f | %.2f | %s, %s | %s, %s | %.2f |\n", row.name, of(row.floor, rate), of(row.demo, rate), row.rate(), row.goal,
			ms(of(row.floor, p50)), ms(of(row.demo, p50)), ms(of(row.floor, p99)), ms(of(row.demo, p99)), row.slower())
	}
	b.WriteString("\n| Operation | rules beside the defaults | floor/s | demo host/s | ratio |\n|---|---|---|---|---|\n")
	for _, row := range r.sizes {
		fmt.Fprintf(&b, "| %s | %d | %.0f | %.0f | %.2f |\n", row.name, row.size, of(row.floor, rate), of(row.demo, rate), row.rate())
	}
	b.WriteString("\n| Operation | users in Redis | floor/s | demo host/s | ratio |\n|---|---|---|---|---|\n")
	for _, row := range r.users {
		fmt.Fprintf(&b, "| %s | %d | %.0f | %.0f | %.2f |\n", row.name, row.size, of(row.floor, rate), of(row.demo, rate), row.rate())
	}
	fmt.Fprintf(&b, "\n| What | Found | Goal |\n|---|---|---|\n| changes of one user's rules, one writer | %.0f/s | |\n| %d writers | %.0f/s, %.1f times as many | 3 times |\n"+
		"| memory of the demo host after each of %d mixed loads on %d connections | %v MiB | flat |\n| demo host from its start to the first answer | %s | 300 ms |\n",
		of(r.hot[0], rate), hotWriters, of(r.hot[1], rate), r.hotRatio(), len(r.memory), manyConnections, r.mebibytes(), ms(median(r.starts)))
	return b.String()
}

func ms(d time.Duration) string { return fmt.Sprintf("%.2f ms", float64(d.Microseconds())/1000) }

// draw draws the growth with the number of rules: what a request takes on either
// host, on logarithmic scales.
func (r *report) draw(file string) error {
	p := plot.New()
	p.Title.Text = "Time for a request, by the number of rules"
	p.X.Label.Text, p.Y.Label.Text = "rules beside the defaults", "µs of both cores"
	p.X.Scale, p.Y.Scale = plot.LogScale{}, plot.LogScale{}
	p.X.Tick.Marker, p.Y.Tick.Marker = plot.LogTicks{Prec: -1}, plot.LogTicks{Prec: -1}
	p.Legend.Top, p.Legend.Left = true, true
	p.Add(plotter.NewGrid())
	lines := map[string][2]plotter.XYs{}
	var names []string
	for _, row := range r.sizes {
		if _, found := lines[row.name]; !found {
			names = append(names, row.name)
		}
		both := lines[row.name]
		for i, outcomes := range [][]outcome{row.floor, row.demo} {
			both[i] = append(both[i], plotter.XY{X: float64(row.size), Y: 1e6 / of(outcomes, rate)})
		}
		lines[row.name] = both
	}
	for i, name := range names {
		for j, host := range []string{"floor", "demo host"} {
			line, points, err := plotter.NewLinePoints(lines[name][j])
			if err != nil {
				return err
			}
			line.Color, points.Color = plotutil.Color(i), plotutil.Color(i)
			line.Dashes, points.Shape = plotutil.Dashes(1-j), plotutil.Shape(i)
			p.Add(line, points)
			p.Legend.Add(name+", "+host, line, points)
		}
	}
	return p.Save(9*vg.Inch, 6*vg.Inch, file)
}
