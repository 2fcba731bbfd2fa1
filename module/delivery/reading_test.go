package delivery

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/delivery/queuetest"
	"github.com/pushfx/pushfx/module/fault"
	"github.com/pushfx/pushfx/module/feed"
	"github.com/pushfx/pushfx/module/match"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/observe"
	"github.com/pushfx/pushfx/module/pushrule"
)

// countedRules counts what is read of a store. Before a read returns, it calls each.
type countedRules struct {
	*ruleStore
	each func(users []mxid.UserID)

	mu      sync.Mutex
	now     int // users whose rules are being read
	most    int
	single  int // calls for one user
	read    int // users
	largest int // call
}

func (c *countedRules) Rulesets(ctx context.Context, users []mxid.UserID) map[mxid.UserID]module.Result[module.Content] {
	c.mu.Lock()
	if c.now, c.read = c.now+len(users), c.read+len(users); len(users) == 1 {
		c.single++
	}
	c.most, c.largest = max(c.most, c.now), max(c.largest, len(users))
	c.mu.Unlock()
	if c.each != nil {
		c.each(users)
	}
	c.mu.Lock()
	c.now -= len(users)
	c.mu.Unlock()
	return c.ruleStore.Rulesets(ctx, users)
}

// withReads is withAudience with counted reads.
func withReads(t *testing.T, test func(t *testing.T, c *countedRules, a *audience)) {
	t.Helper()
	withAudience(t, func(t *testing.T, s *ruleStore, a *audience) {
		c := &countedRules{ruleStore: s}
		a.host = c
		test(t, c, a)
	})
}

// setLarge gives a user keywords of about this many bytes, the last of which is hi.
func (s *ruleStore) setLarge(t *testing.T, user mxid.UserID, bytes int) {
	t.Helper()
	var text strings.Builder
	for i := 0; text.Len() < bytes; i++ {
		fmt.Fprintf(&text, `{"rule_id":"r%d","default":false,"enabled":true,"pattern":"%s-%d","actions":[]},`, i, user, i)
	}
	set, err := pushrule.Read(`{"content":[` + text.String() + `{"rule_id":"last","default":false,"enabled":true,"pattern":"hi","actions":["notify"]}]}`)
	if err != nil {
		t.Fatal(err)
	}
	s.sets[user] = set
}

func membersNamed(format string, n int) []match.Member {
	members := make([]match.Member, n)
	for i := range members {
		members[i].User = mxid.UserID(fmt.Sprintf(format, i))
	}
	return members
}

// liveBytes returns the bytes of the heap that are in use.
func liveBytes() int {
	runtime.GC()
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return int(stats.HeapAlloc)
}

// Compiled, the sets take more than 80 MB.
func TestMemoryOfEventsDoesNotGrowWithTheRulesOfTheirMembers(t *testing.T) {
	if testing.Short() {
		t.Skip("collects garbage all the time")
	}
	const users, size, most = 60, 200 << 10, 40 << 20
	s := newRuleStore()
	members := membersNamed("@large%d:h", users)
	for _, m := range members {
		s.setLarge(t, m.User, size)
	}
	cfg := feed.DefaultConfig()
	cfg.MaxCachedRules = 1 << 20
	f, err := feed.New(module.Stores{Rules: s}, cfg, nil, feed.Listeners{})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go f.Run(ctx)
	c := &countedRules{ruleStore: s}
	a := newAudience(f, c, queuetest.NewMemory().Partition, observe.None)
	before, peak := liveBytes(), 0
	for range 2 {
		c.read, c.largest = 0, 0
		var deciding sync.WaitGroup
		decisions := make([]module.Decisions, 2)
		for i := range decisions {
			deciding.Go(func() {
				var err error
				if decisions[i], err = a.decide(ctx, hi, members); err != nil {
					t.Error(err)
				}
			})
		}
		decided := make(chan struct{})
		go func() {
			deciding.Wait()
			close(decided)
		}()
		for isDone := false; !isDone; isDone = isClosed(decided) {
			peak = max(peak, liveBytes()-before)
		}
		peak = max(peak, liveBytes()-before)
		for _, d := range decisions {
			if len(d) != users || !d[0].Result.Notify() || !d[users-1].Result.Notify() {
				t.Fatalf("got %d decisions: %+v", len(d), d)
			}
		}
	}
	if peak > most {
		t.Errorf("events take %d bytes, want at most %d", peak, most)
	}
	if c.largest != 1 {
		t.Errorf("rules that are known to be large are read %d at once", c.largest)
	}
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

func TestRulesOfFewUsersAreReadAtOnce(t *testing.T) {
	withReads(t, func(t *testing.T, c *countedRules, a *audience) {
		c.each = func([]mxid.UserID) { time.Sleep(time.Second) }
		var deciding sync.WaitGroup
		for room := range 10 {
			deciding.Go(func() {
				members := membersNamed(fmt.Sprintf("@room%d-%%d:h", room), 200)
				if decisions, err := a.decide(t.Context(), hi, members); err != nil || len(decisions) != 200 || !decisions[199].Result.Notify() {
					t.Errorf("got %d decisions, %v", len(decisions), err)
				}
			})
		}
		deciding.Wait()
		if c.most > readsAtOnce || c.most < readsAtOnce*3/4 || c.read != 2000 {
			t.Errorf("%d of %d users are read at once, want at most %d of 2000", c.most, c.read, readsAtOnce)
		}
	})
}

// While a large set is being read, other events need it. Each reads a small set with it first.
func TestLargeSetsDelayEachOtherAlone(t *testing.T) {
	withReads(t, func(t *testing.T, c *countedRules, a *audience) {
		c.setLarge(t, "@large:h", largeSet+1)
		c.setLarge(t, "@small:h", largeSet-1000)
		if got := notifies(t, a, "@kept:h"); got != "[@kept:h]" {
			t.Fatal(got)
		}
		gate := make(chan struct{})
		c.each = func(users []mxid.UserID) {
			if len(users) == 1 && users[0] == "@large:h" {
				<-gate
			}
		}
		decide := func(ctx context.Context, event int) (module.Decisions, error) {
			return a.decide(ctx, hi, []match.Member{{User: "@large:h"}, {User: mxid.UserID(fmt.Sprintf("@other%d:h", event))}})
		}
		var deciding sync.WaitGroup
		for event := range 20 {
			deciding.Go(func() {
				decisions, err := decide(t.Context(), event)
				if err != nil || !decisions[0].Result.Notify() || !decisions[1].Result.Notify() {
					t.Errorf("got %+v, %v", decisions, err)
				}
			})
		}
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		decisions, err := a.decide(ctx, hi, []match.Member{{User: "@kept:h"}, {User: "@small:h"}, {User: "@new:h"}})
		if err != nil || len(decisions) != 3 || !decisions[1].Result.Notify() {
			t.Errorf("without large sets: got %+v, %v", decisions, err)
		}
		if _, err := decide(ctx, 20); fault.KindOf(err) != fault.Unavailable || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("after its deadline: got %v", err)
		}
		single := c.single
		close(gate)
		deciding.Wait()
		if places := max(1, runtime.GOMAXPROCS(0)/2); c.single > single || single > 2+places {
			t.Errorf("%d single reads, then %d", single, c.single)
		}
	})
}
