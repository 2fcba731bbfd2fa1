package parts

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/fault"
	"github.com/pushfx/pushfx/module/mxid"
)

// world has three parts. The users of a part have its number at their end.
type world struct {
	*testing.T
	*Parts
	mu    sync.Mutex
	takes [3]time.Duration // a call
	fails [3]bool
	calls [3]int
}

func inBubble(t *testing.T, slow time.Duration, test func(*world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := &world{T: t}
		w.Parts = New(func(_ context.Context, users []mxid.UserID) (groups [][]mxid.UserID) {
			groups = make([][]mxid.UserID, 3)
			for _, user := range users {
				groups[numberOf(user)] = append(groups[numberOf(user)], user)
			}
			return slices.DeleteFunc(groups, func(g []mxid.UserID) bool { return len(g) == 0 })
		}, slow)
		test(w)
		w.Wait()
	})
}

func numberOf(user mxid.UserID) int { return int(user[len(user)-1] - '0') }

func users(n int, parts ...int) (all []mxid.UserID) {
	for i := range n {
		for _, part := range parts {
			all = append(all, mxid.UserID(fmt.Sprintf("@%d:x%d", i, part)))
		}
	}
	return all
}

func (w *world) do(_ context.Context, chunk []mxid.UserID) bool {
	part := numberOf(chunk[0])
	w.mu.Lock()
	w.calls[part]++
	takes, fails := w.takes[part], w.fails[part]
	w.mu.Unlock()
	time.Sleep(takes)
	return !fails
}

// call checks who is left, how long the call takes, and how many calls a part gets.
func (w *world) call(what string, all, left []mxid.UserID, took time.Duration, calls [3]int) {
	w.Helper()
	w.mu.Lock()
	w.calls = [3]int{}
	w.mu.Unlock()
	began := time.Now()
	got := w.Do(w.Context(), all, Size{Chunk: 2, AtOnce: 2}, w.do)
	w.mu.Lock()
	defer w.mu.Unlock()
	if slices.Sort(got); !slices.Equal(got, left) || time.Since(began).Round(checkEvery) != took || w.calls != calls {
		w.Errorf("%s: left are %v after %v and %v calls, want %v after %v and %v calls", what, got, time.Since(began), w.calls, left, took, calls)
	}
}

func TestPartsThatAnswer(t *testing.T) {
	inBubble(t, 0, func(w *world) {
		w.call("nobody", nil, nil, 0, [3]int{})
		w.call("one", users(1, 1), nil, 0, [3]int{0, 1, 0})
		w.call("a part", users(9, 1), nil, 0, [3]int{0, 5, 0})
		w.takes = [3]time.Duration{0, 100 * time.Millisecond, 3 * time.Second}
		w.call("a slow part alone", users(2, 2), nil, 3*time.Second, [3]int{0, 0, 1})
		w.takes[2] = 900 * time.Millisecond // for each of two chunks side by side
		w.call("all", users(8, 0, 1, 2), nil, 1800*time.Millisecond, [3]int{4, 4, 4})
	})
}

func TestAPartWhoseCallsFail(t *testing.T) {
	inBubble(t, 0, func(w *world) {
		w.fails[1] = true
		w.takes[1] = 10 * time.Millisecond
		w.call("all", users(8, 0, 1), users(8, 1)[4:], 0, [3]int{4, 2, 0})
		w.call("again", users(8, 0, 1), users(8, 1)[4:], 0, [3]int{4, 2, 0})
		w.call("alone", users(8, 1), users(8, 1)[4:], 0, [3]int{0, 2, 0})
	})
}

func TestAPartThatHangs(t *testing.T) {
	inBubble(t, 0, func(w *world) {
		w.takes[1], w.fails[1] = 5*time.Second, true
		w.call("not known yet", users(8, 0, 1, 2), users(8, 1), patience, [3]int{4, 2, 4})
		w.call("known", users(8, 0, 1, 2), users(8, 1), 0, [3]int{4, 0, 4})
		w.call("one user", users(1, 1), users(1, 1), 0, [3]int{})
		w.call("another one", []mxid.UserID{"@other:x1"}, []mxid.UserID{"@other:x1"}, 0, [3]int{})
		w.call("a user elsewhere", users(1, 2), nil, 0, [3]int{0, 0, 1})
		time.Sleep(5 * time.Second) // the first call has ended
		w.call("a probe", users(8, 1), users(8, 1), probeFor, [3]int{0, 2, 0})
		w.call("after the probe", users(8, 0, 1), users(8, 1), 0, [3]int{4, 0, 0})
		w.fails[1] = false
		time.Sleep(5 * time.Second) // the probe fails
		w.call("a probe that is answered late", users(2, 1), users(2, 1), probeFor, [3]int{0, 1, 0})
		w.takes[1] = 0
		time.Sleep(5 * time.Second)
		w.call("it is back", users(8, 0, 1), nil, 0, [3]int{4, 4, 0})
		if len(w.silent) > 0 {
			t.Error("it is not forgotten")
		}
	})
}

// A call of a part that waits for replicas is no silence.
func TestAPartThatIsSlowByIntent(t *testing.T) {
	inBubble(t, time.Second, func(w *world) {
		w.takes[1] = patience + time.Second - checkEvery
		w.call("slow", users(2, 0, 1), nil, w.takes[1], [3]int{1, 1, 0})
		w.takes[0], w.takes[1] = 2*time.Second, 4*time.Second // twice as slow as the other
		w.call("all are slow", users(2, 0, 1), nil, w.takes[1], [3]int{1, 1, 0})
	})
}

func TestLoadReturnsWhatCameInTime(t *testing.T) {
	inBubble(t, 0, func(w *world) {
		w.takes[1] = time.Hour
		got := Load(t.Context(), w.Parts, users(8, 0, 1), Size{Chunk: 2, AtOnce: 2}, func(ctx context.Context, chunk []mxid.UserID) map[mxid.UserID]mxid.UserID {
			w.do(ctx, chunk)
			loaded := map[mxid.UserID]mxid.UserID{}
			for _, user := range chunk {
				loaded[user] = user
			}
			return loaded
		}, func(user mxid.UserID) bool { return user != "" })
		if len(got) != 8 || got["@7:x0"] != "@7:x0" {
			t.Errorf("got %v", got)
		}
	})
}

func TestLeftHasAReasonOfEachKind(t *testing.T) {
	var l Left
	l.Add(errors.New("nobody"))
	if err := l.Err(); err != nil {
		t.Error(err)
	}
	unconfirmed := module.Unavailable(fmt.Errorf("%w: no replica", fault.ErrNotConfirmed))
	l.Add(errors.New("plain"), "@b:x")
	l.Add(unconfirmed, "@c:x", "@a:x")
	l.Add(unconfirmed, "@d:x")
	l.Add(module.Unavailable(nil), "@e:x", "@b:x")
	got := new(module.LeftError)
	if err := l.Err(); !errors.As(err, &got) || len(got.Reasons) != 2 || fault.KindOf(err) != fault.Unavailable ||
		fmt.Sprint(got.Users) != "[@a:x @b:x @c:x @d:x @e:x]" {
		t.Errorf("got %+v", got)
	}
}
