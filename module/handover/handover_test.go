package handover

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/fault"
	"github.com/pushfx/pushfx/module/match"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/pushrule"
)

// failure is what happens to a user in a call.
type failure int

const (
	works   failure = iota
	away            // the storage of the user does not answer
	lost            // the reply of the storage is lost
	unnamed         // the call fails for all, and its error names nobody
	refused         // the call refuses the event for all
	failures
	unreadable = failures // the stored data of the user
)

// storage stands for the notifier and the unread counts of all hosts.
type storage struct {
	module.UnreadService // nil

	mu       sync.Mutex
	fails    func(call string, user mxid.UserID) failure
	made     map[string]int // calls for "CALL USER" that had their effect
	asked    map[string]int // calls for "CALL USER"
	places   []module.Place
	events   []module.Event
	notifies func(user mxid.UserID) bool
	hangs    map[string]time.Duration
	early    []mxid.UserID // whose badges were updated before their read marks were stored
}

func newStorage() *storage {
	return &storage{
		fails: func(string, mxid.UserID) failure { return works }, made: map[string]int{}, asked: map[string]int{},
		notifies: func(mxid.UserID) bool { return true }, hangs: map[string]time.Duration{},
	}
}

var errRefused = fault.New(fault.InvalidParam, "The event is too large.")

