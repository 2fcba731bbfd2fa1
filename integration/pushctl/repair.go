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
	"github.com/pushfx/pushfx/module/fault"
	"github.com/pushfx/pushfx/module/pusher"
	"github.com/pushfx/pushfx/module/pushrule"
	"github.com/pushfx/pushfx/module/stored"
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
		flags: func(o *options, flags *flag.FlagSet) {
			o.addScan(flags)
			o.addState(flags)
			o.addDefaultRules(flags)
			o.addDurability(flags)
			flags.BoolVar(&o.yes, "yes", false, "repair; without it nothing is changed")
			flags.BoolVar(&o.list, "list", false, "list each problem with what became of it")
			flags.BoolVar(&o.resetDamaged, "reset-damaged", false, "replace what cannot be read, after it was saved")
			flags.StringVar(&o.save, "save", "", "`FILE` for what cannot be read (default pushctl-damaged-TIME.jsonl)")
		},
		run: func(ctx context.Context, c *call) error { return c.repair(ctx) },
	}
}

// repairer repairs what a check finds.
type repairer struct {
	*call
	saved  *savedFile
	report repairReport
}

// repairReport is what a repair comes to.
type repairReport struct {
	Check    *report               `json:"check"`
	Repaired map[problemKind]int64 `json:"repaired"` // or would be, without -yes
}

// The reasons for which a problem is left.
var (
	errByHand  = errors.New("for somebody to look at")
	errChanged = errors.New("it has changed meanwhile")
	errDamaged = errors.New("cannot be read; -reset-damaged replaces it")
)

func (c *call) repair(ctx context.Context) error {
	r := &repairer{call: c, saved: &savedFile{backend: c.backend, name: c.save}, report: repairReport{newReport(), map[problemKind]int64{}}}
	from, err := newPosition(c.state, c.stateName("repair", fmt.Sprintf("yes %t, reset-damaged %t", c.yes, c.resetDamaged)), &r.report)
	if err != nil {
		return fmt.Errorf("-state: %w", err)
	}
	err = c.findProblems(ctx, c.newScanner("examined", from), &r.report.Check.tally, r.handle)
	if isNothingFound(err) {
		return err
	}
	if err == nil && c.yes {
		err = r.settlePushkeys(ctx)
	}
	return errors.Join(err, r.saved.close(), r.write(err))
}

// handled is a problem with what became of it.
type handled struct {
	problem
	left error // why it is left; nil if it was repaired, or would be
}

// handle repairs problems. If that fails on the way, it counts those that were
// repaired: the others will be found again.
func (r *repairer) handle(ctx context.Context, found []problem) error {
	all, err := parallel(ctx, found, r.handleOne)
	for _, h := range all {
		if err != nil && (h.left != nil || !r.yes) {
			continue
		}
		r.report.Check.Problems[h.kind]++
		if h.left == nil {
			r.report.Repaired[h.kind]++
		}
		if r.list {
			fmt.Fprintf(r.out, "%s\t%s\t%s\t%s\n", r.outcome(h.left), h.kind, printable(h.name), printable(h.detail))
		}
	}
	return err
}

func (r *repairer) handleOne(ctx context.Context, p problem) (handled, error) {
	err := r.whyLeft(p)
	if err == nil && r.yes {
		err = r.repairOne(ctx, p)
	}
	if err != nil && !isRefusal(err) {
		return handled{}, fmt.Errorf("repair of %s: %w", printable(p.name), err)
	}
	return handled{p, err}, nil
}

// outcome is a word for a list.
func (r *repairer) outcome(left error) string {
	switch {
	case left != nil:
		return "left, " + left.Error()
	case r.yes:
		return "repaired"
	}
	return "would be repaired"
}

// isRefusal reports whether an error says why a problem is left.
func isRefusal(err error) bool {
	if isRefused(err) {
		return true
	}
	for _, reason := range []error{errByHand, errChanged, errDamaged, pushrule.ErrDuplicatesDiffer, pushrule.ErrForeignDefault} {
		if errors.Is(err, reason) {
			return true
		}
	}
	return false
}

// isRefused reports whether a store or service would not do something, as opposed
// to one that could not.
func isRefused(err error) bool {
	kind := fault.KindOf(err)
	return err != nil && kind != fault.Internal && kind != fault.Unavailable
}

// isDamaged reports whether stored data cannot be read.
func isDamaged(err error) bool { return fault.KindOf(err) == fault.Database }

