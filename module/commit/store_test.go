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

type outcome int

const (
	works       outcome = iota
	losesRace           // another writer comes first
	losesReply          // the write takes effect, its reply is lost
	losesSend           // the request is lost
	comesLate           // the request arrives during the next read, its reply is lost
	comesAfter          // the request arrives right after the next read
	noDial              // no connection
	isRefused           // the store replies with an error
	failsToRead         // the read before the write fails
)

var (
	errLost   = fault.Wrap(fault.Unavailable, "unavailable", &net.OpError{Op: "read", Err: io.ErrUnexpectedEOF})
	errNoDial = fault.Wrap(fault.Unavailable, "unavailable", fmt.Errorf("redis: %w", &net.OpError{Op: "dial", Err: io.EOF}))
	errAnswer = io.ErrClosedPipe
)

// words is a list of words, comparable with ==.
type words struct{ list string }

func (w words) has(word string) bool { return slices.Contains(strings.Fields(w.list), word) }

var (
	errThere    = fault.New(fault.InvalidParam, "it is there")
	errNotThere = fault.New(fault.NotFound, "it is not there")
)

// add and remove are edits that fail when they are repeated.
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

// store is one key in memory. It applies outcomes to its first writes; later writes all
// work.
type store struct {
	mu       sync.Mutex
	outcomes []outcome

	value    words
	revision stored.Revision
	reads    int
	writes   int
	others   int // number of writes by others
	late     func()
	after    func()
	meet     chan struct{} // if not nil, each write waits for it
}

func (s *store) read(ctx context.Context, _ string) (Snapshot[words, *store], error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reads++
	if s.next() == failsToRead {
		s.outcomes = s.outcomes[1:]
		return Snapshot[words, *store]{}, errLost
	}
	run(&s.late)
	snapshot := s.snapshot()
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

func (s *store) byOther(edit func(*words) error) {
	if edit(&s.value) == nil {
		s.others++
		s.revision = s.revision.Next(s.revision.Version+1, stored.Write{Writer: "OTHER", Attempt: int64(s.others)})
	}
}

// snapshot returns the current words. Raw is the store itself.
func (s *store) snapshot() Snapshot[words, *store] {
	return Snapshot[words, *store]{Value: s.value, Revision: s.revision, Raw: s}
}

func (s *store) isStored(got Snapshot[words, *store]) bool {
	return got.Value == s.value && got.Revision.Equal(s.revision)
}

// access writes to the store that the snapshot names.
func access(read func(context.Context, string) (Snapshot[words, *store], error)) Access[words, *store] {
	same := func(old Snapshot[words, *store], next words) bool { return old.Value == next }
	return Access[words, *store]{Read: read, Same: same, Write: write}
}

func write(ctx context.Context, u Update[words, *store]) (now Snapshot[words, *store], done bool, err error) {
	s := u.Old.Raw
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
		if s.value == u.Old.Value && s.revision.Equal(u.Old.Revision) {
			s.value, s.revision = u.Next, u.Revision
		}
	}
	switch happens {
	case losesSend:
		return now, false, errLost
	case losesReply:
		apply()
		return now, false, errLost
	case comesLate:
		s.late = apply
		return now, false, errLost
	case comesAfter:
		s.after = apply
		return now, false, errLost
	case noDial:
		return now, false, errNoDial
	case isRefused:
		return now, false, errAnswer
	case losesRace:
		s.byOther(add(fmt.Sprint("other", s.others)))
	}
	apply()
	return s.snapshot(), s.revision.Equal(u.Revision), ctx.Err()
}

func isError(err, want error) bool {
	if want == nil {
		return err == nil
	}
	return errors.Is(err, want)
}
