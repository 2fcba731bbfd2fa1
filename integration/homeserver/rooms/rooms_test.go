package rooms

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/pushfx/pushfx/integration/homeserver/data"
	"github.com/pushfx/pushfx/module/fault"
	"github.com/pushfx/pushfx/module/mxid"
)

const room = "!r:x"

func open(t *testing.T) *Store {
	t.Helper()
	db, err := data.Open(t.Context(), filepath.Join(t.TempDir(), "demo.db"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	return New(db)
}

func nothing(context.Context, *data.Tx, Event) error { return nil }

func add(t *testing.T, s *Store, id, relation, to string) Event {
	t.Helper()
	content := "{}"
	if to != "" {
		content = fmt.Sprintf(`{"m.relates_to":{"rel_type":%q,"event_id":%q}}`, relation, to)
	}
	e, err := s.Add(t.Context(), Event{Room: room, ID: id, JSON: `{"content":` + content + `}`}, Change{}, nothing)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func TestThreads(t *testing.T) {
	t.Parallel()
	s := open(t)
	for _, test := range []struct{ id, relation, to, thread string }{
		{"$root", "", "", "main"},
		{"$reaction to the root", "m.annotation", "$root", "main"},
		{"$in", "m.thread", "$root", "$root"},
		{"$edit", "m.replace", "$in", "$root"},
		{"$reaction to the edit", "m.annotation", "$edit", "$root"},
		{"$too far", "m.reference", "$reaction to the edit", "main"},
		{"$of unknown", "m.reference", "$unknown", "main"},
		{"$another thread", "m.thread", "$in", "$in"},
	} {
		if e := add(t, s, test.id, test.relation, test.to); e.Thread != test.thread {
			t.Errorf("%s is in %s, want %s", test.id, e.Thread, test.thread)
		}
	}
	add(t, s, "$reference to the root", "m.reference", "$root")
	add(t, s, "$reaction to the reference", "m.annotation", "$reference to the root")
	for id, want := range map[string]bool{
		"$reaction to the reference": true, "$reaction to the edit": true, "$in": true,
		"$too far": false, "$root": false, "$of unknown": false,
	} {
		e, found, err := s.Event(t.Context(), room, id)
		if err != nil || !found {
			t.Fatal(id, found, err)
		}
		if leads, err := s.Leads(t.Context(), e, "$root"); err != nil || leads != want {
			t.Errorf("%s leads to the root: %v, %v", id, leads, err)
		}
	}
}

func TestRoomsKeepTheNewestEvents(t *testing.T) {
	t.Parallel()
	s := open(t)
	n, found := 0, true
	for ; found; n++ {
		e := add(t, s, fmt.Sprintf("$%d", n), "", "")
		err := s.Show(t.Context(), e.Position, nil)
		if err == nil {
			_, found, err = s.Event(t.Context(), room, "$0")
		}
		if err != nil || e.Position != int64(n+1) || n > keptEvents+30*removeEvery {
			t.Fatalf("got %+v, %v", e, err)
		}
	}
	for back, want := range map[int]bool{keptEvents: true, keptEvents + 1: false} {
		if _, found, err := s.Event(t.Context(), room, fmt.Sprintf("$%d", n-back)); found != want || err != nil {
			t.Errorf("event %d of the newest is found: %v, %v", back, found, err)
		}
	}
	if e := add(t, s, fmt.Sprintf("$%d", n-2), "", ""); e.Position != int64(n-1) {
		t.Errorf("a repeated event has position %d, want %d", e.Position, n-1)
	}
	events, limited, err := s.Timeline(t.Context(), room, 2)
	if err != nil || !limited || len(events) != 2 || events[0].ID != fmt.Sprintf("$%d", n-2) {
		t.Errorf("got %+v, %v, %v", events, limited, err)
	}
}

func TestMembershipEventsWin(t *testing.T) {
	t.Parallel()
	s := open(t)
	change := func(c Change, want ...mxid.UserID) {
		t.Helper()
		e := Event{Room: room, ID: fmt.Sprint("$", time.Now().UnixNano()), JSON: "{}"}
		if _, err := s.Add(t.Context(), e, c, nothing); err != nil {
			t.Fatal(err)
		}
		if got, err := s.Room(t.Context(), room, ""); err != nil || !slices.Equal(got.Members.Users(Joined), want) {
			t.Errorf("after %+v: got %v, %v, want %v", c, got, err, want)
		}
	}
	list := []mxid.UserID{"@a:x", "@b:x"}
	change(Change{Members: list}, list...)
	change(Change{User: "@b:x", Is: Left}, "@a:x")
	change(Change{Members: list}, "@a:x")
	change(Change{User: "@c:x", Is: Invited}, "@a:x")
	change(Change{Members: []mxid.UserID{"@c:x"}})
	change(Change{User: "@c:x", Is: Joined}, "@c:x")
	change(Change{User: "@b:x", Is: Joined, Members: []mxid.UserID{"@a:x"}}, "@a:x", "@b:x", "@c:x")
	change(Change{User: "@b:x", Is: "ban"}, "@a:x", "@c:x")
}

func TestARoomHasABoundedNumberOfMembers(t *testing.T) {
	t.Parallel()
	s := open(t)
	join := func(n int, is Membership) error {
		e := Event{Room: room, ID: fmt.Sprint("$", n, is), JSON: "{}"}
		_, err := s.Add(t.Context(), e, Change{User: mxid.UserID(fmt.Sprintf("@%d:x", n)), Is: is}, nothing)
		return err
	}
	err := join(0, Joined)
	if err == nil {
		err = s.db.Exec(t.Context(), `WITH RECURSIVE n(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < ? - 2)
			INSERT INTO members SELECT ?, '@' || n || ':x', ?, 1 FROM n`, maxMembers, room, Joined)
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := join(maxMembers-1, Joined); err != nil {
		t.Errorf("the last one: %v", err)
	}
	if err := join(maxMembers, Joined); !errors.Is(err, ErrTooManyMembers) {
		t.Errorf("one too many: got %v", err)
	}
	if err := join(1, Left); err != nil {
		t.Errorf("a member cannot leave: %v", err)
	}
	if room, err := s.Room(t.Context(), room, ""); err != nil || len(room.Members) != maxMembers-1 {
		t.Errorf("got %d members, %v", len(room.Members), err)
	}
}

func TestStreams(t *testing.T) {
	t.Parallel()
	s := open(t)
	const user = "@a:x"
	since := func(token string) Changes {
		t.Helper()
		changes, err := s.Since(context.Background(), user, token)
		if err != nil || !ValidToken(changes.Token) {
			t.Fatalf("got %+v, %v", changes, err)
		}
		return changes
	}
	first := since("")
	if !first.All || len(first.Rooms) != 0 {
		t.Errorf("got %+v", first)
	}
	show := func(id string) {
		t.Helper()
		e, err := s.Add(t.Context(), Event{Room: room, ID: id, JSON: "{}"}, Change{Members: []mxid.UserID{user}}, nothing)
		if err == nil {
			err = s.Show(t.Context(), e.Position, []mxid.UserID{user, "@b:x"})
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	show("$1")
	show("$1")
	second := since(first.Token)
	if second.All || !slices.Equal(second.Rooms[room], []int64{1}) {
		t.Errorf("got %+v", second)
	}
	if again := since(second.Token); again.All || len(again.Rooms) != 0 || again.Token != second.Token {
		t.Errorf("got %+v", again)
	}
	if err := s.Changed(t.Context(), "!other:x", user); err != nil {
		t.Fatal(err)
	}
	if got := since(second.Token); len(got.Rooms) != 1 || len(got.Rooms["!other:x"]) != 0 {
		t.Errorf("got %+v", got)
	}
	if err := s.AccountDataChanged(t.Context(), user, room, "m.tag"); err != nil {
		t.Fatal(err)
	}
	if got := since(second.Token); !slices.Equal(got.AccountData[room], []string{"m.tag"}) {
		t.Errorf("got %+v", got)
	}
	if err := s.db.Exec(t.Context(), `INSERT INTO changes VALUES (?, '@b:x', ?, 1, NULL)`, keptChanges+1, room); err != nil {
		t.Fatal(err)
	}
	third := since(second.Token)
	show("$2")
	if got := since(third.Token); got.All || !slices.Equal(got.Rooms[room], []int64{2}) {
		t.Errorf("got %+v", got)
	}
	for _, token := range []string{first.Token, "999999999"} {
		if got := since(token); !got.All || len(got.Rooms) != 1 || len(got.Rooms[room]) != 0 {
			t.Errorf("since %s, of which changes are gone: got %+v", token, got)
		}
	}
}

func TestRelations(t *testing.T) {
	t.Parallel()
	s := open(t)
	for _, e := range [][3]string{
		{"$root", "", ""}, {"$a", "m.thread", "$root"}, {"$b", "m.annotation", "$a"}, {"$c", "m.annotation", "$b"}, {"$d", "m.annotation", "$c"},
		{"$other", "", ""}, {"$hidden", "m.thread", "$root"}, {"$e", "m.reference", "$root"},
	} {
		added := add(t, s, e[0], e[1], e[2])
		if e[0] == "$hidden" {
			continue
		}
		if err := s.Show(t.Context(), added.Position, nil); err != nil {
			t.Fatal(err)
		}
	}
	for depth, want := range map[int]string{1: "[$e $a]", 2: "[$e $b $a]", MaxDepth: "[$e $c $b $a]"} {
		related, err := s.Relations(t.Context(), room, "$root", depth)
		var ids []string
		for _, e := range related {
			ids = append(ids, e.ID)
		}
		if fmt.Sprint(ids) != want || err != nil {
			t.Errorf("depth %d: got %v, want %s, error %v", depth, ids, want, err)
		}
	}
}

func TestReceiptsNeverGoBack(t *testing.T) {
	t.Parallel()
	s := open(t)
	for _, r := range []struct {
		room, event  string
		position     int64
		kind, thread string
	}{
		{room, "$2", 2, "m.read", "main"}, {room, "$1", 1, "m.read", "main"}, {room, "$1", 1, "m.read.private", ""}, {"!other", "$9", 9, "m.read", "$t"},
	} {
		if err := s.SetReceipt(t.Context(), "@alice:x", Event{Room: r.room, ID: r.event, Position: r.position}, r.kind, r.thread); err != nil {
			t.Fatal(err)
		}
	}
	all, err := s.Receipts(t.Context(), "@alice:x")
	if err != nil || len(all) != 2 || len(all[room]) != 2 || len(all["!other"]) != 1 || all["!other"][0].Thread != "$t" {
		t.Fatalf("got %v, error %v", all, err)
	}
	for _, r := range all[room] {
		if want := map[string]string{"m.read": "$2", "m.read.private": "$1"}[r.Kind]; r.Event != want || time.Since(r.Time) > time.Minute {
			t.Errorf("got %v", r)
		}
	}
}

// An event, its membership change and what else the transaction has are stored together, or not at all. A repeated event
// changes nothing.
func TestAnEventIsStoredWhole(t *testing.T) {
	t.Parallel()
	s := open(t)
	calls := 0
	add := func(is Membership, fails error) error {
		_, err := s.Add(t.Context(), Event{Room: room, ID: "$1", JSON: "{}"}, Change{User: "@a:x", Is: is},
			func(context.Context, *data.Tx, Event) error { calls++; return fails })
		return err
	}
	if err := add(Joined, io.ErrUnexpectedEOF); fault.KindOf(err) != fault.Unavailable {
		t.Errorf("got %v", err)
	}
	stored, err := s.Room(t.Context(), room, "")
	if _, found, failed := s.Event(t.Context(), room, "$1"); found || failed != nil || err != nil || len(stored.Members) > 0 {
		t.Errorf("got %v, %v, %v, %v", found, failed, stored, err)
	}
	for _, is := range []Membership{Joined, Left} {
		if err := add(is, nil); err != nil {
			t.Fatal(err)
		}
	}
	if stored, err := s.Room(t.Context(), room, ""); err != nil || len(stored.Members) != 1 || calls != 2 {
		t.Errorf("got %v, %v, %d calls", stored, err, calls)
	}
}
