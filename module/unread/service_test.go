package unread

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/fault"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/observe"
	"github.com/pushfx/pushfx/module/pushrule"
	"github.com/pushfx/pushfx/module/storetest"
	"github.com/pushfx/pushfx/module/unread/fold"
)

const room = "!room:example.org"

func newService(t testing.TB) (*Service, *storetest.Memory) {
	memory := storetest.NewMemory()
	return New(memory.Unread(), Config{}, 24*time.Hour, newClock().tick, nil), memory
}

func add(t testing.TB, s *Service, position int64, result string, users ...mxid.UserID) {
	t.Helper()
	var decisions module.Decisions
	of := results(t)[result]
	for _, user := range users {
		decisions = append(decisions, module.Decision{User: user, Result: of})
	}
	if err := s.Add(t.Context(), module.Place{Room: room, Position: position, Thread: module.MainThread}, decisions); err != nil {
		t.Fatal(err)
	}
}

func TestBadInputIsRefusedBeforeAnythingIsStored(t *testing.T) {
	s, memory := newService(t)
	ctx, event := t.Context(), results(t)["event"]
	place := func(change func(*module.Place)) func() error {
		return func() error {
			at := module.Place{Room: room, Position: 1, Thread: module.MainThread, Sender: bob}
			change(&at)
			return s.Add(ctx, at, module.Decisions{{User: alice, Result: event}})
		}
	}
	long := strings.Repeat("x", 255)
	for name, call := range map[string]func() error{
		"Add: position 0":           place(func(p *module.Place) { p.Position = 0 }),
		"Add: negative position":    place(func(p *module.Place) { p.Position = -1 }),
		"Add: no room":              place(func(p *module.Place) { p.Room = "" }),
		"Add: a room without !":     place(func(p *module.Place) { p.Room = "room" }),
		"Add: a long room":          place(func(p *module.Place) { p.Room = "!" + long }),
		"Add: a room with a byte 0": place(func(p *module.Place) { p.Room = "!a\x00b" }),
		"Add: invalid UTF-8":        place(func(p *module.Place) { p.Room = "!\xff" }),
		"Add: all threads":          place(func(p *module.Place) { p.Thread = module.AllThreads }),
		"Add: an unknown thread":    place(func(p *module.Place) { p.Thread = "Main" }),
		"Add: a long thread":        place(func(p *module.Place) { p.Thread = "$" + long }),
		"Add: an invalid sender":    place(func(p *module.Place) { p.Sender = "bob" }),
		"Add: an invalid user": func() error {
			return s.Add(ctx, module.Place{Room: room, Position: 1, Thread: "main"}, module.Decisions{{User: alice, Result: event}, {User: "bob", Result: event}})
		},
		"Read: position 0":           func() error { return s.Read(ctx, alice, room, "", 0) },
		"Read: an unknown thread":    func() error { return s.Read(ctx, alice, room, "thread", 1) },
		"Read: an invalid user":      func() error { return s.Read(ctx, "alice", room, "", 1) },
		"Read: no room":              func() error { return s.Read(ctx, alice, "", "", 1) },
		"Forget: position 0":         func() error { return s.Forget(ctx, room, 0, []mxid.UserID{alice}) },
		"Forget: an invalid user":    func() error { return s.Forget(ctx, room, 1, []mxid.UserID{alice, "bob"}) },
		"Rooms: an invalid user":     func() error { _, err := s.Rooms(ctx, "alice"); return err },
		"Retain: an invalid user":    func() error { return s.Retain(ctx, "alice") },
		"List: a negative limit":     func() error { _, err := s.List(ctx, alice, module.UnreadQuery{Limit: -1}); return err },
		"List: no token":             func() error { _, err := s.List(ctx, alice, module.UnreadQuery{From: "x y"}); return err },
		"List: a token of no form":   func() error { _, err := s.List(ctx, alice, module.UnreadQuery{From: "MiAxIDEgIWE"}); return err },
		"List: a token of no number": func() error { _, err := s.List(ctx, alice, module.UnreadQuery{From: "MSB4IDEgIWE"}); return err },
	} {
		if err := call(); fault.KindOf(err) != fault.InvalidParam {
			t.Errorf("%s: got error %v, want one of kind %s", name, err, fault.InvalidParam)
		}
	}
	if len(memory.Texts) != 0 {
		t.Errorf("stored %q", memory.Texts)
	}
}

