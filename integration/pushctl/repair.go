package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/pushfx/pushfx/module/fault"
	"github.com/pushfx/pushfx/module/pushrule"
)

func repairCommand() command {
	return command{
		name:    "repair",
		summary: "repairs the problems that check finds",
		about: "Finds what check finds and repairs what can be repaired without losing what a user chose. Without\n" +
			"-yes it only tells what it would do. What cannot be read is first written to a file, which holds\n" +
			"pushkeys and is for its owner's eyes; it is replaced only with -reset-damaged: push rules by the\n" +
			"default ones, a pusher by none, which its device sets again. What waits for a pusher in trouble and\n" +
			"cannot be read is dropped with it, without a file. Exit status 1 says that problems are left.",
		setup: func(f *flags) runner {
			f.addDefaultRules()
			f.addDurability()
			p, r := f.pace(), &repairer{report: newReport(), repaired: map[string]int64{}}
			f.BoolVar(&r.yes, "yes", false, "repair; without it nothing is changed")
			f.BoolVar(&r.list, "list", false, "list each problem with what became of it")
			f.BoolVar(&r.resetDamaged, "reset-damaged", false, "replace what cannot be read, after it was saved")
			f.StringVar(&r.save, "save", "", "`FILE` for what cannot be read (default pushctl-damaged-TIME.jsonl)")
			return func(ctx context.Context, c *call) error {
				r.call = c
				return r.run(ctx, p)
			}
		},
	}
}

// repairer repairs what a check finds.
type repairer struct {
	*call
	yes, list, resetDamaged bool
	save                    string

	report *report

	mu       sync.Mutex
	repaired map[string]int64 // or would be, without -yes
	saved    *archive         // made when there is something to save
}

func (r *repairer) run(ctx context.Context, p *pace) error {
	err := r.findProblems(ctx, p, &r.report.tally, func(ctx context.Context, found []problem) error {
		return parallel(ctx, found, r.handle)
	})
	if err == nil && r.yes {
		err = r.reconcilePushkeys(ctx) // some repairs leave it to that
	}
	if r.saved != nil {
		err = errors.Join(err, r.saved.end(), r.saved.file.Close())
	}
	if errors.Is(err, errNothing) {
		return err
	}
	return errors.Join(err, r.write(err))
}

// handle repairs a problem, or would without -yes, and counts it.
func (r *repairer) handle(ctx context.Context, p problem) error {
	left := r.whyLeft(p)
	if r.yes && p.saved != nil {
		if err := r.keep(*p.saved); err != nil {
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
	if r.list {
		_, err := fmt.Fprintf(r.out, "%s\t%s\n", outcome, p)
		return err
	}
	return nil
}

// whyLeft returns why a problem is left, nil if it can be repaired.
func (r *repairer) whyLeft(p problem) error {
	switch {
	case p.left != nil:
		return p.left
	case p.repair == nil:
		return errByHand
	case p.remedy == byReset && !r.resetDamaged:
		return errDamaged
	}
	return nil
}

// isRefusal reports whether an error says why a problem is left.
func isRefusal(err error) bool {
	reasons := []error{errByHand, errChanged, errDamaged, pushrule.ErrDuplicatesDiffer, pushrule.ErrForeignDefault}
	return isRefused(err) || slices.ContainsFunc(reasons, func(reason error) bool { return errors.Is(err, reason) })
}

// isRefused reports whether a store or service would not do something, as opposed
// to one that could not.
func isRefused(err error) bool {
	kind := fault.KindOf(err)
	return err != nil && kind != fault.Internal && kind != fault.Unavailable
}

// isDamaged reports whether stored data cannot be read.
func isDamaged(err error) bool { return fault.KindOf(err) == fault.Database }

// keep saves a record that cannot be read. It is on disk when keep returns.
func (r *repairer) keep(what record) (err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.saved == nil {
		if r.save == "" {
			r.save = "pushctl-damaged-" + time.Now().UTC().Format("20060102T150405Z") + ".jsonl"
		}
		if r.saved, err = createArchive(r.save, r.backend); err != nil {
			return fmt.Errorf("-save: %w", err)
		}
	}
	return errors.Join(r.saved.add(what), r.saved.sync())
}

// write writes what was done, also by a repair that was not finished; errProblems
// where a problem is left.
func (r *repairer) write(failed error) error {
	found := r.report.Problems
	if len(found) == 0 {
		_, err := fmt.Fprintln(r.out, "No problems.")
		return err
	}
	title, isLeft := "REPAIRED", false
	if !r.yes {
		title = "WOULD BE REPAIRED"
	}
	var rows [][]string
	for _, name := range slices.Sorted(maps.Keys(found)) {
		left := found[name] - r.repaired[name]
		isLeft = isLeft || left > 0 || !r.yes
		rows = append(rows, []string{name, fmt.Sprint(found[name]), fmt.Sprint(r.repaired[name]), fmt.Sprint(left), r.next(name, left)})
	}
	if err := writeTable(r.out, []string{"PROBLEM", "NUMBER", title, "LEFT", "WHAT TO DO"}, rows); err != nil {
		return err
	}
	if r.saved != nil {
		fmt.Fprintf(r.out, "\nWhat could not be read is in %s. It holds pushkeys.\n", r.save)
	}
	if failed == nil && isLeft {
		return errProblems
	}
	return nil
}

// next says what is to be done next about problems of a kind.
func (r *repairer) next(name string, left int64) string {
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
