package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"sync"
	"text/tabwriter"
	"time"

	"github.com/redis/go-redis/v9"
)

func checkCommand() command {
	return command{
		name:    "check",
		summary: "looks for problems in all that is stored",
		about: "Examines all that is stored, beside the running hosts, and changes nothing. It says how many\n" +
			"problems of each kind there are, and with -list whose. A problem that is about several keys is\n" +
			"examined twice, so that a change that is under way is none. Exit status 1 says that there are problems.\n" +
			"If no key is the module's, it fails.",
		setup: func(f *flags) runner {
			f.addDefaultRules()
			p, asJSON := f.pace(), f.json()
			list := f.Bool("list", false, "list each problem: its kind, the user or key, and what tells it from others")
			return func(ctx context.Context, c *call) error { return c.check(ctx, p, *list, *asJSON) }
		},
	}
}

// report is what a check comes to.
type report struct {
	tally
	Problems map[string]int64 `json:"problems"`
	remedies map[string]string
}

func newReport() *report {
	return &report{Problems: map[string]int64{}, remedies: map[string]string{}}
}

func (r *report) count(k kind) {
	r.Problems[k.name]++
	r.remedies[k.name] = k.remedy
}

func (c *call) check(ctx context.Context, p *pace, list, asJSON bool) error {
	report := newReport()
	err := c.findProblems(ctx, p, &report.tally, func(_ context.Context, found []problem) (err error) {
		for _, p := range found {
			report.count(p.kind)
			switch {
			case err != nil || !list:
			case asJSON:
				err = writeJSON(c.out, p.listed())
			default:
				_, err = fmt.Fprintln(c.out, p)
			}
		}
		return err
	})
	if err != nil {
		return err
	}
	if asJSON {
		err = writeJSON(c.out, report)
	} else {
		err = report.write(c.out, c.servers.String())
	}
	if err == nil && len(report.Problems) > 0 {
		err = errProblems
	}
	return err
}

// findProblems examines all keys. It counts them, and calls handle with the
// problems that there are.
func (c *call) findProblems(ctx context.Context, p *pace, counts *tally, handle func(context.Context, []problem) error) error {
	var mu sync.Mutex // held while problems are handled
	d := &doubts{backend: c.backend}
	s := c.newScanner(p, "examined")
	err := s.scan(ctx, func(ctx context.Context, node *redis.Client, keys []string) error {
		x, err := c.examine(ctx, node, keys)
		if err == nil {
			err = s.examineDelivery(ctx, node, x, keys)
		}
		if err != nil {
			return err
		}
		mu.Lock()
		defer mu.Unlock()
		counts.add(x.tally)
		d.add(x.doubtful)
		if err := handle(ctx, x.sure); err != nil || len(d.waiting) < maxDoubts {
			return err
		}
		return d.handle(ctx, handle)
	})
	if err == nil {
		err = d.handle(ctx, handle)
	}
	if err != nil {
		return err
	}
	late, err := c.overduePushkeys(ctx)
	if err != nil {
		return err
	}
	return handle(ctx, late)
}

// handle decides, and calls handle with the problems that are still there.
func (d *doubts) handle(ctx context.Context, handle func(context.Context, []problem) error) error {
	sure, err := d.decide(ctx)
	if err != nil {
		return err
	}
	return handle(ctx, sure)
}

// write writes the report as tables.
func (r *report) write(w io.Writer, where string) error {
	fmt.Fprintf(w, "%s\n\n", where)
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	for _, row := range []struct {
		n    int64
		what string
	}{
		{r.Keys, "keys"}, {r.Events, "users with push rules"}, {r.Rules, "rules"}, {r.Hashes, "users with a pusher hash"},
		{r.Pushers, "pushers"}, {r.Claims, "pushkeys in the index"}, {r.Entries, "events to be delivered"}, {r.Held, "pushers in trouble"},
	} {
		fmt.Fprintf(table, "%d\t %s\n", row.n, row.what)
	}
	if err := table.Flush(); err != nil {
		return err
	}
	if len(r.Problems) == 0 {
		_, err := fmt.Fprintln(w, "\nNo problems.")
		return err
	}
	var rows [][]string
	for _, name := range slices.Sorted(maps.Keys(r.Problems)) {
		rows = append(rows, []string{name, strconv.FormatInt(r.Problems[name], 10), r.remedies[name]})
	}
	fmt.Fprintln(w)
	return writeTable(w, []string{"PROBLEM", "NUMBER", "REMEDY"}, rows)
}

// writeJSON writes a value on a line.
func writeJSON(w io.Writer, value any) error {
	encoder := json.NewEncoder(w)
	encoder.SetEscapeHTML(false)
	return encoder.Encode(value)
}

// timeOf is the time of a version or claim.
func timeOf(microseconds int64) string {
	return time.UnixMicro(microseconds).UTC().Format(time.RFC3339)
}