// A list that this version cannot read stays as it is, and does not stop others.
func TestUnreadableListsAreNeverOverwritten(t *testing.T) {
	for name, text := range map[string]string{"damage": "2R damage", "a later form": "3R...", "the former form": "1R..."} {
		t.Run(name, func(t *testing.T) {
			s, memory := newService(t)
			memory.Texts[alice] = []string{text}
			for i := range int64(200) {
				add(t, s, i+1, "event", alice, bob)
				if err := s.Read(t.Context(), alice, room, "", 1); err != nil {
					t.Fatal(err)
				}
			}
			if list := memory.Texts[alice]; list[0] != text || len(list) != 401 {
				t.Errorf("%d texts, the first is %q", len(list), list[0])
			}
			if counts, err := s.Rooms(t.Context(), bob, room); err != nil || counts[room].Main.Notifications != 200 {
				t.Errorf("bob: %+v, error %v", counts, err)
			}
			_, rooms := s.Rooms(t.Context(), alice, room)
			_, list := s.List(t.Context(), alice, module.UnreadQuery{})
			states := s.States(t.Context(), []module.UserEvent{{User: alice, RoomID: room, EventID: "$1", Position: 1, Thread: "main"}, {User: bob}})
			for call, err := range map[string]error{"Rooms": rooms, "List": list, "Retain": s.Retain(t.Context(), alice), "States": states[0].Err} {
				if fault.KindOf(err) != fault.Database || fault.IsOtherVersion(err) == (name == "damage") {
					t.Errorf("%s: got error %v, want one of kind %s", call, err, fault.Database)
				}
			}
			if states[1].Err != nil || states[1].Value.Counts.Unread != 1 {
				t.Errorf("bob's badge: %+v", states[1])
			}
			if states[0].Value.IsRead || states[0].Value.Counts != nil {
				t.Errorf("an unreadable list says %+v", states[0])
			}
		})
	}
}

// counting counts what an observer gets.
type counting struct {
	observe.Observer
	mu     sync.Mutex
	counts map[observe.Event]int
}

func (c *counting) Count(event observe.Event, _ string, n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.counts[event] += n
}

// refusing fails the texts of a user with an error of kind Database.
type refusing struct{ module.UnreadStore }

func (r refusing) Append(ctx context.Context, texts []module.UserText) []module.Result[int] {
	results := r.UnreadStore.Append(ctx, texts)
	for i, text := range texts {
		if text.User == alice {
			results[i] = module.Result[int]{Err: fault.New(fault.Database, "unreadable")}
		}
	}
	return results
}

func TestAnEventSkipsUsersWithAnUnreadableKey(t *testing.T) {
	memory, counts := storetest.NewMemory(), &counting{Observer: observe.None, counts: map[observe.Event]int{}}
	s := New(refusing{memory.Unread()}, Config{}, 24*time.Hour, nil, counts)
	add(t, s, 1, "event", alice, bob)
	if err := s.Forget(t.Context(), room, 1, []mxid.UserID{alice, bob}); err != nil {
		t.Fatal(err)
	}
	if err := s.Read(t.Context(), alice, room, "", 1); fault.KindOf(err) != fault.Database {
		t.Errorf("Read: got error %v", err)
	}
	if n := counts.counts[observe.UnreadUnreadable]; n != 3 || counts.counts[observe.UnreadAppended] != 2 {
		t.Errorf("counted %v", counts.counts)
	}
}

