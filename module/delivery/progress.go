package delivery

import (
	"slices"
	"time"
)

// openEntry is an entry of a shard's log of which something is left to do. It
// knows for which of its recipients nothing is left: those are done whose pushers
// were all sent the notification, or hold it, or have dropped it.
type openEntry struct {
	position string
	added    time.Time
	*entryReader
	done []byte // a bit for each recipient
	left int    // recipients who are not done

	// parts are the recipients with several pushers, and those that a former owner
	// has served in part.
	parts map[int]*part
}

// part says which of a recipient's pushers are done.
type part struct {
	left int      // pushers, as far as they are known; -1 before they are
	done []uint64 // digests
}

func newOpenEntry(position string, r *entryReader) *openEntry {
	return &openEntry{position: position, entryReader: r, done: make([]byte, (r.total+7)/8), left: r.total}
}

func (e *openEntry) isDone(i int) bool { return e.done[i/8]&(1<<(i%8)) != 0 }

// finish says that nothing is left to do for a recipient.
func (e *openEntry) finish(i int) {
	if !e.isDone(i) {
		e.done[i/8] |= 1 << (i % 8)
		e.left--
	}
	delete(e.parts, i)
}

// expect says how many pushers a recipient has, beside those that are done.
func (e *openEntry) expect(i, pushers int) {
	p := e.parts[i]
	switch {
	case pushers == 0:
		e.finish(i)
	case p != nil:
		p.left = pushers
	case pushers > 1:
		if e.parts == nil {
			e.parts = map[int]*part{}
		}
		e.parts[i] = &part{left: pushers}
	}
}

// isDoneFor reports whether a former owner has done one of a recipient's pushers.
func (e *openEntry) isDoneFor(i int, id pusherID) bool {
	p := e.parts[i]
	return p != nil && slices.Contains(p.done, id.short())
}

// finishFor says that nothing is left to do for one of a recipient's pushers.
func (e *openEntry) finishFor(i int, id pusherID) {
	p := e.parts[i]
	if p == nil || p.left <= 1 {
		e.finish(i)
		return
	}
	p.left--
	p.done = append(p.done, id.short())
}

// withFlushes is the first byte of what is finished, in the place of wireVersion, if
// flushes are among it.
const withFlushes = 2

// appendFinished returns what is done of the open entries, how many entries the log
// is known to have evicted, and what is to be dropped of those that are to be read,
// for [module.Progress].
func appendFinished(evicted int64, flushes []flush, entries []*openEntry) []byte {
	var dst []byte
	for _, e := range entries {
		if e.left == e.total && len(e.parts) == 0 {
			continue
		}
		dst = appendText(dst, e.position)
		dst = appendText(dst, string(e.done))
		dst = appendNumber(dst, int64(e.countParts()))
		for i, p := range e.parts {
			if len(p.done) == 0 {
				continue
			}
			dst = appendNumber(appendNumber(dst, int64(i)), int64(len(p.done)))
			for _, id := range p.done {
				dst = appendNumber(dst, int64(id))
			}
		}
	}
	if len(flushes) > 0 {
		return append(appendFlushes(appendNumber([]byte{withFlushes}, evicted), flushes), dst...)
	}
	if len(dst) == 0 && evicted == 0 {
		return nil
	}
	return append(appendNumber([]byte{wireVersion}, evicted), dst...)
}

func (e *openEntry) countParts() (n int) {
	for _, p := range e.parts {
		if len(p.done) > 0 {
			n++
		}
	}
	return n
}

// finished is what is done of an entry, as a former owner has kept it.
type finished struct {
	done  string
	parts map[int]*part
}

// readFinished reads what was appended; what is done by position.
func readFinished(data []byte) (evicted int64, flushes []flush, all map[string]finished, err error) {
	if len(data) == 0 {
		return 0, nil, nil, nil
	}
	all, r := map[string]finished{}, wireReader{rest: string(data)}
	version := r.byte()
	if version != wireVersion && version != withFlushes {
		return 0, nil, nil, errGarbled
	}
	evicted = r.number()
	if version == withFlushes {
		flushes = r.flushes()
	}
	for r.rest != "" {
		position, f := r.text(), finished{done: r.text(), parts: map[int]*part{}}
		for range r.count() {
			p := &part{left: -1}
			i := int(r.number())
			for range r.count() {
				p.done = append(p.done, uint64(r.number()))
			}
			f.parts[i] = p
		}
		all[position] = f
	}
	if r.garbled {
		return 0, nil, nil, errGarbled
	}
	return evicted, flushes, all, nil
}

// resume takes over what a former owner has done of the entry.
func (e *openEntry) resume(f finished) {
	for i := range e.total {
		if i/8 < len(f.done) && f.done[i/8]&(1<<(i%8)) != 0 {
			e.finish(i)
		}
	}
	for i, p := range f.parts {
		if i >= 0 && i < e.total && !e.isDone(i) {
			if e.parts == nil {
				e.parts = map[int]*part{}
			}
			e.parts[i] = p
		}
	}
}
