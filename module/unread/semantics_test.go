package unread

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/match"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/pushrule"
	"github.com/pushfx/pushfx/module/storetest"
	"github.com/pushfx/pushfx/module/unread/fold"
)

const (
	alice mxid.UserID = "@alice:example.org"
	bob   mxid.UserID = "@bob:example.org"
)

// results are the results of rules with these actions, by name.
func results(t testing.TB) map[string]match.Result {
	t.Helper()
	all := map[string]match.Result{}
	for name, actions := range map[string][]pushrule.Action{
		"event":         {`"notify"`},
		"highlight":     {`"notify"`, `{"set_tweak":"highlight"}`},
		"silent":        {},
		"highlightOnly": {`{"set_tweak":"highlight"}`},
		"long":          {`"notify"`, pushrule.Action(`{"set_tweak":"x","value":"` + strings.Repeat("y", 2000) + `"}`)},
	} {
		var rules pushrule.Ruleset
		if err := rules.Put(pushrule.Override, "rule", pushrule.Draft{Actions: actions}, pushrule.Position{}); err != nil {
			t.Fatal(err)
		}
		event, err := match.ReadEvent(`{"type":"m.room.message","content":{"body":"hi"}}`)
		if err != nil {
			t.Fatal(err)
		}
		all[name] = match.Compile(rules).Evaluate(event, match.Facts{User: alice})
	}
	return all
}

// script is a scenario of a file in testdata, for alice:
//
//	event 3 $1          another user's event at position 3, in the thread $1
//	invite 3            an invite of alice to the room
//	highlight 4         the same with a highlight, in the main timeline
//	events 4 9 $1       events at the positions 4 to 9
//	silent 5            an event whose rule does not notify
//	own 6 $1            an event of alice
//	read * 3            Read of all threads; "main" or a root in place of "*"
//	redact 4            Forget
//	retain !other       Retain
//	wait                two minutes pass
//	want 2/1 $1:1/0     notifications/highlights of main, then of each thread
//	badge 1 3           rooms and notifications of the badge
//	isread 3 $1         States; "unread" is the opposite
//	list 5 4 (3)        positions of List, in brackets if read
//
// An "in !room" before a command names the room, otherwise it is !room.
type script struct {
	t                 *testing.T
	service, byNumber *Service
	results           map[string]match.Result
	room              string
	compact, repeat   bool
	memory            *storetest.Memory
	clock             *clock
}

func (s *script) run(line string) {
	s.t.Helper()
	words := strings.Fields(line)
	s.room = "!room"
	if words[0] == "in" {
		s.room, words = words[1], words[2:]
	}
	times := 1
	if s.repeat {
		times = 2
	}
	for range times {
		s.do(words[0], words[1:])
	}
	if s.compact {
		s.compactNow()
	}
}

func (s *script) do(command string, args []string) {
	s.t.Helper()
	ctx := s.t.Context()
	var err error
	switch command {
	case "event", "highlight", "silent", "highlightOnly", "own", "invite":
		thread := module.MainThread
		if len(args) > 1 {
			thread = args[1]
		}
		at := module.Place{Room: s.room, Position: s.number(args[0]), Thread: thread}
		decisions := module.Decisions{{User: alice, Result: s.results[command]}, {User: bob, Result: s.results["event"]}}
		switch command {
		case "own":
			at.Sender, decisions[0].Result = alice, s.results["event"]
		case "invite":
			decisions[0].Result, decisions[0].Invite = s.results["event"], true
		}
		err = s.service.Add(ctx, at, decisions)
	case "events":
		for position := s.number(args[0]); position <= s.number(args[1]); position++ {
			s.do("event", []string{fmt.Sprint(position), args[2]})
		}
	case "read":
		thread := args[0]
		if thread == "*" {
			thread = module.AllThreads
		}
		err = s.service.Read(ctx, alice, s.room, thread, s.number(args[1]))
	case "redact":
		err = s.service.Forget(ctx, s.room, s.number(args[0]), []mxid.UserID{alice, bob})
	case "wait":
		s.clock.add(2 * time.Minute)
	case "retain":
		err = s.service.Retain(ctx, alice, args...)
	default:
		s.check(command, args)
	}
	if err != nil {
		s.t.Fatalf("%s %v: %v", command, args, err)
	}
}