func TestListsStayShort(t *testing.T) {
	memory, counts := storetest.NewMemory(), &counting{Observer: observe.None, counts: map[observe.Event]int{}}
	s := New(memory.Unread(), Config{}, 24*time.Hour, newClock().tick, counts)
	longest := 0
	for i := range int64(2000) {
		add(t, s, i+1, "event", alice)
		longest = max(longest, len(memory.Texts[alice]))
	}
	if longest > MaxOps {
		t.Errorf("a list had %d texts", longest)
	}
	if n := counts.counts[observe.UnreadCompacted]; n < 2000/MaxOps || n > 2000/fewOps {
		t.Errorf("compacted %d times", n)
	}
	for i := range int64(fewOps + 1) {
		add(t, s, 5000+i, "event", alice)
	}
	if _, err := s.Rooms(t.Context(), alice, room); err != nil || countOps(memory.Texts[alice]) > fewOps {
		t.Errorf("after a read: %d texts, error %v", len(memory.Texts[alice]), err)
	}
	for i := range int64(fewOps + 1) {
		add(t, s, 6000+i, "event", alice)
	}
	if s.States(t.Context(), []module.UserEvent{{User: alice}}); countOps(memory.Texts[alice]) > fewOps {
		t.Errorf("after a badge: %d texts", len(memory.Texts[alice]))
	}
	memory.Texts[alice] = slices.Repeat([]string{fold.Op{Kind: fold.Redacted, Room: room, Position: 1}.Text()}, 1000)
	add(t, s, 7000, "event", alice)
	if counts.counts[observe.UnreadLong] == 0 {
		t.Error("a long list was not counted")
	}
}

// Members of a room get their operations together. They must not compact together.
func TestMembersOfARoomDoNotCompactTogether(t *testing.T) {
	memory, counts := storetest.NewMemory(), &counting{Observer: observe.None, counts: map[observe.Event]int{}}
	s := New(memory.Unread(), Config{}, 24*time.Hour, newClock().tick, counts)
	users := make([]mxid.UserID, 1000)
	for i := range users {
		users[i] = mxid.UserID(fmt.Sprintf("@user%d:example.org", i))
	}
	worst := 0
	for i := range int64(100) {
		before := counts.counts[observe.UnreadCompacted]
		add(t, s, i+1, "event", users...)
		worst = max(worst, counts.counts[observe.UnreadCompacted]-before)
	}
	if worst > 150 {
		t.Errorf("%d of 1,000 lists were compacted at one event", worst)
	}
	if share := shareOfLong(counts); share > 0.005 {
		t.Errorf("%.3f of the appends were to long lists", share)
	}
}

func shareOfLong(c *counting) float64 {
	return float64(c.counts[observe.UnreadLong]) / float64(c.counts[observe.UnreadAppended])
}

// neverReplacing is a store without the right to replace.
type neverReplacing struct{ module.UnreadStore }

func (neverReplacing) Replace(_ context.Context, all []module.UnreadReplacement) []module.Result[bool] {
	return slices.Repeat([]module.Result[bool]{{Err: module.Unavailable(nil)}}, len(all))
}

// The alert on lists that are not compacted is for a share above 0.05.
func TestListsThatAreNotCompactedAreCounted(t *testing.T) {
	counts := &counting{Observer: observe.None, counts: map[observe.Event]int{}}
	s := New(neverReplacing{storetest.NewMemory().Unread()}, Config{}, 24*time.Hour, newClock().tick, counts)
	for i := range int64(100) {
		add(t, s, i+1, "event", alice)
	}
	if share := shareOfLong(counts); share < 0.3 || counts.counts[observe.UnreadCompacted] > 0 {
		t.Errorf("%.3f of the appends were to long lists, of %v", share, counts.counts)
	}
}

// A damaged list is counted even if its user never reads it.
func TestDamagedListsAreCountedWhenTheyGrow(t *testing.T) {
	memory, counts := storetest.NewMemory(), &counting{Observer: observe.None, counts: map[observe.Event]int{}}
	memory.Texts[alice] = []string{"damaged"}
	s := New(memory.Unread(), Config{}, 24*time.Hour, newClock().tick, counts)
	for i := range int64(MaxOps) {
		add(t, s, i+1, "event", alice)
	}
	if n := counts.counts[observe.UnreadUnreadable]; n == 0 || counts.counts[observe.UnreadCompacted] > 0 {
		t.Errorf("counted %v", counts.counts)
	}
	n := counts.counts[observe.UnreadUnreadable]
	if _, err := s.Rooms(t.Context(), alice); err == nil || counts.counts[observe.UnreadUnreadable] != n+1 {
		t.Errorf("a read counted %d times, error %v", counts.counts[observe.UnreadUnreadable]-n, err)
	}
}

