package commit

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"sync"

	"github.com/pushfx/pushfx/module/fault"
	"github.com/pushfx/pushfx/module/stored"
)

// What becomes of one write, or of one read.
type outcome int

const (
	works       outcome = iota
	losesRace           // another writer comes first
	losesReply          // the write takes effect, its reply is lost
	losesSend           // the request is lost
	comesLate           // the request comes during the next read, its reply is lost
	comesAfter          // the request comes right after the next read
	noDial              // there is no connection
	isRefused           // the store answers with an error
	failsToRead         // the read that comes before fails
)

var (
	errLost   = fault.Wrap(fault.Unavailable, "unavailable", &net.OpError{Op: "read", Err: io.ErrUnexpectedEOF})
	errNoDial = fault.Wrap(fault.Unavailable, "unavailable", fmt.Errorf("redis: %w", &net.OpError{Op: "dial", Err: io.EOF}))
	errAnswer = io.ErrClosedPipe
)

// words is the value of the tests: a list of words. It is a value.
type words struct{ list string }

func (w words) has(word string) bool { return slices.Contains(strings.Fields(w.list), word) }

var (
	errThere    = fault.New(fault.InvalidParam, "it is there")
	errNotThere = fault.New(fault.NotFound, "it is not there")
)

// add and remove are edits that can be told from their repetition.
func add(word string) func(*words) error {
	return func(w *words) error {
		if w.has(word) {
			return errThere
		}
		w.list = strings.TrimSpace(w.list + " " + word)
		return nil
	}
}

func remove(word string) func(*words) error {
	return func(w *words) error {
		if !w.has(word) {
			return errNotThere
		}
		list := strings.Fields(w.list)
		w.list = strings.Join(slices.DeleteFunc(list, func(s string) bool { return s == word }), " ")
		return nil
	}
}

// store is one key in memory. The outcomes are those of its writes in turn;
// then all of them work.
type store struct {
	mu       sync.Mutex
	outcomes []outcome

	value    words
	revision stored.Revision
	reads    int
	writes   int
	others   int // writes of others
	late     func()
	after    func()
	meet     chan struct{} // where not nil, each write waits for it
}

func (s *store) read(ctx context.Context, _ string) (Snapshot[words, replacement], error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reads++
	if s.next() == failsToRead {
		s.outcomes = s.outcomes[1:]
		return nil, errLost
	}
	run(&s.late)
	snapshot := state{s, s.value, s.revision}
	run(&s.after)
	return snapshot, ctx.Err()
}

func run(do *func()) {
	if *do != nil {
		(*do)()
		*do = nil
	}
}

func (s *store) next() outcome {
	if len(s.outcomes) == 0 {
		return works
	}
	return s.outcomes[0]
}

// byOther is the write of another writer.
func (s *store) byOther(edit func(*words) error) {
	if edit(&s.value) == nil {
		s.others++
		s.revision = s.revision.Next(s.revision.Version+1, stored.Write{Writer: "OTHER", Attempt: int64(s.others)})
	}
}

type state struct {
	store    *store
	value    words
	revision stored.Revision
}

func (s state) Value() words              { return s.value }
func (s state) Revision() stored.Revision { return s.revision }

func (s state) Change(next words) replacement { return replacement{s, next} }

type replacement struct {
	old  state
	next words
}

func (r replacement) IsEmpty() bool { return r.old.value == r.next }

// access is that to the stores of whatever is read.
func access(read func(context.Context, string) (Snapshot[words, replacement], error)) Access[words, replacement] {
	return Access[words, replacement]{Read: read, Write: write}
}

func write(ctx context.Context, _ string, r replacement, revision stored.Revision) (bool, error) {
	s := r.old.store
	if s.meet != nil {
		<-s.meet
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.writes++
	happens := s.next()
	if len(s.outcomes) > 0 {
		s.outcomes = s.outcomes[1:]
	}
	apply := func() {
		if s.value == r.old.value && s.revision.Equal(r.old.revision) {
			s.value, s.revision = r.next, revision
		}
	}
	switch happens {
	case losesSend:
		return false, errLost
	case losesReply:
		apply()
		return false, errLost
	case comesLate:
		s.late = apply
		return false, errLost
	case comesAfter:
		s.after = apply
		return false, errLost
	case noDial:
		return false, errNoDial
	case isRefused:
		return false, errAnswer
	case losesRace:
		s.byOther(add(fmt.Sprint("other", s.others)))
	}
	apply()
	return s.revision.Equal(revision), ctx.Err()
}

// isError reports whether err is want, or nil if that is wanted.
func isError(err, want error) bool {
	if want == nil {
		return err == nil
	}
	return errors.Is(err, want)
}
