package delivery

import (
	"context"
	"time"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/mxid"
)

const (
	// readAhead is how many notifications of a shard's log are in memory at a time,
	// about, and readEntries how many entries are read at once.
	readAhead   = 1000
	readEntries = 32

	retryQueue = 200 * time.Millisecond // after the queue has failed
)

// shard is a part of the queue that this host owns.
type shard struct {
	s      *sender
	n      int
	epoch  int64
	lease  lease
	ctx    context.Context // of requests for it
	cancel context.CancelFunc

	restored bool // what former owners have kept is known
	leaving  bool // nothing more is sent; it is given back
	lost     bool // it is no longer ours, and what is under way is ignored
	touched  bool

	read     string // position of the last entry that was read
	more     bool   // there may be entries behind read
	last     string // position of the last entry of the log, as of the lease's renewal
	checked  string // one that was last, when there was nothing to read behind read
	evicted  int64  // entries that the log has dropped, as far as that was counted
	reading  bool
	entries  []*openEntry        // in their order, of which the first is not finished
	expanded int                 // entries of which all recipients were taken
	open     int                 // recipients who were taken and are not finished
	resumed  map[string]finished // of entries that are not read yet

	users map[mxid.UserID]*user // for whom there is something to do
	dirty map[*fifo]bool        // whose record is to be written

	parked []*fifo // which wait for the lease to be renewed

	answers map[string][]byte // to instructions; see follow
	flushes []flush           // of what is still to be read

	changed, saving bool
	done            []string // positions of entries that are finished since the last checkpoint
	partly          bool     // so are recipients of others, or what is to be flushed has changed
	partlyKept      bool     // the queue keeps recipients of entries that are finished
	again           bool     // the last checkpoint failed
	toSave          bool     // among those whose checkpoints are the next
	unsaved         int      // requests that were answered since the last checkpoint
	beingSaved      int      // and before it, as long as it is under way
	inFlight        int
}

// own begins to work on a shard.
func (s *sender) own(n int, epoch int64, until time.Time) {
	sh := &shard{s: s, n: n, epoch: epoch, users: map[mxid.UserID]*user{}, dirty: map[*fifo]bool{}}
	sh.lease.extend(until)
	sh.ctx, sh.cancel = context.WithCancel(s.ctx)
	s.shards[n] = sh
	s.hinted[n].Store(notHinted)
	s.takeovers++
	sh.restore()
}

// forget ends the work on a shard that is not ours any more, or may soon not be.
func (s *sender) forget(sh *shard) {
	sh.lost = true
	sh.cancel()
	delete(s.shards, sh.n)
	s.hinted[sh.n].Store(notOurs)
	s.saves.forget(sh)
	for _, u := range sh.users {
		for _, f := range u.fifos {
			f.setBytes(0)
			f.setFailed(false)
		}
	}
	s.endIfIdle()
}

// restore reads what former owners have kept.
func (sh *shard) restore() {
	sh.s.bounded(func(ctx context.Context) func() {
		kept, err := sh.s.queue.Restore(ctx, sh.n)
		return func() {
			switch {
			case sh.lost:
			case err != nil:
				sh.s.failed("restore", err)
				sh.s.after(retryQueue, func() {
					if !sh.lost {
						sh.restore()
					}
				})
			default:
				sh.resume(kept)
			}
		}
	})
}

func (sh *shard) resume(kept module.Checkpointed) {
	sh.restored, sh.more, sh.partlyKept = true, true, len(kept.Finished) > 0
	evicted, flushes, resumed, err := readFinished(kept.Finished)
	if err != nil { // then some are sent again
		sh.s.failed("restore progress", err)
	}
	sh.evicted, sh.flushes, sh.resumed = evicted, flushes, resumed
	for id, data := range kept.Held {
		h, err := readRecord(data)
		if err != nil {
			sh.s.failed("restore a pusher", err)
			sh.s.drop(DropUnreadable, 1)
			continue
		}
		sh.user(h.user).restoreFIFO(pusherID(id), h, len(data))
	}
	sh.touch()
}

// touch has the shard looked at in this step.
func (sh *shard) touch() {
	if !sh.touched && !sh.lost {
		sh.touched = true
		sh.s.touched = append(sh.s.touched, sh)
	}
}

// step does what can be done now, beside sending.
func (sh *shard) step() {
	if sh.lost || !sh.restored {
		if sh.leaving && !sh.lost {
			sh.s.lose(sh)
		}
		return
	}
	if !sh.leaving {
		sh.expand()
		if sh.more && !sh.reading && sh.open < readAhead && sh.expanded == len(sh.entries) {
			sh.readOn()
		}
	}
	if sh.changed && !sh.saving {
		sh.s.saves.add(sh)
	}
	if sh.leaving && sh.inFlight == 0 && !sh.saving && !sh.changed {
		sh.s.lose(sh)
	}
}

