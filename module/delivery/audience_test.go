package delivery

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/match"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/observe"
	"github.com/pushfx/pushfx/module/pushrule"
)

// ruleStore keeps watched rules.
type ruleStore struct {
	module.RuleStore
	module.HostService

	mu       sync.Mutex
	sets     map[mxid.UserID]pushrule.Ruleset
	versions map[mxid.UserID]int64
	changed  func(module.Change) // of the current watch
	broken   chan struct{}       // closed when the watch breaks
	mute     bool                // the watch reports no changes
	err      error
	reads    int           // of rules
	delay    time.Duration // after each read
}

func newRuleStore() *ruleStore {
	return &ruleStore{sets: map[mxid.UserID]pushrule.Ruleset{}, versions: map[mxid.UserID]int64{}, broken: make(chan struct{})}
}

// silence turns the notifications of a user off or on.
func (s *ruleStore) silence(user mxid.UserID, silent bool) {
	set := pushrule.ServerDefault(user)
	if err := set.SetEnabled(pushrule.Override, ".m.rule.master", silent); err != nil {
		panic(err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sets[user] = set
	s.versions[user]++
	if s.changed != nil && !s.mute {
		s.changed(module.Change{User: user, Version: s.versions[user]})
	}
}

func (s *ruleStore) Rulesets(_ context.Context, users []mxid.UserID) map[mxid.UserID]module.Result[pushrule.Ruleset] {
	all := map[mxid.UserID]module.Result[pushrule.Ruleset]{}
	s.mu.Lock()
	for _, user := range users {
		set, found := s.sets[user]
		if !found {
			set = pushrule.ServerDefault(user)
		}
		s.reads++
		all[user] = module.Result[pushrule.Ruleset]{Value: set, Err: s.err}
	}
	s.mu.Unlock()
	time.Sleep(s.delay)
	return all
}

func (s *ruleStore) Versions(_ context.Context, users []mxid.UserID) map[mxid.UserID]module.Result[int64] {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := map[mxid.UserID]module.Result[int64]{}
	for _, user := range users {
		all[user] = module.Result[int64]{Value: s.versions[user], Err: s.err}
	}
	return all
}

func (s *ruleStore) Watch(ctx context.Context, watching func(), changed func(module.Change)) error {
	s.mu.Lock()
	s.changed = changed
	broken := s.broken
	s.mu.Unlock()
	watching()
	var err error
	select {
	case <-ctx.Done():
		err = ctx.Err()
	case <-broken:
		err = errors.New("the watch is broken")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.changed = nil
	return err
}

func (s *ruleStore) breakWatch() {
	s.mu.Lock()
	defer s.mu.Unlock()
	close(s.broken)
	s.broken = make(chan struct{})
}

func (s *ruleStore) read() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.reads
}

func listening(t *testing.T, s *ruleStore, cfg Config) (a *audience, stop func()) {
	feed := newFeed(t, s)
	a = &audience{feed, s, match.NewCache(cfg.MaxCachedRules), observe.None}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		feed.Run(ctx)
	}()
	synctest.Wait()
	return a, func() {
		cancel()
		<-ended
	}
}

var hi = module.Event{JSON: `{"type":"m.room.message","sender":"@s:h","content":{"body":"hi"}}`, Room: match.Room{MemberCount: 3}}

// notifies returns the users that are notified of a message.
func notifies(t *testing.T, a *audience, users ...mxid.UserID) string {
	t.Helper()
	members := make([]match.Member, len(users))
	for i, user := range users {
		members[i].User = user
	}
	decisions, err := a.decide(t.Context(), hi, members)
	if err != nil {
		t.Fatal(err)
	}
	var notified []mxid.UserID
	for _, d := range decisions {
		if d.Result.Notify() {
			notified = append(notified, d.User)
		}
	}
	return fmt.Sprint(notified)
}

func TestRulesAreReadOnceUntilTheyChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newRuleStore()
		s.silence("@b:h", true)
		a, stop := listening(t, s, DefaultConfig())
		defer stop()
		for range 3 {
			if got := notifies(t, a, "@a:h", "@b:h", "@s:h"); got != "[@a:h]" {
				t.Errorf("got %s", got)
			}
		}
		if got := s.read(); got != 3 {
			t.Errorf("%d rules were read", got)
		}
		s.silence("@b:h", false)
		s.silence("@a:h", true)
		if got := notifies(t, a, "@a:h", "@b:h", "@s:h"); got != "[@b:h]" || s.read() != 5 {
			t.Errorf("got %s after %d were read", got, s.read())
		}
		time.Sleep(time.Hour)
		notifies(t, a, "@a:h", "@b:h", "@s:h")
		if got := s.read(); got != 5 {
			t.Errorf("%d rules were read", got)
		}
	})
}

