package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"sync"
	"text/tabwriter"
	"time"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/pusher"
	"github.com/pushfx/pushfx/module/pushrule"
	"github.com/pushfx/pushfx/rulestore"
)

func repairCommand() command {
	return command{
		name:    "repair",
		summary: "repairs the faults that check finds",
		about: "Finds what check finds and repairs what can be repaired without losing what a user chose. Without\n" +
			"-yes it only tells what it would do. What cannot be read is first written to a file, which holds\n" +
			"pushkeys and is for its owner's eyes; it is replaced only with -reset-damaged: push rules by the\n" +
			"default ones, a pusher by none, which its device sets again. Exit status 1 says that faults are left.",
		flags: func(o *options, flags *flag.FlagSet) {
			o.addWalk(flags)
			o.addState(flags)
			o.addDefaultRules(flags)
			o.addDurability(flags)
			flags.BoolVar(&o.yes, "yes", false, "repair; without it nothing is changed")
			flags.BoolVar(&o.list, "list", false, "list each fault with what became of it")
			flags.BoolVar(&o.resetDamaged, "reset-damaged", false, "replace what cannot be read, after it was saved")
			flags.StringVar(&o.save, "save", "", "`FILE` for what cannot be read (default pushctl-damaged-TIME.jsonl)")
		},
		run: func(ctx context.Context, c *call) error { return c.repair(ctx) },
	}
}

// repairing repairs what a check finds.
type repairing struct {
	*checking
	table defaultTable
	saved *savedFile

	mu     sync.Mutex
	report repairReport
}

// repairReport is what a repair comes to.
type repairReport struct {
	Check    *report             `json:"check"`
	Repaired map[faultKind]int64 `json:"repaired"`
}

// The reasons for which a fault is left.
var (
	errByHand  = errors.New("for somebody to look at")
	errChanged = errors.New("it has changed meanwhile")
	errDamaged = errors.New("cannot be read; -reset-damaged replaces it")
)

func (c *call) repair(ctx context.Context) error {
	k := newChecking(c, "looked at")
	r := &repairing{checking: k, table: newDefaultTable(c.defaults), report: repairReport{k.report, map[faultKind]int64{}}}
	k.found = r.found
	place, err := newPosition(c.state, c.stateName("repair", fmt.Sprintf("yes %t, reset-damaged %t", c.yes, c.resetDamaged)), &r.report)
	if err != nil {
		return fmt.Errorf("-state: %w", err)
	}
	r.saved = &savedFile{backend: c.backend, name: c.save}
	err = k.walk(ctx, place)
	if isNothingFound(err) {
		return err
	}
	if err == nil && c.yes {
		err = r.settlePushkeys(ctx)
	}
	return errors.Join(err, r.saved.close(), r.tell(err))
}

// workers is how many changes are made at a time.
const workers = 16

