package speed

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"
)

// report is what was found.
type report struct {
	plan       plan
	operations []row
	latency    []row // by connections
	hosts      []row // by the number of further hosts
	sizes      []sizeRow
	users      []row        // by their number
	hot        [2][]outcome // one writer, and many
	memory     []int64      // of the demo host, after each load
	starts     []time.Duration
}

// row is an operation with what was found of it.
type row struct {
	name string
	of   string  // what it is measured by, if that is not the operation alone
	goal float64 // of [pair.cpu], 0 for none
	pair
}

// sizeRow is a row for a number of rules.
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

// cpu is what the floor and Redis spent on a request, by what the demo host and
// Redis did.
func (p pair) cpu() float64 {
	floor, demo := perRequest(p.floor), perRequest(p.demo)
	return float64(floor.host+floor.redis) / float64(demo.host+demo.redis)
}

// perRequest is what a request has cost, of all rounds.
func perRequest(outcomes []outcome) (c cpu) {
	requests := time.Duration(0)
	for _, o := range outcomes {
		requests += time.Duration(o.requests)
		c = cpu{c.host + o.cpu.host, c.redis + o.cpu.redis, c.redisMain + o.cpu.redisMain, c.others + o.cpu.others}
	}
	return cpu{c.host / requests, c.redis / requests, c.redisMain / requests, c.others / requests}
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
	if err := os.WriteFile(picture, r.growth().svg(), 0o644); err != nil {
		return err
	}
	progress("written: %s %s", table, picture)
	return nil
}

func (r *report) markdown() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s, %s/%s with %d cores, %s; %d connections, %d rounds of %v on either host in turn, medians.\n\n",
		time.Now().Format(time.DateOnly), runtime.GOOS, runtime.GOARCH, runtime.NumCPU(), runtime.Version(), r.plan.connections, r.plan.rounds, r.plan.phase)
	b.WriteString("CPU is µs of host + Redis for a request; the ratio is the floor's CPU by the demo host's.\n")
	r.table(&b, "Operation", "", r.operations)
	r.table(&b, "Latency", "connections", r.latency)
	r.table(&b, "Beside other hosts", "further hosts", r.hosts)
	var sizes []row
	for _, row := range r.sizes {
		sizes = append(sizes, row.row)
	}
	r.table(&b, "Large sets", "rules beside the defaults", sizes)
	r.table(&b, "Many users", "users in Redis", r.users)
	if len(r.hosts) > 0 {
		b.WriteString("\n| Further hosts | Redis' CPU for a change | of its main thread | of all further hosts |\n|---|---|---|---|\n")
		for _, row := range r.hosts {
			c := perRequest(row.demo)
			fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", row.of, us(c.redis), us(c.redisMain), us(c.others))
		}
	}
	if len(r.hot[0]) > 0 {
		fmt.Fprintf(&b, "\n%d writers make %.1f times as many changes of one user's rules as one (goal 3): %.0f/s, %.0f/s.\n",
			hotWriters, r.hotRatio(), of(r.hot[0], rate), of(r.hot[1], rate))
	}
	if len(r.memory) > 0 {
		fmt.Fprintf(&b, "\nMemory of the demo host after each of %d mixed loads on %d connections: %v MiB (goal: flat).\n", len(r.memory), manyConnections, r.mebibytes())
	}
	if len(r.starts) > 0 {
		fmt.Fprintf(&b, "\nThe demo host answers %s after its start (goal 300 ms).\n", ms(median(r.starts)))
	}
	return b.String()
}

// table writes rows, with what they are measured by in a column of that name.
func (r *report) table(b *strings.Builder, title, by string, rows []row) {
	if len(rows) == 0 {
		return
	}
	columns := strings.Split(title+" | floor/s | demo host/s | ratio | CPU floor | CPU demo host | CPU ratio | goal | p50 | p99", " | ")
	if by != "" {
		columns = slices.Insert(columns, 1, by)
	}
	fmt.Fprintf(b, "\n| %s |\n|%s\n", strings.Join(columns, " | "), strings.Repeat("---|", len(columns)))
	for _, row := range rows {
		cells := []string{
			row.name, fmt.Sprintf("%.0f", of(row.floor, rate)), fmt.Sprintf("%.0f", of(row.demo, rate)), fmt.Sprintf("%.2f", row.rate()),
			perRequest(row.floor).String(), perRequest(row.demo).String(), fmt.Sprintf("%.2f", row.cpu()), "",
			ms(of(row.floor, p50)) + ", " + ms(of(row.demo, p50)), ms(of(row.floor, p99)) + ", " + ms(of(row.demo, p99)),
		}
		if row.goal > 0 {
			cells[7] = fmt.Sprintf("%.2f", row.goal)
		}
		if by != "" {
			cells = slices.Insert(cells, 1, row.of)
		}
		fmt.Fprintf(b, "| %s |\n", strings.Join(cells, " | "))
	}
}

func (c cpu) String() string { return us(c.host) + " + " + us(c.redis) }

func us(d time.Duration) string { return fmt.Sprintf("%.1f", float64(d.Nanoseconds())/1000) }

func ms(d time.Duration) string { return fmt.Sprintf("%.2f ms", float64(d.Microseconds())/1000) }
