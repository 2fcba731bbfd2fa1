package partition

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
	"github.com/pushfx/pushfx/module/retry"
)

// world has three parts. The users of a part have its number at their end.
type world struct {
	mu    sync.Mutex
	fails [3]bool
	calls [3]int
}

func (w *world) groups(_ context.Context, users []mxid.UserID) [][]mxid.UserID {
	groups := make([][]mxid.UserID, 3)
	for _, user := range users {
		groups[numberOf(user)] = append(groups[numberOf(user)], user)
	}
	return slices.DeleteFunc(groups, func(g []mxid.UserID) bool { return len(g) == 0 })
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

// do takes a second, so that both chunks of a part have begun when the first one fails.
func (w *world) do(ctx context.Context, chunk []mxid.UserID) (answered bool) {
	part := numberOf(chunk[0])
	w.mu.Lock()
	w.calls[part]++
	w.mu.Unlock()
	time.Sleep(time.Second)
	return !w.fails[part] && retry.LeavesSilent(ctx)
}

func TestPartsAreCalledSideBySide(t *testing.T) {
	two := Size{Chunk: 2, AtOnce: 2}
	for name, test := range map[string]struct {
		users []mxid.UserID
		fails [3]bool
		calls [3]int
		took  time.Duration
		left  []mxid.UserID
	}{
		"nobody":         {},
		"one":            {users(1, 1), [3]bool{}, [3]int{0, 1, 0}, time.Second, nil},
		"one, away":      {users(1, 1), [3]bool{1: true}, [3]int{0, 1, 0}, time.Second, nil},
		"a part":         {users(9, 1), [3]bool{}, [3]int{0, 5, 0}, 3 * time.Second, nil},
		"all parts":      {users(8, 0, 1, 2), [3]bool{}, [3]int{4, 4, 4}, 2 * time.Second, nil},
		"a part is away": {users(8, 0, 1), [3]bool{1: true}, [3]int{4, 2, 0}, 2 * time.Second, users(8, 1)[4:]},
	} {
		synctest.Test(t, func(t *testing.T) {
			w, began := &world{fails: test.fails}, time.Now()
			left := Do(t.Context(), w.groups, test.users, two, w.do)
			if took := time.Since(began); !slices.Equal(left, test.left) || took != test.took || w.calls != test.calls {
				t.Errorf("%s: left are %v after %v and %v calls, want %v after %v and %v calls", name, left, took, w.calls, test.left, test.took, test.calls)
			}
		})
	}
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
