package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/redis/go-redis/v9"
)

func checkCommand() command {
	return command{
		name:    "check",
		summary: "looks for faults in all that is stored",
		about: "Looks at all that is stored, beside the running hosts, and changes nothing. It tells how many\n" +
			"faults of each kind there are, and with -list whose. A fault that is about several keys is looked\n" +
			"at twice, so that a change that is under way is none. Exit status 1 says that there are faults.",
		flags: func(o *options, flags *flag.FlagSet) {
			o.addWalk(flags)
			o.addState(flags)
			o.addDefaultRules(flags)
			flags.BoolVar(&o.list, "list", false, "list each fault: its kind, the user or key, and what tells it from others")
			flags.BoolVar(&o.json, "json", false, "write JSON")
		},
		run: func(ctx context.Context, c *call) error {
			return newChecking(c, "checked").run(ctx)
		},
	}
}

// checking goes through all keys and looks for faults.
type checking struct {
	*call
	examiner *examiner
	report   *report
	doubtful []finding
	since    time.Time // of the youngest of the doubtful
	progress *progress

	// found handles faults that are such, when no others are.
	found func(context.Context, []finding) error
}

// report is what a check comes to.
type report struct {
	tally
	Faults map[faultKind]int64 `json:"faults"`
}

func newChecking(c *call, doing string) *checking {
	k := &checking{
		call: c, examiner: newExaminer(c.backend), report: &report{Faults: map[faultKind]int64{}}, progress: c.newProgress(doing, "keys"),
	}
	k.found = k.listAll
	return k
}

// run goes through all keys and reports.
func (c *checking) run(ctx context.Context) error {
	place, err := newPosition(c.state, c.stateName("check"), c.report)
	if err != nil {
		return fmt.Errorf("-state: %w", err)
	}
	if err := c.walk(ctx, place); err != nil {
		return err
	}
	return c.tell()
}

// stateName tells the state of this call from that of others.
func (c *call) stateName(parts ...string) string {
	return strings.Join(append(parts, c.servers.String(), "prefix "+c.keys.Prefix), ", ")
}

// walk goes through all keys, from where it was.
func (c *checking) walk(ctx context.Context, place *position) error {
	w := &walk{
		backend: c.backend, pace: &pace{rate: c.rate}, progress: c.progress, position: place, look: c.look, settle: c.settle,
	}
	if err := w.run(ctx); err != nil {
		return err
	}
	return c.checkUnsettled(ctx)
}

// look looks at a page of keys.
func (c *checking) look(ctx context.Context, node *redis.Client, keys []string) (done func(context.Context) error, err error) {
	found, err := c.examiner.look(ctx, node, keys)
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context) error {
		c.report.add(found.tally)
		if len(found.doubtful) > 0 {
			c.doubtful, c.since = append(c.doubtful, found.doubtful...), time.Now()
		}
		if err := c.count(ctx, found.sure); err != nil || len(c.doubtful) < maxDoubtful {
			return err
		}
		return c.settle(ctx)
	}, nil
}

const (
	// maxDoubtful is how many faults wait for a second look.
	maxDoubtful = 5000

	// doubt is how long they wait: longer than it takes a host to go from one key
	// to the next.
	doubt = time.Second
)

// settle takes the second look, which decides.
func (c *checking) settle(ctx context.Context) error {
	if len(c.doubtful) == 0 {
		return nil
	}
	if err := sleep(ctx, time.Until(c.since.Add(doubt))); err != nil {
		return err
	}
	sure, err := c.examiner.lookAgain(ctx, c.doubtful)
	if err != nil {
		return err
	}
	c.doubtful = nil
	return c.count(ctx, sure)
}

func (c *checking) count(ctx context.Context, sure []finding) error {
	for _, f := range sure {
		c.report.Faults[f.kind]++
	}
	return c.found(ctx, sure)
}

