package delivery

import (
	"testing"
	"time"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/delivery/channel"
)

func TestWhatFollowsAFailure(t *testing.T) {
	t.Parallel()
	now := time.UnixMilli(5000)
	failed := failure{Answer: channel.Answer{Outcome: module.Failed, Status: 502, Class: channel.ClassStatus}, Of: 3, IsWell: true, Now: now}
	t.Run("refused", func(t *testing.T) {
		refused := failed
		refused.Outcome = module.Unfit
		got, next := trouble{}.after(refused)
		if next != stepAgain || !got.IDOnly {
			t.Errorf("got %v, %+v", next, got)
		}
		if _, next = got.after(refused); next != stepDrop {
			t.Errorf("a second time: got %v", next)
		}
	})
	for name, test := range map[string]struct {
		change func(*failure)
		ids    bool
	}{
		"failed":              {func(*failure) {}, true},
		"at a closed gate":    {func(f *failure) { f.IsWell = false }, false},
		"busy":                {func(f *failure) { f.Outcome = module.Busy }, false},
		"each time another":   {func(f *failure) { f.Of++ }, false},
		"asked to wait":       {func(f *failure) { f.Outcome = module.Throttled }, false},
		"an address is wrong": {func(f *failure) { f.Outcome = module.Blocked }, false},
	} {
		t.Run(name, func(t *testing.T) {
			f, got := failed, trouble{}
			for n := range 20 {
				var next step
				test.change(&f)
				if got, next = readTrouble(got.stored()).after(f); next != stepWait || got.IDOnly != (test.ids && n >= idsAfter-1) || got.Attempts != n+1 {
					t.Fatalf("after %d failures: got %v, %+v", n+1, next, got)
				}
			}
			if got.Since != 5000 || got.Last != 5000 || got.Status != 502 {
				t.Errorf("got %+v", got)
			}
		})
	}
}