// lookups counts cached rules and others.
type lookups struct {
	observe.Observer
	hits, misses int
}

func (l *lookups) Count(event observe.Event, _ string, n int) {
	switch event {
	case observe.RulesKept:
		l.hits += n
	case observe.RulesRead:
		l.misses += n
	}
}

func TestMembersOfALargeRoomHaveTheirRules(t *testing.T) {
	const count = 3*1024 + 10 // lookups have parts of 1,024
	synctest.Test(t, func(t *testing.T) {
		s, cache, counted := newRuleStore(), match.NewCache(1<<20), &lookups{}
		a, stop := listening(t, s, DefaultConfig())
		defer stop()
		a.observer = counted
		members := make([]match.Member, count)
		for i := range members {
			members[i].User = name(i)
			switch i % 4 {
			case 0: // has rules, unlike the stored ones
				members[i].Rules = cache.Rules(name(i), pushrule.ServerDefault(name(i)))
				s.silence(name(i), true)
			case 1:
				s.silence(name(i), true)
			}
		}
		for range 2 {
			var changing sync.WaitGroup
			changing.Go(func() { s.silence(name(1), true) })
			decisions, err := a.decide(t.Context(), hi, members)
			if err != nil {
				t.Fatal(err)
			}
			changing.Wait()
			for i, d := range decisions {
				if want := i%4 != 1; d.User != name(i) || d.Result.Notify() != want {
					t.Fatalf("member %d: %s, notified: %v, want %v", i, d.User, d.Result.Notify(), want)
				}
			}
		}
		const asked = count - count/4 - 1
		if counted.misses < asked || counted.misses > asked+1 || counted.hits+counted.misses != 2*asked {
			t.Errorf("%d hits and %d misses, want about %d of each", counted.hits, counted.misses, asked)
		}
	})
}

func TestAChangeThatTheWatchMissesIsFound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newRuleStore()
		a, stop := listening(t, s, DefaultConfig())
		defer stop()
		notifies(t, a, "@a:h")
		s.mute = true
		s.silence("@a:h", true)
		time.Sleep(90 * time.Second)
		if got := notifies(t, a, "@a:h"); got != "[]" {
			t.Errorf("got %s", got)
		}
	})
}

func TestRulesAreNotCachedWithoutAWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newRuleStore()
		a, stop := listening(t, s, DefaultConfig())
		defer stop()
		notifies(t, a, "@a:h")
		s.breakWatch()
		synctest.Wait()
		s.silence("@a:h", true) // without a report
		if got := notifies(t, a, "@a:h"); got != "[]" {
			t.Errorf("got %s", got)
		}
		before := s.read()
		notifies(t, a, "@a:h")
		if s.read() == before {
			t.Error("it was remembered")
		}
		time.Sleep(time.Minute) // a new watch
		notifies(t, a, "@a:h")
		before = s.read()
		notifies(t, a, "@a:h")
		if got := s.read() - before; got != 0 {
			t.Errorf("%d rules were read", got)
		}
	})
}

func TestAChangeDuringAReadIsNotMissed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newRuleStore()
		a, stop := listening(t, s, DefaultConfig())
		defer stop()
		s.delay = time.Second
		var reading sync.WaitGroup
		reading.Go(func() { notifies(t, a, "@a:h") })
		time.Sleep(time.Second / 2)
		s.silence("@a:h", true)
		reading.Wait()
		if got := notifies(t, a, "@a:h"); got != "[]" {
			t.Errorf("got %s", got)
		}
	})
}