// call makes a call for users, and returns for whom it had its effect.
func (s *storage) call(ctx context.Context, name string, users []mxid.UserID) (made []mxid.UserID, err error) {
	select {
	case <-time.After(s.hangs[name]):
	case <-ctx.Done():
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if ctx.Err() != nil {
		return nil, module.Unavailable(ctx.Err())
	}
	var left []mxid.UserID
	for _, user := range users {
		s.asked[name+" "+string(user)]++
		switch kind := s.fails(name, user); kind {
		case unnamed:
			err = io.ErrUnexpectedEOF
		case unreadable:
			err = fault.New(fault.Database, "Stored data cannot be read.")
		case refused:
			err = fmt.Errorf("%s: %w", name, errRefused)
		default:
			if kind == away || kind == lost {
				left = append(left, user)
			}
			if kind != away {
				made = append(made, user)
			}
		}
	}
	if err != nil {
		return nil, err
	}
	for _, user := range made {
		s.made[name+" "+string(user)]++
	}
	if len(left) > 0 {
		slices.Sort(left)
		err = &module.LeftError{Users: left, Reasons: []error{module.Unavailable(io.EOF)}}
	}
	return made, err
}

// notifying is the result of rules that notify.
var notifying = func() match.Result {
	var rules pushrule.Ruleset
	_ = rules.Put(pushrule.Override, "rule", pushrule.Draft{Actions: []pushrule.Action{`"notify"`}}, pushrule.Position{})
	event, _ := match.ReadEvent(`{}`)
	return match.Compile(rules).Evaluate(event, match.Facts{User: "@a:x"})
}()

func (s *storage) Decide(ctx context.Context, e module.Event, members []match.Member) (decisions module.Decisions, err error) {
	var users []mxid.UserID
	for _, m := range members {
		users = append(users, m.User)
	}
	made, err := s.call(ctx, "decide", users)
	for _, user := range made {
		decision := module.Decision{User: user}
		if s.notifies(user) {
			decision.Result = notifying
		}
		decisions = append(decisions, decision)
	}
	var left *module.LeftError
	if errors.As(err, &left) { // a decision whose reply is lost is none
		decisions = slices.DeleteFunc(decisions, func(d module.Decision) bool { return slices.Contains(left.Users, d.User) })
	}
	return decisions, err
}

func (s *storage) Notify(ctx context.Context, e module.Event, decisions module.Decisions) error {
	_, err := s.call(ctx, "notify", usersOf(decisions))
	s.mu.Lock()
	defer s.mu.Unlock()
	s.events = append(s.events, e)
	return err
}

func (s *storage) UpdateBadges(ctx context.Context, users ...mxid.UserID) error {
	s.mu.Lock()
	for _, user := range users {
		if s.made["count "+string(user)]+s.made["read "+string(user)] == 0 {
			s.early = append(s.early, user)
		}
	}
	s.mu.Unlock()
	_, err := s.call(ctx, "badge", users)
	return err
}

func (s *storage) Add(ctx context.Context, at module.Place, decisions module.Decisions) error {
	users := usersOf(decisions)
	if at.Sender != "" {
		users = append(users, at.Sender)
	}
	_, err := s.call(ctx, "count", users)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.places = append(s.places, at)
	return err
}

func (s *storage) Read(ctx context.Context, user mxid.UserID, room, thread string, position int64) error {
	if room != "!room:x" || thread != module.AllThreads || position != 7 {
		return fault.New(fault.InvalidParam, "Not the place.")
	}
	_, err := s.call(ctx, "read", []mxid.UserID{user})
	if errors.As(err, new(*module.LeftError)) {
		err = module.Unavailable(io.EOF)
	}
	return err
}

// event has two members; the sender kicks carol.
func event() module.NewEvent {
	return module.NewEvent{
		Event:  module.Event{JSON: `{"event_id":"$1","room_id":"!room:x"}`, Position: 7, Room: match.Room{MemberCount: 3}},
		Sender: "@sender:x", Changed: "@carol:x", Others: []mxid.UserID{"@dora:x"},
		Members: []match.Member{{User: "@a:x"}, {User: "@sender:x"}, {User: "@b:x"}},
	}
}

// effects are those of the event, each once.
func effects() map[string]int {
	all := map[string]int{}
	for _, one := range []string{
		"count @a:x", "count @b:x", "count @sender:x", "notify @a:x", "notify @b:x", "read @carol:x", "badge @sender:x", "badge @carol:x",
	} {
		all[one] = 1
	}
	return all
}

// effects returns the calls that had their effect, without decisions.
func (s *storage) effects() map[string]int {
	all := maps.Clone(s.made)
	maps.DeleteFunc(all, func(name string, _ int) bool { return strings.HasPrefix(name, "decide") })
	return all
}

func calls() []string { return []string{"decide", "count", "read", "notify", "badge"} }

func wantShown(t *testing.T, shown []mxid.UserID) {
	t.Helper()
	slices.Sort(shown)
	if want := []mxid.UserID{"@a:x", "@b:x", "@carol:x", "@dora:x", "@sender:x"}; !slices.Equal(shown, want) {
		t.Errorf("shown to %v", shown)
	}
}

// Each call fails in each way for each set of users. The repetition does the rest, and no more.
func TestARepetitionDoesWhatIsLeft(t *testing.T) {
	users := []mxid.UserID{"@a:x", "@b:x", "@carol:x", "@sender:x"}
	for _, call := range calls() {
		for kind := away; kind < failures; kind++ {
			for set := 1; set < 1<<len(users); set++ {
				s := newStorage()
				failed := map[string]bool{} // effects that are missing or in doubt
				s.fails = func(of string, user mxid.UserID) failure {
					if i := slices.Index(users, user); of != call || i < 0 || set&(1<<i) == 0 {
						return works
					}
					failed[string(user)] = true
					return kind
				}
				what := fmt.Sprintf("%s, %d, set %b", call, kind, set)
				var shown []mxid.UserID
				h := New(s, s)
				rest, err := h.HandOver(t.Context(), event(), "", func(users []mxid.UserID) { shown = append(shown, users...) })
				wantShown(t, shown)
				if isLeft := len(failed) > 0 && kind != refused; isLeft != (rest != "") {
					t.Errorf("%s: %v failed, the rest is %s", what, failed, rest)
				}
				if (err != nil) != (len(failed) > 0) || err != nil && module.IsPermanent(err) != (kind == refused) {
					t.Errorf("%s: got %v", what, err)
				}
				first := s.effects()
				s.fails = newStorage().fails
				if rest != "" {
					again, err := h.HandOver(t.Context(), event(), rest, func(users []mxid.UserID) { t.Errorf("%s: shown again to %v", what, users) })
					if again != "" || err != nil {
						t.Errorf("%s: again: %s, %v", what, again, err)
					}
				}
				for effect := range effects() {
					_, user, _ := strings.Cut(effect, " ")
					want := 1
					switch {
					case kind == refused && failed[user] && strings.HasPrefix(effect, call):
						want = 0
					case kind == refused && len(failed) > 0 && (call == "decide" && user <= "@b:x" || call == strings.Fields(effect)[0]):
						want = 0 // the call has refused the event
					case kind == lost && failed[user] && strings.HasPrefix(effect, call):
						want = 2
					}
					if s.made[effect] != want {
						t.Errorf("%s: %s was made %d times, before the repetition %d times, want %d", what, effect, s.made[effect], first[effect], want)
					}
				}
			}
		}
	}
}

// All calls fail at random, hosts end at random after any effect, and two of them hand over at once.
func TestEachUserGetsTheEventWhateverFails(t *testing.T) {
	for seed := range uint64(3000) {
		random := rand.New(rand.NewPCG(seed, 0))
		s := newStorage()
		crashed, inDoubt := false, map[string]bool{}
		s.fails = func(call string, user mxid.UserID) failure { // under the lock
			if crashed = crashed || random.IntN(40) == 0; crashed {
				return away
			}
			kind := [...]failure{works, works, works, away, lost}[random.IntN(5)]
			if kind == lost {
				inDoubt[call+" "+string(user)] = true
			}
			return kind
		}
		var stored module.Rest
		everShown := map[mxid.UserID]bool{}
		for try, isOver := 0, false; !isOver; try++ {
			crashed = false
			e, before := event(), maps.Clone(s.made)
			rests := make([]module.Rest, 1+random.IntN(2))
			var hosts sync.WaitGroup
			for host := range rests {
				hosts.Go(func() {
					rests[host], _ = New(s, s).HandOver(t.Context(), e, stored, func(users []mxid.UserID) {
						s.mu.Lock()
						defer s.mu.Unlock()
						for _, user := range users {
							everShown[user] = true
						}
					})
				})
			}
			hosts.Wait()
			for effect := range s.made {
				isNew := s.made[effect] > before[effect]
				inDoubt[effect] = inDoubt[effect] || isNew && (crashed || len(rests) > 1)
			}
			if crashed { // what it has done is not stored
				continue
			}
			stored = rests[random.IntN(len(rests))]
			if isOver = stored == ""; try > 1000 {
				t.Fatalf("seed %d: left is %s", seed, stored)
			}
		}
		wantShown(t, slices.Collect(maps.Keys(everShown)))
		for effect := range effects() {
			if n := s.made[effect]; n == 0 || n > 1 && !inDoubt[effect] {
				t.Errorf("seed %d: %s was made %d times", seed, effect, n)
			}
		}
		if len(s.effects()) != len(effects()) || len(s.early) > 0 {
			t.Errorf("seed %d: made are %v, badges of %v came too early", seed, s.made, s.early)
		}
	}
}

// shownAt records when users see an event.
type shownAt struct {
	began time.Time
	users map[mxid.UserID]time.Duration
}

func (s *shownAt) shown(users []mxid.UserID) {
	for _, user := range users {
		s.users[user] = time.Since(s.began)
	}
}

func TestWhatHangsDelaysAnEventForASecond(t *testing.T) {
	for name, test := range map[string]struct {
		hangs         string
		shown, notify time.Duration
		changed       time.Duration // when the user sees it whose membership changes
	}{
		"nothing":       {"", 0, 0, 0},
		"rules":         {"decide", time.Second, 3 * time.Second, time.Second},
		"counts":        {"count", time.Second, time.Second, time.Second},
		"a read mark":   {"read", 0, 0, time.Second},
		"notifications": {"notify", 0, 3 * time.Second, 0},
		"badges":        {"badge", 0, 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, at := newStorage(), shownAt{time.Now(), map[mxid.UserID]time.Duration{}}
				s.hangs[test.hangs] = 3 * time.Second
				var notified time.Duration
				s.fails = func(call string, _ mxid.UserID) failure {
					if call == "notify" {
						notified = time.Since(at.began)
					}
					return works
				}
				rest, err := New(s, s).HandOver(t.Context(), event(), "", at.shown)
				if rest != "" || err != nil || !maps.Equal(s.effects(), effects()) {
					t.Errorf("got %s, %v, made are %v", rest, err, s.made)
				}
				for user, took := range at.users {
					want := test.shown
					if user == "@carol:x" {
						want = test.changed
					}
					if took != want {
						t.Errorf("%s sees it after %v", user, took)
					}
				}
				if len(at.users) != 5 || notified != test.notify {
					t.Errorf("shown to %v, notified after %v", at.users, notified)
				}
			})
		})
	}
}

