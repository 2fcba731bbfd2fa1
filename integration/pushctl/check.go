package main

import (
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"sync"
	"text/tabwriter"

	"github.com/redis/go-redis/v9"
)

var checkCommand = command{
	name:    "check",
	summary: "counts the problems in the stored data, and changes nothing",
	about: "Examines all stored data while hosts run, and changes nothing. It counts the problems of each kind;\n" +
		"-list lists them. Problems that involve several keys are examined twice, so that a host's change in\n" +
		"progress does not count. Exit status 1: there are problems. It fails if no key is the module's, and at\n" +
		"its end if a master did not reply.",
	flags: func(f *flags) {
		f.addDefaultRules()
		f.addRate()
		f.addJSON()
		f.BoolVar(&f.list, "list", false, "list each problem: its kind, the user or key, and details")
	},
	run: (*call).check,
}

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

func (c *call) check(ctx context.Context) error {
	report := newReport()
	c.allowGaps()
	err := c.findProblems(ctx, &report.tally, func(_ context.Context, found []problem) (err error) {
		for _, p := range found {
			report.count(p.kind)
			if c.list && err == nil {
				err = c.writeLine(p.listed(), p.cells()...)
			}
		}
		return err
	})
	if err != nil {
		return err
	}
	return c.result(report, func(w io.Writer) error { return report.write(w, c.servers.String(), c.noProblems()) }, len(report.Problems) > 0)
}

// findProblems examines and counts all keys, and calls handle with the problems that it finds.
func (c *call) findProblems(ctx context.Context, counts *tally, handle func(context.Context, []problem) error) error {
	var mu sync.Mutex // held during calls of handle
	e, err := c.newExaminer(ctx)
	if err != nil {
		return err
	}
	u := newUnconfirmed(e)
	err = c.newScanner("examined").scan(ctx, func(ctx context.Context, node *redis.Client, keys []string) error {
		x, err := e.examine(ctx, node, keys)
		if err != nil {
			return err
		}
		mu.Lock()
		defer mu.Unlock()
		counts.add(x.tally)
		u.add(x)
		if err := handle(ctx, x.problems); err != nil || u.number < maxUnconfirmed {
			return err
		}
		return u.handle(ctx, handle)
	})
	if err == nil {
		err = u.handle(ctx, handle)
	}
	return err
}

// handle examines the unconfirmed problems again, and passes the confirmed problems to the given function.
func (u *unconfirmed) handle(ctx context.Context, handle func(context.Context, []problem) error) error {
	confirmed, err := u.confirm(ctx)
	if err != nil {
		return err
	}
	return handle(ctx, confirmed)
}

func (r *report) write(w io.Writer, where, noProblems string) error {
	fmt.Fprintf(w, "%s\n\n", where)
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	for _, row := range []struct {
		n         int64
		one, many string
	}{
		{r.Keys, "key", "keys"},
		{r.Events, "user with push rules", "users with push rules"},
		{r.Rules, "rule", "rules"},
		{r.Hashes, "user with a pusher hash", "users with a pusher hash"},
		{r.Pushers, "pusher", "pushers"},
		{r.Claims, "pushkey in the index", "pushkeys in the index"},
		{r.Unread, "user with unread counts", "users with unread counts"},
		{r.Waiting, "waiting notification", "waiting notifications"},
		{r.Failing, "failing pusher", "failing pushers"},
		{max(0, r.Entries-r.Listed), "user in the index with nothing to send (hosts remove it)", "users in the index with nothing to send (hosts remove them)"},
	} {
		noun := row.many
		if row.n == 1 {
			noun = row.one
		}
		fmt.Fprintf(table, "%d\t %s\n", row.n, noun)
	}
	if err := table.Flush(); err != nil {
		return err
	}
	if len(r.Problems) == 0 {
		_, err := fmt.Fprintln(w, "\n"+noProblems)
		return err
	}
	var rows [][]string
	for _, name := range slices.Sorted(maps.Keys(r.Problems)) {
		rows = append(rows, []string{name, strconv.FormatInt(r.Problems[name], 10), r.remedies[name]})
	}
	fmt.Fprintln(w)
	return writeTable(w, []string{"PROBLEM", "NUMBER", "REMEDY"}, rows)
}