func TestLargeRuleSetsDoNotEvictTheRulesOfOthers(t *testing.T) {
	const large, others = 40, 2000
	synctest.Test(t, func(t *testing.T) {
		s, cfg := newRuleStore(), DefaultConfig()
		cfg.MaxCachedRules = 2 << 20
		for i := range large + others {
			set := pushrule.ServerDefault(name(i))
			rules := 1
			if i < large {
				rules = 400
			}
			for r := range rules {
				if err := set.Put(pushrule.Content, fmt.Sprintf("%d-%d", i, r), pushrule.Draft{Pattern: fmt.Sprint(r, strings.Repeat("x", 100))}, pushrule.Position{}); err != nil {
					t.Fatal(err)
				}
			}
			if i < large || i%10 == 0 { // the rest have the default rules
				s.sets[name(i)] = set
			}
		}
		a, stop := listening(t, s, cfg)
		defer stop()
		var everybody []mxid.UserID
		for i := range large + others {
			everybody = append(everybody, name(i))
		}
		notifies(t, a, everybody...)
		for round := range 5 {
			before := s.read()
			notifies(t, a, everybody[:large]...)
			notifies(t, a, everybody[large:]...)
			if got := s.read() - before; got > large {
				t.Fatalf("round %d: the rules of %d users were read again, want %d at most", round, got, large)
			}
		}
	})
}

func TestDecideRefusesARoomWithoutJoinedMembers(t *testing.T) {
	const invite = `{"type":"m.room.member","state_key":"@a:h","sender":"@s:h","content":{"membership":"invite"}}`
	synctest.Test(t, func(t *testing.T) {
		a, stop := listening(t, newRuleStore(), DefaultConfig())
		defer stop()
		for name, test := range map[string]struct {
			event   string
			count   int
			members []match.Member
			refused bool
		}{
			"one":                            {hi.JSON, 1, []match.Member{{User: "@a:h"}}, false},
			"none":                           {hi.JSON, 0, []match.Member{{User: "@a:h"}}, true},
			"fewer than none":                {hi.JSON, -1, []match.Member{{User: "@a:h"}}, true},
			"none, and nobody to decide for": {hi.JSON, 0, nil, false},
			"an invite to an unknown room":   {invite, 0, []match.Member{{User: "@a:h"}}, false},
			"an invite of another user":      {invite, 0, []match.Member{{User: "@b:h"}}, true},
			"an invite with a joined member": {invite, 0, []match.Member{{User: "@b:h"}, {User: "@a:h"}}, true},
			"an invite of fewer than none":   {invite, -1, []match.Member{{User: "@a:h"}}, true},
			"a state event about the user":   {strings.Replace(invite, "m.room.member", "x", 1), 0, []match.Member{{User: "@a:h"}}, true},
		} {
			event := module.Event{JSON: test.event, Room: match.Room{MemberCount: test.count}}
			if _, err := a.decide(t.Context(), event, test.members); module.IsPermanent(err) != test.refused || !test.refused && err != nil {
				t.Errorf("%s: got %v", name, err)
			}
		}
	})
}

func TestDecideFailsIfRulesCannotBeRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newRuleStore()
		a, stop := listening(t, s, DefaultConfig())
		defer stop()
		s.err = module.Unavailable(errors.New("away"))
		if _, err := a.decide(t.Context(), hi, []match.Member{{User: "@a:h"}}); !errors.Is(err, s.err) {
			t.Errorf("got %v", err)
		}
		s.err = pushrule.Unreadable(errors.New("damaged"))
		if got := notifies(t, a, "@a:h"); got != "[]" {
			t.Errorf("got %s", got)
		}
		s.err = nil
		if got := notifies(t, a, "@a:h"); got != "[@a:h]" {
			t.Errorf("got %s", got)
		}
	})
}