// leave has the shard given back when what is under way has ended, or has taken
// too long.
func (sh *shard) leave() {
	if sh.leaving {
		return
	}
	sh.leaving = true
	sh.s.after(sh.s.cfg.DrainTimeout, sh.cancel)
	sh.touch()
}

// canSend reports whether something may be sent to the shard's users.
func (sh *shard) canSend() bool { return !sh.lost && !sh.leaving && sh.lease.isSafe() }

// readOn reads the next entries of the log.
func (sh *shard) readOn() {
	sh.reading, sh.more = true, false
	after, last := sh.read, sh.last
	sh.s.bounded(func(ctx context.Context) func() {
		entries, err := sh.s.queue.Read(ctx, sh.n, after, readEntries)
		return func() {
			if sh.lost {
				return
			}
			if err != nil {
				sh.s.failed("read", err)
				sh.s.after(retryQueue, func() {
					sh.reading, sh.more = false, true
					sh.touch()
				})
				return
			}
			sh.reading = false
			sh.more = sh.more || len(entries) == readEntries
			if len(entries) == 0 {
				sh.check(after, last)
			}
			sh.take(entries)
			sh.touch()
		}
	})
}

// check is called when there was nothing to read after a position, though the log had
// another last entry. Mostly that one is open, or was dropped since. But it may stand
// before what was read, unknown to this host: if that is gone with a former master of
// Redis, whose clock was ahead, or which answered once more when it had been replaced.
// So the log is read from its beginning as soon as nothing of it is open.
func (sh *shard) check(after, last string) {
	switch {
	case after == "" || last == "" || last == after || last == sh.checked:
		sh.checked = last
	case len(sh.entries) == 0 && len(sh.done) == 0 && !sh.saving:
		sh.read, sh.more = "", true
	}
}

// take takes in entries of the log.
func (sh *shard) take(entries []module.LogEntry) {
	for _, entry := range entries {
		sh.read = entry.Position
		r, err := readEntry(entry.Data)
		if err != nil {
			sh.s.failed("read an entry", err)
			sh.s.drop(DropUnreadable, 1)
			r = &entryReader{}
		}
		e := newOpenEntry(entry.Position, r)
		e.added = entry.Added
		if f, found := sh.resumed[e.position]; found {
			e.resume(f)
			delete(sh.resumed, e.position)
		}
		if e.left == 0 {
			sh.done = append(sh.done, e.position)
			sh.change()
		}
		sh.entries = append(sh.entries, e)
	}
	sh.advance()
}

// expand takes recipients of the entries that were read.
func (sh *shard) expand() {
	for sh.expanded < len(sh.entries) && sh.open < readAhead {
		e := sh.entries[sh.expanded]
		if e.next == e.total {
			sh.expanded++
			continue
		}
		place := e.next
		r := e.entryReader.read()
		if e.isDone(place) {
			continue
		}
		sh.open++
		sh.user(r.user).arrive(&notification{
			event: e.event, outcome: e.outcomes[r.outcome], added: e.added, entry: e, place: place,
		})
	}
	sh.advance()
}

// finish says that nothing is left to do in the log for a pusher's notification.
func (sh *shard) finish(n *notification, id pusherID) {
	if n.entry == nil {
		return
	}
	e, before := n.entry, n.entry.left
	e.finishFor(n.place, id)
	n.entry = nil
	sh.progressed(e, before)
}

// expect says to how many pushers a recipient's notification goes.
func (sh *shard) expect(n *notification, pushers int) {
	before := n.entry.left
	n.entry.expect(n.place, pushers)
	if n.entry.left != before {
		sh.progressed(n.entry, before)
	}
}

// progressed is called when less is left to do for an entry than before.
func (sh *shard) progressed(e *openEntry, before int) {
	sh.open -= before - e.left
	if e.left == 0 && before > 0 {
		sh.done = append(sh.done, e.position)
	}
	sh.partly = sh.partly || e.left > 0 || sh.partlyKept
	sh.change()
	sh.advance()
}

// advance drops the entries at the front that are finished.
func (sh *shard) advance() {
	for len(sh.entries) > 0 && sh.entries[0].left == 0 {
		sh.entries[0] = nil
		sh.entries = sh.entries[1:]
		sh.expanded = max(0, sh.expanded-1)
	}
}

// change has the next checkpoint made.
func (sh *shard) change() {
	sh.changed = true
	sh.touch()
}

// renewed is for a lease that goes on.
func (sh *shard) renewed(l module.Lease) {
	sh.more = sh.more || l.Last != "" && l.Last != sh.read && l.Last != sh.checked
	sh.last = l.Last
	if lost := l.Evicted - sh.evicted; lost > 0 && sh.restored {
		sh.s.drop(DropEvicted, int(lost))
		sh.evicted, sh.partly = l.Evicted, true
		sh.change()
	}
	sh.follow(l.Instructions)
	parked := sh.parked
	sh.parked = nil
	for _, f := range parked {
		if f.state == fifoParked {
			f.next()
		}
	}
	sh.touch()
}