func TestWhatIsNotDoneWhenTheContextEndsIsLeft(t *testing.T) {
	for _, call := range calls() {
		synctest.Test(t, func(t *testing.T) {
			s, at := newStorage(), shownAt{time.Now(), map[mxid.UserID]time.Duration{}}
			s.hangs[call] = time.Hour
			ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
			defer cancel()
			h := New(s, s)
			rest, err := h.HandOver(ctx, event(), "", at.shown)
			if rest == "" || !errors.As(err, new(*module.LeftError)) || len(at.users) != 5 || time.Since(at.began) > time.Second {
				t.Errorf("%s: left is %s after %v, %v, shown to %v", call, rest, time.Since(at.began), err, at.users)
			}
			s.hangs = nil
			if rest, err = h.HandOver(t.Context(), event(), rest, nil); rest != "" || err != nil || !maps.Equal(s.effects(), effects()) {
				t.Errorf("%s: %s, %v, made are %v", call, rest, err, s.made)
			}
		})
	}
}

func TestAReadMarkOfAMembership(t *testing.T) {
	e := event()
	e.Changed = e.Sender
	for name, test := range map[string]struct {
		fails   map[string]failure
		isAsked int
		want    module.Rest
	}{
		"the user's storage is known to be away": {
			map[string]failure{"count": away, "read": away}, 0, `{"form":1,"left":{"count":["@a:x","@b:x"],"own,read,badge":["@sender:x"]}}`,
		},
		"an unreadable record": {map[string]failure{"read": unreadable}, 1, ""},
	} {
		s := newStorage()
		s.fails = func(call string, _ mxid.UserID) failure { return test.fails[call] }
		if rest, err := New(s, s).HandOver(t.Context(), e, "", nil); rest != test.want || err == nil || s.asked["read @sender:x"] != test.isAsked {
			t.Errorf("%s: %s, %v, asked for %v", name, rest, err, s.asked)
		}
	}
}