// whyLeft returns why a problem is left, nil if it can be repaired. It saves what
// cannot be read.
func (r *repairer) whyLeft(p problem) error {
	switch p.kind {
	case unreadableEvent, unreadablePushers:
		if r.yes {
			if err := r.saved.add(p); err != nil {
				return err
			}
		}
		if !r.resetDamaged {
			return errDamaged
		}
		return nil
	case unreadableHeld: // of what is in it nothing is worth keeping: it cannot be brought back
		if !r.resetDamaged {
			return errDamaged
		}
		return nil
	case unreadableClaims, emptyEvent, pusherUnknown, pusherTooMany, claimGivenUp, unsettledPushkeys:
		return nil
	case wrongType, misplacedKey, unknownKey, unreadableFormat, unreadableEntry, unreadableGateway:
		return errByHand
	}
	e, err := stored.ReadEvent(p.text)
	if err != nil {
		return err
	}
	return e.Rules.Repair(r.defaults.For(p.user))
}

// repairOne makes good what was found, if it is still so.
func (r *repairer) repairOne(ctx context.Context, p problem) error {
	switch p.kind {
	case unreadableEvent:
		defaults := r.defaults.For(p.user)
		return ifDone(r.rules.Replace(ctx, p.user, &p.text, eventOf(defaults)))
	case unreadablePushers:
		left := maps.Clone(p.hash.fields)
		for _, field := range p.hash.Unreadable {
			delete(left, field)
		}
		return ifDone(r.pushers.Replace(ctx, p.user, p.hash.fields, left))
	case emptyEvent:
		return r.host.EnsureDefaults(ctx, p.user)
	case pusherUnknown:
		return r.record(ctx, p)
	case pusherTooMany:
		return r.index.Postpone(ctx, module.Unsettled{Key: p.digest, Claim: p.claim.Claim})
	case unreadableClaims:
		return ifDone(r.index.Reset(ctx, p.digest, p.text))
	case claimGivenUp:
		return r.repairs.Release(ctx, p.digest, []pusher.Owner{p.claim})
	case unreadableHeld:
		return ifDone(r.queue.RemoveHeld(ctx, p.shard, p.held, []byte(p.text)))
	case unsettledPushkeys:
		return nil // settled at the end
	}
	return r.repairRules(ctx, p)
}

// repairRules brings a set of rules in order. What is wrong with it may be counted as
// several problems; the first one to be repaired repairs all.
func (r *repairer) repairRules(ctx context.Context, p problem) error {
	_, err := r.rules.Update(ctx, p.user, func(rules *pushrule.Ruleset, found bool) error {
		if !found {
			return errChanged
		}
		return rules.Repair(r.defaults.For(p.user))
	})
	return err
}

// record has the index know a pusher. Claims that cannot be read are removed before.
func (r *repairer) record(ctx context.Context, p problem) error {
	if p.text != "" {
		if _, err := r.index.Reset(ctx, p.digest, p.text); err != nil {
			return err
		}
	}
	return r.repairs.Record(ctx, p.user, p.pusher)
}

// eventOf returns an event with rules as it is stored, without a revision.
func eventOf(rules pushrule.Ruleset) string {
	e := stored.Event{Rules: rules, Found: true}
	return e.Text(stored.Revision{})
}

func ifDone(done bool, err error) error {
	if err == nil && !done {
		return errChanged
	}
	return err
}

// settlePushkeys does what the hosts do every half minute, until nothing is
// overdue or nothing more can be done.
func (r *repairer) settlePushkeys(ctx context.Context) error {
	for before := 1 << 20; ; {
		if err := r.host.SettlePushkeys(ctx); err != nil {
			return err
		}
		late, err := r.index.Postponed(ctx, r.now().Add(-overdue), 1<<20)
		if err != nil || len(late) == 0 || len(late) == before {
			return err
		}
		before = len(late)
	}
}

// write writes the report, also of a repair that was not finished.
func (r *repairer) write(failed error) error {
	table := tabwriter.NewWriter(r.out, 0, 0, 2, ' ', 0)
	title := "WOULD BE REPAIRED"
	if r.yes {
		title = "REPAIRED"
	}
	fmt.Fprintf(table, "PROBLEM\tNUMBER\t%s\tLEFT\n", title)
	left := int64(0)
	for _, row := range problemKinds() {
		n, repaired := r.report.Check.Problems[row.kind], r.report.Repaired[row.kind]
		if n > 0 {
			fmt.Fprintf(table, "%s\t%d\t%d\t%d\n", row.kind, n, repaired, n-repaired)
		}
		if left += n; r.yes {
			left -= repaired
		}
	}
	if len(r.report.Check.Problems) == 0 {
		fmt.Fprintln(r.out, "No problems.")
	} else if err := table.Flush(); err != nil {
		return err
	}
	if r.saved.records > 0 {
		fmt.Fprintf(r.out, "\nWhat could not be read is in %s. It holds pushkeys.\n", r.saved.name)
	}
	if failed == nil && left > 0 {
		return errProblems
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
func (s *savedFile) add(p problem) error {
	r := record{user: p.user, fields: p.hash.fields}
	if p.kind == unreadableEvent {
		r = record{user: p.user, event: &p.text}
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