func TestIdleRoomsLeaveTheRecord(t *testing.T) {
	memory, now := storetest.NewMemory(), time.UnixMilli(1764000000000)
	s := New(memory.Unread(), Config{}, 24*time.Hour, func() time.Time { return now }, nil)
	if err := s.Read(t.Context(), alice, "!idle", "", 5); err != nil {
		t.Fatal(err)
	}
	now = now.Add(idleTime + time.Second)
	for i := range int64(100) {
		add(t, s, i+1, "event", alice)
	}
	if record, err := fold.Fold(memory.Texts[alice]); err != nil || record.Rooms()["!idle"] != nil || record.Rooms()[room] == nil {
		t.Errorf("rooms %v, error %v", record.Rooms(), err)
	}
}

func TestRetainLeavesRecentRoomsAlone(t *testing.T) {
	memory, now := storetest.NewMemory(), time.UnixMilli(1764000000000)
	s := New(memory.Unread(), Config{}, 24*time.Hour, func() time.Time { return now }, nil)
	add(t, s, 1, "event", alice)
	for _, test := range []struct {
		after time.Duration
		want  int
	}{{0, 1}, {59 * time.Second, 1}, {time.Second, 0}} {
		now = now.Add(test.after)
		if err := s.Retain(t.Context(), alice, "!other"); err != nil {
			t.Fatal(err)
		}
		if counts, err := s.Rooms(t.Context(), alice); err != nil || len(counts) != test.want {
			t.Errorf("after %v: got %v, error %v", test.after, counts, err)
		}
	}
}

func TestNamedRoomsAreAlwaysInTheResult(t *testing.T) {
	s, _ := newService(t)
	add(t, s, 1, "event", alice)
	counts, err := s.Rooms(t.Context(), alice, "!other")
	if err != nil || len(counts) != 1 || show(counts["!other"]) != "0/0" {
		t.Errorf("got %v, error %v", counts, err)
	}
	if sum := (module.RoomCounts{Main: module.ThreadCounts{Notifications: 1}, Threads: map[string]module.ThreadCounts{"$a": {Notifications: 3, Highlights: 2}, "$b": {Notifications: 1}}}).Sum(); sum != (module.ThreadCounts{Notifications: 5, Highlights: 2}) {
		t.Errorf("the sum is %+v", sum)
	}
}

// One odd room id, which anybody may send events to, takes no counts of other rooms.
func TestAnInvalidRoomIsLeftOutOfTheCounts(t *testing.T) {
	s, _ := newService(t)
	add(t, s, 1, "event", alice)
	odd := []string{"!nul\x00:x", "room", "", "!\xff", "!" + strings.Repeat("x", 255)}
	for name, rooms := range map[string][]string{"first": append(odd, room), "last": append([]string{room}, odd...)} {
		counts, err := s.Rooms(t.Context(), alice, rooms...)
		if err != nil || len(counts) != 1 || show(counts[room]) != "1/0" {
			t.Errorf("%s: got %v, error %v", name, counts, err)
		}
	}
	if counts, err := s.Rooms(t.Context(), alice, odd...); err != nil || len(counts) != 0 {
		t.Errorf("odd rooms alone: got %v, error %v", counts, err)
	}
}