func TestTheErrorSaysHowManyAreLeftAndWhy(t *testing.T) {
	s := newStorage()
	s.fails = func(string, mxid.UserID) failure { return away }
	_, err := New(s, s).HandOver(t.Context(), event(), "", nil)
	left, all := module.Left(err)
	if text := fault.Details(err); !strings.Contains(text, "users left: 4: ") || !strings.HasSuffix(text, "EOF") || len(left) != 4 || all {
		t.Errorf("got %s, left are %v", text, left)
	}
}

func TestWhoGetsWhat(t *testing.T) {
	const thread = "$root"
	member := func(users ...mxid.UserID) (all []match.Member) {
		for _, user := range users {
			all = append(all, match.Member{User: user})
		}
		return all
	}
	const allLeft = module.Rest(`{"form":1,"left":{"badge":["@carol:x"],"count,notify":["@a:x","@b:x"],"own,badge":["@sender:x"]}}`)
	for name, test := range map[string]struct {
		rest   module.Rest
		change func(e *module.NewEvent, s *storage)
		want   string
	}{
		"a remote sender":             {"", func(e *module.NewEvent, _ *storage) { e.Sender, e.Changed, e.Members = "", "", member("@a:x") }, "count @a:x, notify @a:x"},
		"the sender's own membership": {"", func(e *module.NewEvent, _ *storage) { e.Changed, e.Members = e.Sender, nil }, "badge @sender:x, count @sender:x, read @sender:x"},
		"rules that do not notify": {"", func(e *module.NewEvent, s *storage) {
			e.Sender, e.Changed, s.notifies = "", "", func(user mxid.UserID) bool { return user == "@b:x" }
		}, "count @b:x, notify @b:x"},
		"invalid users": {"", func(e *module.NewEvent, _ *storage) {
			e.Sender, e.Changed, e.Members = "", "carol", member("bob", "@a:x", "")
		}, "count @a:x, notify @a:x"},
		"no room":                     {"", func(e *module.NewEvent, _ *storage) { e.JSON, e.Sender, e.Members = `[]`, "", nil }, "badge @carol:x"},
		"a member who has left since": {allLeft, func(e *module.NewEvent, _ *storage) { e.Members = member("@b:x") }, "badge @carol:x, badge @sender:x, count @b:x, count @sender:x, notify @b:x"},
		"a member who is new": {allLeft, func(e *module.NewEvent, _ *storage) {
			e.Sender, e.Changed, e.Members = "", "", member("@b:x", "@new:x")
		}, "count @b:x, notify @b:x"},
		"spaces of a database": {`{"left": {"notify": ["@a:x"]}, "form": 1}`, func(*module.NewEvent, *storage) {}, "notify @a:x"},
	} {
		t.Run(name, func(t *testing.T) {
			s, e := newStorage(), event()
			e.Thread = thread
			test.change(&e, s)
			rest, _ := New(s, s).HandOver(t.Context(), e, test.rest, nil)
			if got := strings.Join(slices.Sorted(maps.Keys(s.effects())), ", "); got != test.want || rest != "" {
				t.Errorf("got %s, left is %s", got, rest)
			}
			for _, at := range s.places {
				if at.Room != "!room:x" || at.Position != 7 || at.Thread != thread {
					t.Errorf("counted at %v", at)
				}
			}
		})
	}
}

