package delivery

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/delivery/queuetest"
	"github.com/pushfx/pushfx/module/match"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/observe"
	"github.com/pushfx/pushfx/module/pushrule"
)

// ruleStore has the rules of users, which are watched, and by default those of the specification.
type ruleStore struct {
	module.RuleStore
	module.HostService

	mu       sync.Mutex
	sets     map[mxid.UserID]pushrule.Ruleset
	versions map[mxid.UserID]int64
	changed  func(module.Change) // of the watch
	err      error
}

func newRuleStore() *ruleStore {
	return &ruleStore{sets: map[mxid.UserID]pushrule.Ruleset{}, versions: map[mxid.UserID]int64{}}
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
	if s.changed != nil {
		s.changed(module.Change{User: user, Version: s.versions[user]})
	}
}

func (s *ruleStore) Rulesets(_ context.Context, users []mxid.UserID) map[mxid.UserID]module.Result[module.Content] {
	all := map[mxid.UserID]module.Result[module.Content]{}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, user := range users {
		set, found := s.sets[user]
		if !found {
			set = pushrule.ServerDefault(user)
			s.sets[user] = set
		}
		all[user] = module.Result[module.Content]{Value: module.Content{Rules: set, Version: s.versions[user]}, Err: s.err}
	}
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
	s.mu.Unlock()
	watching()
	<-ctx.Done()
	return ctx.Err()
}

// withAudience runs a test with a feed that watches the rules.
func withAudience(t *testing.T, test func(t *testing.T, s *ruleStore, a *audience)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := newRuleStore()
		feed := newFeed(t, s)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go feed.Run(ctx)
		synctest.Wait()
		test(t, s, newAudience(feed, s, queuetest.NewMemory().Partition, observe.None))
	})
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
	withAudience(t, func(t *testing.T, s *ruleStore, a *audience) {
		cache, counted := match.NewCache(1<<20), &lookups{}
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

func TestDecideRefusesARoomWithoutJoinedMembers(t *testing.T) {
	const invite = `{"type":"m.room.member","state_key":"@a:h","sender":"@s:h","content":{"membership":"invite"}}`
	withAudience(t, func(t *testing.T, _ *ruleStore, a *audience) {
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

// An event invites only the user that it names.
func TestDecideMarksInvites(t *testing.T) {
	const member = `{"type":"m.room.member","state_key":"@a:h","sender":"@s:h","content":{"membership":"invite"}}`
	withAudience(t, func(t *testing.T, _ *ruleStore, a *audience) {
		for event, want := range map[string]bool{
			member: true,
			strings.Replace(member, `"invite"`, `"\u0069nvite"`, 1):                        true,
			strings.Replace(member, `"invite"`, `"join"`, 1):                               false,
			strings.Replace(member, `"invite"`, `["invite"]`, 1):                           false,
			strings.Replace(member, `m.room.member`, `m.room.message`, 1):                  false,
			strings.Replace(member, `{"membership":"invite"}`, `"membership"`, 1):          false,
			strings.Replace(member, `"content"`, `"other"`, 1):                             false,
			strings.Replace(member, `"type":"m.room.member"`, `"kind":"m.room.member"`, 1): false,
		} {
			e := module.Event{JSON: event, Room: match.Room{MemberCount: 2}}
			decisions, err := a.decide(t.Context(), e, []match.Member{{User: "@a:h"}, {User: "@b:h"}})
			if err != nil || decisions[0].Invite != want || decisions[1].Invite {
				t.Errorf("%s: got %+v, error %v", event, decisions, err)
			}
		}
	})
}

// While the storage of some members is away, the others' rules decide. Damaged rules are no error.
func TestDecideGoesOnWithoutMembersWhoseRulesCannotBeRead(t *testing.T) {
	withAudience(t, func(t *testing.T, s *ruleStore, a *audience) {
		notifies(t, a, "@a:h") // caches the rules of a
		s.err = module.Unavailable(errors.New("away"))
		decisions, err := a.decide(t.Context(), hi, []match.Member{{User: "@b:h"}, {User: "@a:h"}})
		if !errors.Is(err, s.err) || len(decisions) != 1 || decisions[0].User != "@a:h" || !decisions[0].Result.Notify() {
			t.Errorf("got %+v, %v", decisions, err)
		}
		s.err = pushrule.Unreadable(errors.New("damaged"))
		if got := notifies(t, a, "@b:h", "@a:h"); got != "[@a:h]" {
			t.Errorf("got %s", got)
		}
		s.err = nil
		if got := notifies(t, a, "@b:h", "@a:h"); got != "[@b:h @a:h]" {
			t.Errorf("got %s", got)
		}
	})
}