func TestPagesOfTheList(t *testing.T) {
	memory, now := storetest.NewMemory(), time.UnixMilli(1764000000000)
	s := New(memory.Unread(), Config{}, 24*time.Hour, func() time.Time { return now }, nil)
	for i := range int64(130) { // three at a time, of which one is a highlight
		if i%3 == 0 {
			now = now.Add(time.Second)
		}
		result := "event"
		if i%3 == 2 {
			result = "highlight"
		}
		add(t, s, i+1, result, alice)
	}
	for _, test := range []struct {
		q    module.UnreadQuery
		want []int // sizes of pages
	}{
		{module.UnreadQuery{}, []int{50, 50, 30}},
		{module.UnreadQuery{Limit: 65}, []int{65, 65}},
		{module.UnreadQuery{Limit: 1000}, []int{130}},
		{module.UnreadQuery{Limit: 20, OnlyHighlights: true}, []int{20, 20, 3}},
	} {
		var sizes []int
		last := int64(131)
		for q := test.q; ; {
			page, err := s.List(t.Context(), alice, q)
			if err != nil {
				t.Fatal(err)
			}
			sizes = append(sizes, len(page.Notifications))
			for _, n := range page.Notifications {
				if n.Position >= last || q.OnlyHighlights && !n.Highlight {
					t.Fatalf("%+v after position %d", n, last)
				}
				last = n.Position
			}
			if q.From = page.Next; q.From == "" {
				break
			}
		}
		if !slices.Equal(sizes, test.want) {
			t.Errorf("%+v: got pages of %v, want %v", test.q, sizes, test.want)
		}
	}
}

// A page goes on behind its last notification, even if that has been read.
func TestPagesWhileNotificationsAreRead(t *testing.T) {
	s, _ := newService(t)
	for i := range int64(6) {
		add(t, s, i+1, "event", alice)
	}
	page, err := s.List(t.Context(), alice, module.UnreadQuery{Limit: 2})
	if err != nil || page.Notifications[1].Position != 5 {
		t.Fatalf("%+v, error %v", page, err)
	}
	if err := s.Forget(t.Context(), room, 5, []mxid.UserID{alice}); err != nil {
		t.Fatal(err)
	}
	page, err = s.List(t.Context(), alice, module.UnreadQuery{Limit: 2, From: page.Next})
	if err != nil || len(page.Notifications) != 2 || page.Notifications[0].Position != 4 {
		t.Errorf("%+v, error %v", page, err)
	}
}

func TestNotificationsKeepTheirActions(t *testing.T) {
	for result, want := range map[string][]pushrule.Action{
		"event":     {`"notify"`},
		"highlight": {`"notify"`, `{"set_tweak":"highlight"}`},
		"long":      {`"notify"`}, // its actions are above the limit
	} {
		s, _ := newService(t)
		add(t, s, 7, result, alice)
		page, err := s.List(t.Context(), alice, module.UnreadQuery{})
		if err != nil || len(page.Notifications) != 1 {
			t.Fatalf("%s: %+v, error %v", result, page, err)
		}
		n := page.Notifications[0]
		if !slices.Equal(n.Actions, want) || n.Highlight != (result == "highlight") || n.Position != 7 || n.Room != room || n.Time.UnixMilli() < 1764000000000 {
			t.Errorf("%s: got %+v", result, n)
		}
	}
}

// crashing fails operations before or after they were done, at random.
type crashing struct {
	module.UnreadStore
	random *rand.Rand
}

var errCrashed = module.Unavailable(errors.New("crashed"))

func (c crashing) Append(ctx context.Context, texts []module.UserText) []module.Result[int] {
	results := make([]module.Result[int], len(texts))
	for i, text := range texts {
		if c.random.IntN(4) > 0 {
			results[i] = c.UnreadStore.Append(ctx, []module.UserText{text})[0]
		}
		if results[i].Value == 0 || c.random.IntN(4) == 0 {
			results[i] = module.Result[int]{Err: errCrashed}
		}
	}
	return results
}

func (c crashing) Replace(ctx context.Context, all []module.UnreadReplacement) []module.Result[bool] {
	if c.random.IntN(3) == 0 {
		return make([]module.Result[bool], len(all))
	}
	results := c.UnreadStore.Replace(ctx, all)
	if c.random.IntN(3) == 0 {
		return make([]module.Result[bool], len(all))
	}
	return results
}

func (c crashing) Load(ctx context.Context, users []mxid.UserID) map[mxid.UserID]module.Result[[]string] {
	loaded := c.UnreadStore.Load(ctx, users)
	for user := range loaded {
		if c.random.IntN(4) == 0 {
			loaded[user] = module.Result[[]string]{Err: errCrashed}
		}
	}
	return loaded
}

