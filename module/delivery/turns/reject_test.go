package turns

import (
	"fmt"
	"testing"
	"time"
)

// answered counts an answer for a user.
func (w *world) answered(user, gate string, isRejected bool) (stopped bool) {
	turn := w.must(user, gate)
	if isRejected {
		stopped, _ = w.Reject(w.now, turn)
	}
	w.end(turn, Taken)
	return stopped
}

func TestRejectionsCountUsers(t *testing.T) {
	for _, test := range []struct {
		name                      string
		before, users, rejections int // users with success before, users with rejections, rejections of each
		stopped                   bool
	}{
		{"100 of three users", 0, 3, 34, false},
		{"five stale phones of a quiet app", 30, 5, 1, false},
		{"five users", 0, 5, 1, true},
		{"many users", 100, 60, 1, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			w := newWorld(t)
			for n := range test.before {
				w.answered(fmt.Sprint("taken", n), "g", false)
			}
			w.pass(time.Minute)
			stopped := false
			for range test.rejections {
				for n := range test.users {
					stopped = w.answered(fmt.Sprint("rejected", n), "g", true)
				}
			}
			if stopped != test.stopped || (w.Stats().Stopped == 1) != test.stopped {
				t.Errorf("removals are stopped: %v, want %v", stopped, test.stopped)
			}
		})
	}
}

func TestRejectionsAreForgotten(t *testing.T) {
	w := newWorld(t)
	for n := range 5 {
		w.answered(fmt.Sprint("u", n), "g", true)
	}
	w.pass(rejectWindow)
	w.answered("u", "g", false)
	if w.Stats().Stopped != 1 {
		t.Error("forgotten too early")
	}
	w.pass(rejectWindow)
	w.answered("u", "g", false)
	if w.Stats().Stopped != 0 {
		t.Error("removals are stopped after a window without rejections")
	}
	w.pass(2 * rejectWindow)
	w.answered("u", "other", false)
	if len(w.gates) != 1 {
		t.Errorf("%d gates are kept", len(w.gates))
	}
}