func TestWithoutUnreadCountsNothingIsCounted(t *testing.T) {
	s := newStorage()
	s.fails = func(string, mxid.UserID) failure { return away }
	h := New(s, nil)
	rest, _ := h.HandOver(t.Context(), event(), "", nil)
	if want := module.Rest(`{"form":1,"left":{"badge":["@carol:x","@sender:x"],"notify":["@a:x","@b:x"]}}`); rest != want {
		t.Errorf("left is %s", rest)
	}
	s.fails = newStorage().fails
	const counted = `{"form":1,"left":{"count,notify":["@a:x","@b:x"],"read,badge":["@carol:x"]}}` // by a host with counts
	rest, err := h.HandOver(t.Context(), event(), counted, nil)
	if got := slices.Sorted(maps.Keys(s.effects())); rest != "" || err != nil || !slices.Equal(got, []string{"badge @carol:x", "notify @a:x", "notify @b:x"}) {
		t.Errorf("got %s, %v, made are %v", rest, err, got)
	}
	if s.events[0].Thread != module.MainThread || s.events[0].Position != 7 {
		t.Errorf("notified of %v", s.events[0])
	}
}

// A rest that cannot be read loses nothing.
func TestARestThatCannotBeRead(t *testing.T) {
	for text, isOther := range map[module.Rest]bool{
		`{"form":2,"left":[]}`: true, `{"form":"1b","users":7}`: true,
		"x": false, "{}": false, "null": false, "[1]": false, `{"form":1}`: false, `{"form":1,"left":{}}`: false, `{"form":1,"left":{"count":[]}}`: false,
		`{"form":1,"left":{"count":["bob"]}}`: false, `{"form":1,"left":{"sing":["@a:x"]}}`: false, `{"form":1,"left":{"":["@a:x"]}}`: false,
		`{"form":1,"left":{"count":["@a:x"]},"more":1}`: false, `{"form":1,"left":{"count":["@a:x"]}`: false,
	} {
		s := newStorage()
		rest, err := New(s, s).HandOver(t.Context(), event(), text, func([]mxid.UserID) { t.Errorf("%s: shown", text) })
		if rest != text || fault.KindOf(err) != fault.Database || fault.IsOtherVersion(err) != isOther || module.IsPermanent(err) || len(s.asked) > 0 {
			t.Errorf("%s: got %s, %v, asked for %v", text, rest, err, s.asked)
		}
	}
}

func FuzzRest(f *testing.F) {
	f.Add(`{"form":1,"left":{"count,notify":["@a:x","@b:x"],"badge":["@c:x"]}}`)
	f.Add(`{"form":1,"left":{"own,read":["@a:x"],"read,own":["@a:x"]}}`)
	f.Fuzz(func(t *testing.T, text string) {
		left, err := readRest(module.Rest(text))
		if err != nil || text == "" {
			return
		}
		var u users
		for user, set := range left {
			for one := range steps {
				if set.has(one) {
					u[one] = append(u[one], user)
				}
			}
		}
		if again, err := readRest(u.rest()); err != nil || !maps.Equal(again, left) {
			t.Errorf("%s became %s, %v", text, u.rest(), err)
		}
	})
}