// Calls that crash at any point and are repeated until they succeed, by two hosts, give
// the counts of calls that never crash.
func TestCrashesAtEachPoint(t *testing.T) {
	all := results(t)
	for seed := range uint64(300) {
		random := rand.New(rand.NewPCG(seed, 1))
		memory, clock := storetest.NewMemory(), newClock()
		calm, _ := newService(t)
		var hosts [2]*Service
		for i := range hosts {
			hosts[i] = New(crashing{memory.Unread(), random}, Config{}, 24*time.Hour, clock.tick, nil)
		}
		persist := func(call func(*Service) error) {
			t.Helper()
			if err := call(calm); err != nil {
				t.Fatal(err)
			}
			for call(hosts[random.IntN(2)]) != nil {
			}
		}
		for i := range int64(80) {
			at := module.Place{Room: fmt.Sprint("!", random.IntN(3)), Position: i + 1, Thread: []string{"main", "$1", "$2"}[random.IntN(3)]}
			thread := []string{"", "main", "$1", "$2"}[random.IntN(4)]
			position := random.Int64N(i+1) + 1
			switch random.IntN(5) {
			case 0:
				persist(func(s *Service) error { return s.Read(t.Context(), alice, at.Room, thread, position) })
			case 1:
				if random.IntN(2) == 0 {
					at.Sender = alice
				}
				fallthrough
			default:
				result := all[[]string{"event", "highlight"}[random.IntN(2)]]
				persist(func(s *Service) error {
					return s.Add(t.Context(), at, module.Decisions{{User: alice, Result: result}, {User: bob, Result: result}})
				})
			}
		}
		for _, user := range []mxid.UserID{alice, bob} {
			want, err := calm.Rooms(t.Context(), user)
			if err != nil {
				t.Fatal(err)
			}
			got, err := New(memory.Unread(), Config{}, 24*time.Hour, clock.tick, nil).Rooms(t.Context(), user)
			if err != nil || fmt.Sprint(got) != fmt.Sprint(want) {
				t.Fatalf("seed %d: %s has %v, want %v, error %v", seed, user, got, want, err)
			}
		}
	}
}

// waiting is a store whose lists of a user do not come before the context ends.
type waiting struct {
	module.UnreadStore
	loads *int
}

func (w waiting) Load(ctx context.Context, users []mxid.UserID) map[mxid.UserID]module.Result[[]string] {
	*w.loads++
	loaded := w.UnreadStore.Load(ctx, users)
	if slices.Contains(users, bob) {
		<-ctx.Done()
		loaded[bob] = module.Result[[]string]{Err: module.Unavailable(ctx.Err())}
	}
	return loaded
}

// A user whose list does not come has an error, and does not delay other users for long.
// The list of a user is loaded once for all its events.
func TestUsersAnswerForThemselvesBeforeSending(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		loads := 0
		s := New(waiting{storetest.NewMemory().Unread(), &loads}, Config{}, 24*time.Hour, nil, nil)
		add(t, s, 1, "event", alice)
		add(t, s, 2, "event", alice)
		if err := s.Read(t.Context(), alice, room, "", 1); err != nil {
			t.Fatal(err)
		}
		event := module.UserEvent{User: alice, RoomID: room, EventID: "$1", Position: 1, Thread: "main"}
		later, unplaced := event, event
		later.Position, unplaced.Position = 2, 0
		began := time.Now()
		states := s.States(t.Context(), []module.UserEvent{event, {User: bob}, later, unplaced, {User: alice}})
		if took := time.Since(began); took > maxStates || loads != 1 {
			t.Errorf("%d loads in %v", loads, took)
		}
		for i, isRead := range []bool{true, false, false, false, false} {
			state := states[i]
			if isBob := i == 1; (fault.KindOf(state.Err) == fault.Unavailable) != isBob || (state.Value.Counts == nil) != isBob {
				t.Errorf("event %d: %+v", i, state)
			} else if state.Value.IsRead != isRead || !isBob && state.Value.Counts.Unread != 1 {
				t.Errorf("event %d: %+v", i, state)
			}
		}
	})
}

