package delivery

import (
	"context"
	"errors"
	"maps"
	"time"

	"github.com/pushfx/pushfx/module"
)

const (
	// savedAhead is how many requests may have been answered without the queue
	// knowing, beside those that are under way. It bounds what is sent twice when
	// this host dies.
	savedAhead = 64

	// saveEvery is the time between checkpoints, unless half of what may be unsaved
	// is before. The more a checkpoint keeps, the less each request costs the queue.
	saveEvery = 20 * time.Millisecond

	// maxRecords is how many records of pushers in trouble are written at once,
	// about.
	maxRecords = 2000
)

// saves are the checkpoints of all shards, which are made together. Each shard has
// one under way at a time, but the others do not wait for it.
type saves struct {
	next  []*shard // of which there is something new
	last  time.Time
	alarm bool

	unsaved  int // requests that were answered, as the queue does not know yet
	underWay int // those of them that a checkpoint is to keep which is under way
}

func (c *saves) add(sh *shard) {
	if !sh.toSave {
		sh.toSave = true
		c.next = append(c.next, sh)
	}
}

// forget is for a shard that is not ours any more.
func (c *saves) forget(sh *shard) {
	c.unsaved -= sh.unsaved + sh.beingSaved
	c.underWay -= sh.beingSaved
}

// save has the queue keep what was achieved since the last checkpoints.
func (s *sender) save() {
	c := &s.saves
	if len(c.next) == 0 || c.alarm && !s.isMuchUnsaved() {
		return
	}
	if wait := saveEvery - time.Since(c.last); wait > 0 && !s.isMuchUnsaved() {
		c.alarm = true
		s.after(wait, func() { c.alarm = false })
		return
	}
	c.last = time.Now()
	progress, saved := map[int]module.Progress{}, []savedShard{}
	for records := 0; len(c.next) > 0 && records < maxRecords; {
		sh := c.next[0]
		c.next[0] = nil
		c.next = c.next[1:]
		sh.toSave = false
		if sh.lost || !sh.lease.isSafe() {
			continue
		}
		one := savedShard{shard: sh, records: map[*fifo]bool{}}
		p := sh.progress(one.records)
		one.done = p.Done
		progress[sh.n] = p
		records += len(one.records)
		saved = append(saved, one)
	}
	if len(saved) == 0 {
		return
	}
	s.bounded(func(ctx context.Context) func() {
		errs := s.queue.Checkpoint(ctx, progress)
		return func() {
			for _, one := range saved {
				err, found := errs[one.shard.n]
				if !found {
					err = errNoResult
				}
				one.shard.saved(one, err)
			}
		}
	})
}

// isMuchUnsaved reports whether half of what may be unsaved is, and not under way.
func (s *sender) isMuchUnsaved() bool {
	return 2*(s.saves.unsaved-s.saves.underWay) >= s.cfg.MaxInFlight+savedAhead-s.inFlight()
}

// errNoResult is for a shard or user about whom nothing was returned.
var errNoResult = errors.New("delivery: no result")

// savedShard is a shard whose checkpoint is under way, with the pushers whose
// records it changes.
type savedShard struct {
	*shard
	records map[*fifo]bool
	done    []string // entries
}

// progress is for the next checkpoint, which is under way from now on. If the last
// one failed, nobody knows what of it was kept: so this one has all that it had.
func (sh *shard) progress(saved map[*fifo]bool) module.Progress {
	records := map[string][]byte{}
	for f := range sh.dirty {
		if len(saved) == maxBatch && !sh.again {
			break
		}
		delete(sh.dirty, f)
		saved[f] = true
		f.write(records)
	}
	sh.advance()
	sh.endFlushes()
	p := module.Progress{Epoch: sh.epoch, Done: sh.done, Finished: sh.finished(), Held: records}
	if len(sh.dirty) == 0 { // the queue gets an answer with all that was done, or later
		p.Answers = maps.Clone(sh.answers)
	}
	sh.done, sh.again = nil, false
	sh.changed, sh.saving = len(sh.dirty) > 0, true
	sh.beingSaved, sh.unsaved = sh.unsaved, 0
	sh.s.saves.underWay += sh.beingSaved
	return p
}

// finished is what is done of the open entries, nil if the queue keeps the same.
func (sh *shard) finished() []byte {
	if !sh.partly {
		return nil
	}
	all := appendFinished(sh.evicted, sh.flushes, sh.entries)
	if len(all) == 0 && !sh.partlyKept {
		all = nil
	}
	sh.partly, sh.partlyKept = false, len(all) > 0
	return all
}

// saved takes in what became of a checkpoint.
func (sh *shard) saved(s savedShard, err error) {
	sh.saving = false
	for f := range s.records {
		f.writing = false
	}
	switch {
	case sh.lost:
	case errors.Is(err, module.ErrFenced):
		sh.s.forget(sh)
	case err != nil:
		sh.s.failed("checkpoint", err)
		for f := range s.records {
			f.stored = true // perhaps
			f.touchRecord()
		}
		sh.done = append(sh.done, s.done...)
		sh.again, sh.partly, sh.partlyKept = true, true, true
		sh.unsaved += sh.endSave()
		sh.saving = true // until it is tried again
		sh.s.after(retryQueue, func() {
			sh.saving = false
			sh.change()
		})
	default:
		sh.s.saves.unsaved -= sh.endSave()
		sh.s.askDenied()
		for f := range s.records {
			f.settle()
		}
		sh.touch()
	}
}

// endSave returns how many requests the checkpoint was to keep that has ended.
func (sh *shard) endSave() int {
	n := sh.beingSaved
	sh.beingSaved = 0
	sh.s.saves.underWay -= n
	return n
}