// listAll lists faults, if that is asked for.
func (c *checking) listAll(_ context.Context, sure []finding) error {
	for _, f := range sure {
		var err error
		switch {
		case c.list && c.json:
			err = writeJSON(c.out, listed{f.kind, f.name, f.detail})
		case c.list:
			_, err = fmt.Fprintf(c.out, "%s\t%s\t%s\n", f.kind, printable(f.name), printable(f.detail))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// listed is a fault in a list, as JSON.
type listed struct {
	Fault  faultKind `json:"fault"`
	Name   string    `json:"name"`
	Detail string    `json:"detail,omitempty"`
}

// lookAgain returns those of the doubtful faults that are still there.
func (x *examiner) lookAgain(ctx context.Context, doubtful []finding) (sure []finding, err error) {
	keys := map[*redis.Client][]string{}
	for _, f := range doubtful {
		if f.kind == misplacedKey {
			misplaced, err := x.isMisplaced(ctx, f)
			if err != nil {
				return nil, err
			}
			if misplaced {
				sure = append(sure, f)
			}
		} else if !slices.Contains(keys[f.node], f.key) {
			keys[f.node] = append(keys[f.node], f.key)
		}
	}
	for node, all := range keys {
		for part := range slices.Chunk(all, pageSize) {
			second, err := x.look(ctx, node, part)
			if err != nil {
				return nil, err
			}
			for _, f := range second.doubtful {
				if slices.ContainsFunc(doubtful, f.isSame) {
					sure = append(sure, f)
				}
			}
		}
	}
	return sure, nil
}

// isMisplaced reports whether a node still holds a key of a slot that is neither
// its own nor on the way to it.
func (x *examiner) isMisplaced(ctx context.Context, f finding) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, replyLimit)
	defer cancel()
	slot := slotOf(f.key)
	nodes, err := f.node.ClusterNodes(ctx).Result()
	if err != nil {
		return false, fmt.Errorf("CLUSTER NODES: %w", err)
	}
	if strings.Contains(nodes, fmt.Sprintf("[%d-", slot)) {
		return false, nil // on its way
	}
	keys, err := f.node.ClusterGetKeysInSlot(ctx, slot, 1<<16).Result()
	if err != nil {
		return false, fmt.Errorf("CLUSTER GETKEYSINSLOT: %w", err)
	}
	if !slices.Contains(keys, f.key) {
		return false, nil
	}
	err = f.node.Type(ctx, f.key).Err()
	_, isMoved := redis.IsMovedError(err)
	return isMoved, nil
}

// overdue is from when on a pushkey should have been settled. Hosts look every
// half minute, and at claims without a pusher for ten.
const overdue = 15 * time.Minute

// checkUnsettled looks for pushkeys that no host settles.
func (c *checking) checkUnsettled(ctx context.Context) error {
	late, err := c.index.Postponed(ctx, time.Now().Add(-overdue), 1<<20)
	if err != nil || len(late) == 0 {
		return err
	}
	return c.count(ctx, []finding{{
		kind: unsettledPushkeys, name: c.keys.Unsettled(), detail: fmt.Sprintf("%d, the oldest of %s", len(late), timeOf(late[0].Claim)),
	}})
}

// tell writes the report; the error says whether there are faults.
func (c *checking) tell() error {
	var err error
	if c.json {
		err = writeJSON(c.out, c.report)
	} else {
		err = c.report.write(c.out, c.servers.String())
	}
	if err == nil && len(c.report.Faults) > 0 {
		err = errFaults
	}
	return err
}

// write writes the report as tables.
func (r report) write(w io.Writer, where string) error {
	fmt.Fprintf(w, "%s\n\n", where)
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	for _, row := range []struct {
		n    int64
		what string
	}{
		{r.Keys, "keys"}, {r.Events, "users with push rules"}, {r.Rules, "rules"}, {r.Hashes, "users with a pusher hash"},
		{r.Pushers, "pushers"}, {r.Claims, "pushkeys in the index"},
	} {
		fmt.Fprintf(table, "%d\t %s\n", row.n, row.what)
	}
	if err := table.Flush(); err != nil {
		return err
	}
	return r.writeFaults(w)
}

func (r report) writeFaults(w io.Writer) error {
	if len(r.Faults) == 0 {
		_, err := fmt.Fprintln(w, "\nNo faults.")
		return err
	}
	fmt.Fprintln(w)
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintf(table, "FAULT\tNUMBER\tREMEDY\n")
	for _, row := range faultKinds() {
		if n := r.Faults[row.kind]; n > 0 {
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