// Two hosts measure the clock of Redis a few milliseconds apart. A room's notifications are
// listed by position, on every page.
func TestTheListOfARoomIsInTheOrderOfPositions(t *testing.T) {
	memory, now := storetest.NewMemory(), time.UnixMilli(1764000000000)
	var hosts [2]*Service
	for i := range hosts {
		hosts[i] = New(memory.Unread(), Config{}, 24*time.Hour, func() time.Time { return now.Add(time.Duration(-5*i) * time.Millisecond) }, nil)
	}
	event := results(t)["event"]
	for i := range int64(40) {
		now = now.Add(time.Millisecond)
		at := module.Place{Room: []string{"!a", "!b"}[i/2%2], Position: i + 1, Thread: module.MainThread}
		if err := hosts[i%2].Add(t.Context(), at, module.Decisions{{User: alice, Result: event}}); err != nil {
			t.Fatal(err)
		}
	}
	last, listed := map[string]int64{"!a": 100, "!b": 100}, 0
	for q := (module.UnreadQuery{Limit: 7}); ; {
		page, err := hosts[0].List(t.Context(), alice, q)
		if err != nil {
			t.Fatal(err)
		}
		for _, n := range page.Notifications {
			if listed++; n.Position >= last[n.Room] {
				t.Errorf("%s: %d after %d", n.Room, n.Position, last[n.Room])
			}
			last[n.Room] = n.Position
		}
		if q.From = page.Next; q.From == "" {
			break
		}
	}
	if listed != 40 {
		t.Errorf("%d are listed", listed)
	}
}

// For a minute, the clock of Redis is eight days ahead.
func TestAClockThatIsAheadForAMinute(t *testing.T) {
	memory, ahead := storetest.NewMemory(), time.Duration(0)
	s := New(memory.Unread(), Config{}, 24*time.Hour, func() time.Time { return time.Now().Add(ahead) }, nil)
	if err := s.Read(t.Context(), alice, "!idle", "", 5); err != nil {
		t.Fatal(err)
	}
	add(t, s, 1, "event", alice)
	if err := s.Forget(t.Context(), room, 1, []mxid.UserID{alice}); err != nil {
		t.Fatal(err)
	}
	ahead = 8 * 24 * time.Hour
	for i := range int64(MaxOps) {
		add(t, s, i+2, "event", alice)
	}
	ahead = 0
	if len(memory.Texts[alice]) > MaxOps {
		t.Fatal("the list was not compacted")
	}
	read := s.States(t.Context(), []module.UserEvent{
		{User: alice, RoomID: "!idle", EventID: "$5", Position: 5, Thread: "main"}, {User: alice, RoomID: room, EventID: "$1", Position: 1, Thread: "main"},
	})
	if !read[0].Value.IsRead || !read[1].Value.IsRead {
		t.Errorf("lost: %+v", read)
	}
	if err := s.Retain(t.Context(), alice, "!other"); err != nil {
		t.Fatal(err)
	}
	if counts, err := s.Rooms(t.Context(), alice); err != nil || len(counts) != 0 {
		t.Errorf("a left room stays: %v, error %v", counts, err)
	}
}

