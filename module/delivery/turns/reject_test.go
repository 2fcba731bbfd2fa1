package turns

import (
	"fmt"
	"slices"
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

// Five dead pushkeys of a quiet gate, which are tried again, are removed in time, four in a window. As long as others are
// rejected for the first time, none is.
func TestDeadPushkeysStopNoRemovals(t *testing.T) {
	for label, areMore := range map[string]bool{"five": false, "more and more": true} {
		t.Run(label, func(t *testing.T) {
			w := newWorld(t)
			dead := []string{"a", "b", "c", "d", "e", "f"}
			removed := map[time.Duration]int{}
			for minute := range 2 * time.Duration(60) {
				for _, user := range dead {
					if !w.answered(user, "g", true) {
						removed[minute*time.Minute/rejectWindow]++
						dead = slices.DeleteFunc(slices.Clone(dead), func(other string) bool { return other == user })
					}
				}
				if areMore {
					dead = append(dead, fmt.Sprint("new", minute))
				}
				w.pass(time.Minute)
			}
			total := 0
			for _, n := range removed {
				if total += n; n >= rejectUsers {
					t.Errorf("removed %v in a window", removed)
				}
			}
			if (total == 4) != areMore || !areMore && len(dead) > 0 {
				t.Errorf("removed %v", removed)
			}
		})
	}
}
