package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/pushfx/pushfx/module/fault"
	"github.com/pushfx/pushfx/module/pushrule"
)

var repairCommand = command{
	name:    "repair",
	summary: "repairs the problems that check finds",
	about: "Repairs the problems of check where no choice of a user is lost. Without -yes it shows what it would\n" +
		"do. Unreadable values are saved in a file, which holds pushkeys. With -reset-damaged they are then\n" +
		"replaced: push rules by the default rules, a pusher by none, which its device sets again. Exit status\n" +
		"1: problems are left.",
	flags: func(f *flags) {
		f.addDefaultRules()
		f.addDurability()
		f.addRate()
		f.addJSON()
		f.BoolVar(&f.yes, "yes", false, "make the repairs")
		f.BoolVar(&f.list, "list", false, "list each problem with its outcome")
		f.BoolVar(&f.resetDamaged, "reset-damaged", false, "replace unreadable values, after saving them")
		f.StringVar(&f.save, "save", "", "`FILE` for unreadable values (default pushctl-damaged-TIME.jsonl.gz)")
	},
	run: (*call).repair,
}

type repairer struct {
	*call
	report *report

	mu       sync.Mutex
	repaired map[string]int64 // number of repaired problems; without -yes, of repairable ones
	saved    *archive         // created with the first unreadable value
}

func (c *call) repair(ctx context.Context) error {
	r := &repairer{call: c, report: newReport(), repaired: map[string]int64{}}
	err := r.findProblems(ctx, &r.report.tally, func(ctx context.Context, found []problem) error {
		return parallel(ctx, found, r.handle)
	})
	if r.saved != nil {
		err = errors.Join(err, r.saved.end())
	}
	if errors.Is(err, errNoKeys) {
		return err
	}
	return errors.Join(err, r.write(err))
}

// handle counts a problem and, with -yes, repairs it.
func (r *repairer) handle(ctx context.Context, p problem) error {
	left := r.reasonToLeave(p)
	if r.yes && p.damaged != nil {
		if err := r.saveDamaged(*p.damaged); err != nil {
			return err
		}
	}
	if left == nil && r.yes {
		left = p.repair(ctx)
	}
	if left != nil && !isRefusal(left) {
		return fmt.Errorf("repair of %s: %w", printable(p.subject), left)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.report.count(p.kind)
	outcome := "repaired"
	switch {
	case left != nil:
		outcome = "left, " + left.Error()
	case !r.yes:
		outcome = "would be repaired"
	}
	if left == nil {
		r.repaired[p.kind.name]++
	}
	if !r.list {
		return nil
	}
	listed := listedOutcome{Outcome: outcome, Problem: p.kind.name, Name: p.subject, Detail: p.detail}
	return r.writeLine(listed, append([]string{outcome}, p.cells()...)...)
}

// reasonToLeave returns the reason why a problem cannot be repaired, or nil.
func (r *repairer) reasonToLeave(p problem) error {
	switch {
	case p.refusal != nil:
		return p.refusal
	case p.repair == nil:
		return errByHand
	case p.remedy == byReset && !r.resetDamaged:
		return errDamaged
	}
	return nil
}

// isRefusal reports whether an error only tells why a problem stays. Any other error ends the command.
func isRefusal(err error) bool {
	reasons := []error{errByHand, errChanged, errDamaged, pushrule.ErrDuplicatesDiffer, pushrule.ErrForeignDefault, pushrule.ErrFeatureOff}
	return isRefused(err) || slices.ContainsFunc(reasons, func(reason error) bool { return errors.Is(err, reason) })
}

// isRefused reports whether a store or service refused a call. Otherwise the call failed.
func isRefused(err error) bool {
	kind := fault.KindOf(err)
	return err != nil && kind != fault.Internal && kind != fault.Unavailable
}

// isUnreadable reports whether stored data is damaged, or of another version.
func isUnreadable(err error) bool { return fault.KindOf(err) == fault.Database }

func (r *repairer) saveDamaged(damaged record) (err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.saved == nil {
		if r.save == "" {
			r.save = "pushctl-damaged-" + time.Now().UTC().Format("20060102T150405Z") + ".jsonl.gz"
		}
		if r.saved, err = createArchive(r.save, r.backend); err != nil {
			return fmt.Errorf("-save: %w", err)
		}
	}
	return errors.Join(r.saved.add(damaged), r.saved.sync())
}

type repairReport struct {
	Changed  bool                      `json:"changed"` // with -yes
	Problems map[string]repairedNumber `json:"problems"`
	Saved    string                    `json:"saved,omitempty"` // the file with unreadable values
}

type repairedNumber struct {
	Found    int64 `json:"found"`
	Repaired int64 `json:"repaired"` // without -yes: what can be repaired
	Left     int64 `json:"left"`
}

// write writes the result, even if the repair failed. It returns errProblems if problems remain.
func (r *repairer) write(failed error) error {
	report, isLeft := repairReport{Changed: r.yes, Problems: map[string]repairedNumber{}}, false
	for name, found := range r.report.Problems {
		n := repairedNumber{found, r.repaired[name], found - r.repaired[name]}
		report.Problems[name] = n
		isLeft = isLeft || n.Left > 0 || !r.yes
	}
	if r.saved != nil {
		report.Saved = r.save
	}
	if len(report.Problems) == 0 && failed != nil {
		return nil // the rest was not examined
	}
	return r.result(report, func(w io.Writer) error { return r.writeText(w, report) }, failed == nil && isLeft)
}

func (r *repairer) writeText(w io.Writer, report repairReport) error {
	if len(report.Problems) == 0 {
		_, err := fmt.Fprintln(w, "No problems.")
		return err
	}
	title := "REPAIRED"
	if !r.yes {
		title = "WOULD BE REPAIRED"
	}
	var rows [][]string
	for _, name := range slices.Sorted(maps.Keys(report.Problems)) {
		n := report.Problems[name]
		rows = append(rows, []string{name, fmt.Sprint(n.Found), fmt.Sprint(n.Repaired), fmt.Sprint(n.Left), r.nextStep(name, n.Left)})
	}
	err := writeTable(w, []string{"PROBLEM", "NUMBER", title, "LEFT", "WHAT TO DO"}, rows)
	if err == nil && report.Saved != "" {
		_, err = fmt.Fprintf(w, "\nUnreadable values are saved in %s, which holds pushkeys.\n", report.Saved)
	}
	return err
}

// nextStep tells an operator what to do about the remaining problems of a kind.
func (r *repairer) nextStep(name string, left int64) string {
	remedy := r.report.remedies[name]
	switch {
	case left == 0 && r.yes:
		return ""
	case left == 0 || remedy == byReset && !r.resetDamaged:
		return strings.Replace(remedy, "repair", "repair -yes", 1)
	case remedy == byRepair || remedy == byReset:
		return "-list says why"
	case remedy == byHand:
		return byHand + ", -list names them"
	}
	return remedy
}