// A list that has no place for all unread notifications is counted when it is compacted.
func TestShortenedListsAreCounted(t *testing.T) {
	memory, counts := storetest.NewMemory(), &counting{Observer: observe.None, counts: map[observe.Event]int{}}
	s := New(memory.Unread(), Config{}, 24*time.Hour, nil, counts)
	invited := func(n int) module.Place {
		return module.Place{Room: fmt.Sprintf("!%0254d", n), Position: 1, Thread: module.MainThread}
	}
	add(t, s, 1, "highlight", alice)
	decisions := module.Decisions{{User: alice, Result: results(t)["event"], Invite: true}}
	for n := range 1050 {
		if err := s.Add(t.Context(), invited(n), decisions); err != nil {
			t.Fatal(err)
		}
		if n == 90 && counts.counts[observe.UnreadShortened] > 0 {
			t.Errorf("shortened after 90 invites: %v", counts.counts)
		}
	}
	rooms, err := s.Rooms(t.Context(), alice)
	if err != nil || rooms[room].Main != (module.ThreadCounts{Notifications: 1, Highlights: 1}) || rooms[invited(1049).Room].Main.Notifications != 1 {
		t.Errorf("got %v of %d rooms, error %v", rooms[room], len(rooms), err)
	}
	if len(rooms) > 300 || counts.counts[observe.UnreadShortened] == 0 {
		t.Errorf("%d rooms, counted %v", len(rooms), counts.counts)
	}
	if err := s.Read(t.Context(), alice, invited(1049).Room, module.AllThreads, 2); err != nil { // the user joins
		t.Fatal(err)
	}
	if rooms, err := s.Rooms(t.Context(), alice, invited(1049).Room); err != nil || show(rooms[invited(1049).Room]) != "0/0" {
		t.Errorf("after the join: %v, error %v", rooms, err)
	}
}

// partly is a store that appends nothing for some users.
type partly struct {
	module.UnreadStore
	away map[mxid.UserID]error
}

func (s partly) Append(ctx context.Context, texts []module.UserText) []module.Result[int] {
	results := s.UnreadStore.Append(ctx, texts)
	for i, t := range texts {
		if err := s.away[t.User]; err != nil {
			results[i] = module.Result[int]{Err: err}
		}
	}
	return results
}

func TestAddNamesTheUsersWhoAreLeft(t *testing.T) {
	away := module.Unavailable(io.EOF)
	store := partly{storetest.NewMemory().Unread(), map[mxid.UserID]error{
		"@away:x": away, "@sender:x": away, "@damaged:x": fault.New(fault.Database, "unreadable"),
		"@unconfirmed:x": module.Unavailable(fmt.Errorf("%w: no replica", fault.ErrNotConfirmed)),
	}}
	s := New(store, Config{}, 24*time.Hour, newClock().tick, nil)
	at := module.Place{Room: "!r:x", Position: 1, Thread: module.MainThread, Sender: "@sender:x"}
	var decisions module.Decisions
	for _, user := range []mxid.UserID{"@good:x", "@away:x", "@damaged:x", "@unconfirmed:x"} {
		decisions = append(decisions, module.Decision{User: user, Result: results(t)["event"]})
	}
	left := new(module.LeftError)
	if err := s.Add(t.Context(), at, decisions); !errors.As(err, &left) || !errors.Is(err, fault.ErrNotConfirmed) || fmt.Sprint(left.Users) != "[@away:x @sender:x @unconfirmed:x]" {
		t.Fatalf("got %v", left)
	}
	if err := s.Forget(t.Context(), "!r:x", 2, []mxid.UserID{"@good:x", "@away:x"}); !errors.As(err, &left) || fmt.Sprint(left.Users) != "[@away:x]" {
		t.Errorf("got %v", err)
	}
	clear(store.away)
	if err := s.Add(t.Context(), at, decisions.Of([]mxid.UserID{"@away:x", "@sender:x"})); err != nil {
		t.Error(err)
	}
	if counts, err := s.Rooms(t.Context(), "@away:x"); err != nil || counts["!r:x"].Sum().Notifications != 1 {
		t.Errorf("got %v, %v", counts, err)
	}
}

func TestThePageSaysWhenListsAreCompacted(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	want := fmt.Sprintf("always if it has %d to 1,%03d operations, and otherwise with a chance of 1 in %d if it has more than %d;",
		MaxOps+1, stuckOps%1000, fewOps, fewOps)
	if !strings.Contains(strings.Join(strings.Fields(string(page)), " "), want) {
		t.Errorf("README.md does not say %q", want)
	}
	for length, want := range map[int]bool{fewOps: false, MaxOps + 1: true, stuckOps: true} {
		if isCompactedAt(length) != want {
			t.Errorf("a list of %d operations is compacted: %t", length, !want)
		}
	}
}
