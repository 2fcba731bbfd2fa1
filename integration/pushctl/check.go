package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"strings"
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
		flags: func(o *options, flags *flag.FlagSet) {
			o.addScan(flags)
			o.addState(flags)
			o.addDefaultRules(flags)
			flags.BoolVar(&o.list, "list", false, "list each problem: its kind, the user or key, and what tells it from others")
			flags.BoolVar(&o.json, "json", false, "write JSON")
		},
		run: func(ctx context.Context, c *call) error { return c.check(ctx) },
	}
}

// report is what a check comes to.
type report struct {
	tally
	Problems map[problemKind]int64 `json:"problems"`
}

func newReport() *report { return &report{Problems: map[problemKind]int64{}} }

func (c *call) check(ctx context.Context) error {
	report := newReport()
	from, err := newPosition(c.state, c.stateName("check"), report)
	if err != nil {
		return fmt.Errorf("-state: %w", err)
	}
	err = c.findProblems(ctx, c.newScanner("checked", from), &report.tally, func(_ context.Context, found []problem) error {
		for _, p := range found {
			report.Problems[p.kind]++
		}
		return c.listProblems(found)
	})
	if err != nil {
		return err
	}
	if c.json {
		err = writeJSON(c.out, report)
	} else {
		err = report.write(c.out, c.servers.String())
	}
	if err == nil && len(report.Problems) > 0 {
		err = errProblems
	}
	return err
}

// stateName tells the state of this call from that of others.
func (c *call) stateName(parts ...string) string {
	return strings.Join(append(parts, c.servers.String(), "prefix "+c.keys.Prefix), ", ")
}

// findProblems examines all keys. It counts them, and calls handle with the
// problems that there are.
func (b *backend) findProblems(ctx context.Context, s *scanner, counts *tally, handle func(context.Context, []problem) error) error {
	d := &doubts{backend: b}
	s.flush = func(ctx context.Context) error {
		sure, err := d.decide(ctx)
		if err != nil {
			return err
		}
		return handle(ctx, sure)
	}
	err := s.Scan(ctx, func(limited context.Context, node *redis.Client, keys []string) (func(context.Context) error, error) {
		x, err := b.examine(limited, node, keys)
		if err == nil {
			err = s.examineDelivery(ctx, node, x, keys) // logs and records take their time
		}
		if err != nil {
			return nil, err
		}
		return func(ctx context.Context) error {
			if err := handle(ctx, x.sure); err != nil {
				return err
			}
			counts.add(x.tally)
			if d.add(x.doubtful); d.isFull() {
				return s.flush(ctx)
			}
			return nil
		}, nil
	})
	if err != nil {
		return err
	}
	overdue, err := b.overduePushkeys(ctx)
	if err != nil {
		return err
	}
	return handle(ctx, overdue)
}

// overdue is from when on a pushkey should have been settled. Hosts settle every
// half minute, and claims without a pusher after ten.
const overdue = 15 * time.Minute

// overduePushkeys returns a problem if no host settles pushkeys.
func (b *backend) overduePushkeys(ctx context.Context) ([]problem, error) {
	late, err := b.index.Postponed(ctx, b.now().Add(-overdue), 1<<20)
	if err != nil || len(late) == 0 {
		return nil, err
	}
	return []problem{{
		kind: unsettledPushkeys, name: b.keys.Unsettled(), detail: fmt.Sprintf("%d, the oldest of %s", len(late), timeOf(late[0].Claim)),
	}}, nil
}

// listProblems lists problems, if that is asked for.
func (c *call) listProblems(all []problem) (err error) {
	for _, p := range all {
		switch {
		case err != nil || !c.list:
		case c.json:
			err = writeJSON(c.out, p.listed())
		default:
			_, err = fmt.Fprintf(c.out, "%s\t%s\t%s\n", p.kind, printable(p.name), printable(p.detail))
		}
	}
	return err
}

// listedProblem is a problem in a list, as JSON.
type listedProblem struct {
	Problem problemKind `json:"problem"`
	Name    string      `json:"name"`
	Detail  string      `json:"detail,omitempty"`
}

func (p problem) listed() listedProblem { return listedProblem{p.kind, p.name, p.detail} }

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
	fmt.Fprintln(w)
	table = tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintf(table, "PROBLEM\tNUMBER\tREMEDY\n")
	for _, row := range problemKinds() {
		if n := r.Problems[row.kind]; n > 0 {
			fmt.Fprintf(table, "%s\t%d\t%s\n", row.kind, n, row.remedy)
		}
	}
	return table.Flush()
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