func (s *script) check(command string, args []string) {
	s.t.Helper()
	ctx := s.t.Context()
	var got string
	switch command {
	case "want":
		counts, err := s.service.Rooms(ctx, alice, s.room)
		if err != nil {
			s.t.Fatal(err)
		}
		got = show(counts[s.room])
	case "badge":
		for _, service := range []*Service{s.service, s.byNumber} {
			got += fmt.Sprint(" ", service.States(ctx, []module.UserEvent{{User: alice}})[0].Value.Counts.Unread)
		}
	case "isread", "unread":
		event := module.UserEvent{User: alice, RoomID: s.room, EventID: "$e", Position: s.number(args[0]), Thread: module.MainThread}
		if len(args) > 1 {
			event.Thread = args[1]
		}
		if isRead := s.service.States(ctx, []module.UserEvent{event})[0].Value.IsRead; isRead == (command == "isread") {
			got = strings.Join(args, " ")
		}
	case "list":
		page, err := s.service.List(ctx, alice, module.UnreadQuery{})
		if err != nil {
			s.t.Fatal(err)
		}
		for _, n := range page.Notifications {
			if n.IsRead {
				got += fmt.Sprintf(" (%d)", n.Position)
			} else {
				got += fmt.Sprint(" ", n.Position)
			}
		}
	default:
		s.t.Fatalf("unknown command %q", command)
	}
	if strings.TrimSpace(got) != strings.Join(args, " ") {
		s.t.Errorf("%s %s: got %s", command, strings.Join(args, " "), got)
	}
}

func show(counts module.RoomCounts) string {
	text := fmt.Sprintf("%d/%d", counts.Main.Notifications, counts.Main.Highlights)
	for _, root := range slices.Sorted(maps.Keys(counts.Threads)) {
		text += fmt.Sprintf(" %s:%d/%d", root, counts.Threads[root].Notifications, counts.Threads[root].Highlights)
	}
	return text
}

func (s *script) number(text string) int64 {
	s.t.Helper()
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		s.t.Fatal(err)
	}
	return n
}

func (s *script) compactNow() {
	s.memory.Lock()
	defer s.memory.Unlock()
	for user, list := range s.memory.Texts {
		record, err := fold.Fold(list)
		if err != nil {
			s.t.Fatal(err)
		}
		s.memory.Texts[user] = []string{record.Text()}
	}
}

// Each file has scenarios: a title in brackets, then the commands of [script]. They give
// the same numbers if lists are compacted after each command, and if calls are repeated.
func TestScenarios(t *testing.T) {
	for _, file := range []string{"semantics.txt", "peers.txt"} {
		text, err := os.ReadFile("testdata/" + file)
		if err != nil {
			t.Fatal(err)
		}
		_, scenarios, _ := strings.Cut("\n"+string(text), "\n[")
		for _, scenario := range strings.Split(scenarios, "\n[") {
			title, lines, _ := strings.Cut(scenario, "]\n")
			for _, way := range []string{"as called", "compacted", "repeated"} {
				t.Run(title+"/"+way, func(t *testing.T) { runScenario(t, lines, way) })
			}
		}
	}
}

func runScenario(t *testing.T, lines, way string) {
	memory := storetest.NewMemory()
	clock := newClock()
	s := &script{
		t: t, results: results(t), memory: memory, clock: clock, compact: way == "compacted", repeat: way == "repeated",
		service: New(memory.Unread(), Config{}, 24*time.Hour, clock.tick, nil), byNumber: New(memory.Unread(), Config{CountNotifications: true}, 24*time.Hour, clock.tick, nil),
	}
	for line := range strings.Lines(lines) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "#") {
			s.run(line)
		}
	}
}

// clock is a clock on which each look takes a millisecond.
type clock struct {
	mu  sync.Mutex
	now time.Time
}

func newClock() *clock { return &clock{now: time.UnixMilli(1764000000000)} }

func (c *clock) add(d time.Duration) time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
	return c.now
}

func (c *clock) tick() time.Time { return c.add(time.Millisecond) }