// found repairs what was found.
func (r *repairing) found(ctx context.Context, all []finding) error {
	return atATime(ctx, workers, all, func(ctx context.Context, f finding) error {
		repaired := false
		err := r.wouldRepair(f)
		if err == nil && r.yes {
			err = r.repair(ctx, f)
			repaired = err == nil
		}
		if err != nil && !isRefusal(err) {
			return fmt.Errorf("repair of %s: %w", printable(f.name), err)
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		if repaired || err == nil {
			r.report.Repaired[f.kind]++
		}
		if r.list {
			fmt.Fprintf(r.out, "%s\t%s\t%s\t%s\n", r.outcome(err), f.kind, printable(f.name), printable(f.detail))
		}
		return nil
	})
}

// outcome is a word for a list.
func (r *repairing) outcome(err error) string {
	switch {
	case err != nil:
		return "left, " + err.Error()
	case r.yes:
		return "repaired"
	}
	return "would be repaired"
}

// isRefusal reports whether an error says why a fault is left.
func isRefusal(err error) bool {
	if isRefused(err) {
		return true
	}
	for _, reason := range []error{errByHand, errChanged, errDamaged, pushrule.ErrTwinsDiffer, pushrule.ErrForeignDefault} {
		if errors.Is(err, reason) {
			return true
		}
	}
	return false
}

// wouldRepair returns why a fault is left. What cannot be read is saved.
func (r *repairing) wouldRepair(f finding) error {
	switch f.kind {
	case unreadableEvent, unreadablePushers:
		if r.yes {
			if err := r.saved.add(f); err != nil {
				return err
			}
		}
		if !r.resetDamaged {
			return errDamaged
		}
		return nil
	case unreadableClaims, emptyEvent, pusherNoClaim, pusherUnknown, pusherTooMany, claimGivenUp, unsettledPushkeys:
		return nil
	case wrongType, misplacedKey, unknownKey:
		return errByHand
	}
	e, err := r.events.Read(f.text)
	if err != nil {
		return err
	}
	return e.Rules.Mend(r.table.For(f.user))
}

// repair makes good what was found, if it is still so.
func (r *repairing) repair(ctx context.Context, f finding) error {
	switch f.kind {
	case unreadableEvent:
		defaults := r.table.For(f.user)
		return ifDone(r.rules.Replace(ctx, f.user, &f.text, rulestore.EventOf(defaults)))
	case unreadablePushers:
		left := maps.Clone(f.hash.fields)
		for _, field := range f.hash.Unreadable {
			delete(left, field)
		}
		return ifDone(r.pushers.Replace(ctx, f.user, f.hash.fields, left))
	case emptyEvent:
		return r.host.EnsureDefaults(ctx, f.user)
	case pusherNoClaim:
		return module.GiveClaim(ctx, r.pushers, r.index, f.user, f.pusher)
	case pusherUnknown:
		return r.makeKnown(ctx, f)
	case pusherTooMany:
		return r.index.Postpone(ctx, module.Unsettled{Key: f.digest, Claim: f.claim.Claim})
	case unreadableClaims:
		return ifDone(r.index.Reset(ctx, f.digest, f.text))
	case claimGivenUp:
		return module.ReleaseClaims(ctx, r.index, f.digest, []pusher.Owner{f.claim})
	case unsettledPushkeys:
		return nil // settled at the end
	}
	return r.mend(ctx, f)
}

// mend brings a set of rules in order. What is wrong with it may be counted as
// several faults; the first one to be repaired repairs all.
func (r *repairing) mend(ctx context.Context, f finding) error {
	_, err := r.rules.Update(ctx, f.user, func(rules *pushrule.Ruleset, found bool) error {
		if !found {
			return errChanged
		}
		return rules.Mend(r.table.For(f.user))
	})
	return err
}

// makeKnown has the index know of a pusher.
func (r *repairing) makeKnown(ctx context.Context, f finding) error {
	if f.text != "" { // of claims that cannot be read
		if _, err := r.index.Reset(ctx, f.digest, f.text); err != nil {
			return err
		}
	}
	err := module.RestoreClaim(ctx, r.index, f.digest, f.claim)
	if errors.Is(err, module.ErrClaimTaken) {
		return module.GiveClaim(ctx, r.pushers, r.index, f.user, f.pusher)
	}
	return err
}

func ifDone(done bool, err error) error {
	if err == nil && !done {
		return errChanged
	}
	return err
}

// settlePushkeys does what the hosts do every half minute, until nothing is
// overdue or nothing more can be done.
func (r *repairing) settlePushkeys(ctx context.Context) error {
	for before := 1 << 20; ; {
		if err := r.host.SettlePushkeys(ctx); err != nil {
			return err
		}
		late, err := r.index.Postponed(ctx, time.Now().Add(-overdue), 1<<20)
		if err != nil || len(late) == 0 || len(late) == before {
			return err
		}
		before = len(late)
	}
}

// tell writes the report, also of a repair that was not finished.
func (r *repairing) tell(failed error) error {
	table := tabwriter.NewWriter(r.out, 0, 0, 2, ' ', 0)
	title := "WOULD BE REPAIRED"
	if r.yes {
		title = "REPAIRED"
	}
	fmt.Fprintf(table, "FAULT\tNUMBER\t%s\tLEFT\n", title)
	left := int64(0)
	for _, row := range faultKinds() {
		n, repaired := r.report.Check.Faults[row.kind], r.report.Repaired[row.kind]
		if n > 0 {
			fmt.Fprintf(table, "%s\t%d\t%d\t%d\n", row.kind, n, repaired, n-repaired)
		}
		if left += n; r.yes {
			left -= repaired
		}
	}
	if len(r.report.Check.Faults) == 0 {
		fmt.Fprintln(r.out, "No faults.")
	} else if err := table.Flush(); err != nil {
		return err
	}
	if r.saved.records > 0 {
		fmt.Fprintf(r.out, "\nWhat could not be read is in %s. It holds pushkeys.\n", r.saved.name)
	}
	if failed == nil && left > 0 {
		return errFaults
	}
	return nil
}

// savedFile keeps what cannot be read, as an archive, which is made when there is
// something to save.
type savedFile struct {
	*backend
	name    string
	mu      sync.Mutex
	file    *os.File
	archive *archiveWriter
	records int64
}

// add saves what was found. It is on disk when add returns.
func (s *savedFile) add(f finding) error {
	r := record{user: f.user, fields: f.hash.fields}
	if f.kind == unreadableEvent {
		r = record{user: f.user, event: &f.text}
	}
	var text bytes.Buffer
	if err := r.appendLine(&text); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.open(); err != nil {
		return err
	}
	s.records++
	return errors.Join(s.archive.write(text.Bytes(), 1), s.file.Sync())
}

func (s *savedFile) open() (err error) {
	if s.file != nil {
		return nil
	}
	if s.name == "" {
		s.name = "pushctl-damaged-" + time.Now().UTC().Format("20060102T150405Z") + ".jsonl"
	}
	if s.file, err = os.OpenFile(s.name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600); err != nil {
		return fmt.Errorf("-save: %w", err)
	}
	s.archive, err = newArchive(s.file, s.backend)
	return err
}

func (s *savedFile) close() error {
	if s.file == nil {
		return nil
	}
	return errors.Join(s.archive.end(), s.file.Close())
}
