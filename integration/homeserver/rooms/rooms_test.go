package rooms

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/redistest"
)

const room = "!r:x"

func open(t *testing.T) *Store {
	t.Helper()
	client := redis.NewClient(&redis.Options{Addr: miniredis.RunT(t).Addr()})
	t.Cleanup(func() { client.Close() })
	return New(client, "", 5*time.Second)
}

func add(t *testing.T, s *Store, id, relation, to string) Event {
	t.Helper()
	content := "{}"
	if to != "" {
		content = fmt.Sprintf(`{"m.relates_to":{"rel_type":%q,"event_id":%q}}`, relation, to)
	}
	e, _, err := s.Add(t.Context(), room, Event{ID: id, JSON: `{"content":` + content + `}`}, Change{}, "")
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
		if leads, err := s.Leads(t.Context(), room, e, "$root"); err != nil || leads != want {
			t.Errorf("%s leads to the root: %v, %v", id, leads, err)
		}
	}
}

func TestRoomsKeepTheNewestEvents(t *testing.T) {
	t.Parallel()
	s := open(t)
	for n := range keptEvents + 100 {
		e := add(t, s, fmt.Sprintf("$%d", n), "", "")
		if err := s.Show(t.Context(), room, e, nil); err != nil || e.Position != int64(n+1) {
			t.Fatalf("got %+v, %v", e, err)
		}
	}
	if e := add(t, s, "$207", "", ""); e.Position != 208 {
		t.Errorf("a repeated event has position %d, want 208", e.Position)
	}
	if _, found, err := s.Event(t.Context(), room, "$99"); found || err != nil {
		t.Errorf("an old event is found: %v", err)
	}
	events, limited, err := s.Timeline(t.Context(), room, 2)
	if err != nil || !limited || len(events) != 2 || events[0].ID != fmt.Sprintf("$%d", keptEvents+98) {
		t.Errorf("got %+v, %v, %v", events, limited, err)
	}
}

func TestMembershipEventsWin(t *testing.T) {
	t.Parallel()
	s := open(t)
	change := func(c Change, want ...mxid.UserID) {
		t.Helper()
		e := Event{ID: fmt.Sprint("$", time.Now().UnixNano()), JSON: "{}"}
		if _, _, err := s.Add(t.Context(), room, e, c, ""); err != nil {
			t.Fatal(err)
		}
		if got, err := s.Members(t.Context(), room); err != nil || !slices.Equal(got.Users(Joined), want) {
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
	join := func(n int) error {
		_, _, err := s.Add(t.Context(), room, Event{ID: fmt.Sprint("$", n), JSON: "{}"}, Change{User: mxid.UserID(fmt.Sprintf("@%d:x", n)), Is: Joined}, "")
		return err
	}
	n, most := 0, []any{}
	for ; n < maxFields-10; n++ {
		most = append(most, fmt.Sprintf("is:@%d:x", n), string(Joined))
	}
	if err := s.client.HSet(t.Context(), s.roomKeys(room)[0], most...).Err(); err != nil {
		t.Fatal(err)
	}
	for ; n < 2*maxFields && join(n) == nil; n++ {
	}
	if n > maxFields || n < maxFields-5 {
		t.Errorf("%d users joined", n)
	}
	_, _, err := s.Add(t.Context(), room, Event{ID: "$leave", JSON: "{}"}, Change{User: "@1:x", Is: Left}, "")
	if err != nil {
		t.Errorf("a member cannot leave: %v", err)
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
		if err := s.Show(t.Context(), room, add(t, s, id, "", ""), []mxid.UserID{user}); err != nil {
			t.Fatal(err)
		}
	}
	show("$1")
	show("$1")
	second := since(first.Token)
	if second.All || !slices.Equal(second.Rooms[room], []string{"$1"}) {
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
	for n := range keptChanges + 200 {
		show(fmt.Sprint("$more", n))
	}
	for _, token := range []string{first.Token, second.Token, "99-0"} {
		if got := since(token); !got.All || len(got.Rooms) != 2 {
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
		if err := s.Show(t.Context(), room, added, nil); err != nil {
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
		if err := s.SetReceipt(t.Context(), "@alice:x", r.room, Event{ID: r.event, Position: r.position}, r.kind, r.thread); err != nil {
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

// A row waits in the outbox until it is handed over.
func TestTheOutboxHasTheRowsOfItsRooms(t *testing.T) {
	t.Parallel()
	s := open(t)
	for _, name := range []string{"!a:x", "!b:x"} {
		for range 2 { // a repetition stores the row again, which a failed handover needs
			if _, _, err := s.Add(t.Context(), name, Event{ID: "$1", JSON: "{}"}, Change{}, "row of "+name); err != nil {
				t.Fatal(err)
			}
		}
	}
	if rows, err := s.Rows(t.Context(), time.Minute); err != nil || len(rows) != 0 {
		t.Errorf("young rows: %v, %v", rows, err)
	}
	rows, err := s.Rows(t.Context(), 0)
	if want := []Row{{"!a:x", "$1", 1, "row of !a:x"}, {"!b:x", "$1", 1, "row of !b:x"}}; err != nil || !slices.Equal(rows, want) {
		t.Fatalf("got %v, %v, want %v", rows, err, want)
	}
	for _, text := range []string{"for some", "of another host, which read the first row"} {
		if err := s.Keep(t.Context(), rows[0], text); err != nil {
			t.Fatal(err)
		}
	}
	if _, _, err := s.Add(t.Context(), "!a:x", Event{ID: "$1", JSON: "{}"}, Change{}, "row of !a:x"); err != nil {
		t.Fatal(err)
	}
	if rows, err := s.Rows(t.Context(), 0); err != nil || len(rows) != 2 || rows[0].Text != "for some" {
		t.Errorf("got %v, %v", rows, err)
	}
	if err := s.HandedOver(t.Context(), rows[0]); err != nil {
		t.Fatal(err)
	}
	if err := s.Keep(t.Context(), rows[0], "of a host that was slower"); err != nil {
		t.Fatal(err)
	}
	if rows, err = s.Rows(t.Context(), 0); err != nil || len(rows) != 1 || rows[0].Room != "!b:x" {
		t.Errorf("got %v, %v, want the row of !b:x", rows, err)
	}
}

// A lost master takes its own rooms from the outbox, and no others.
func TestTheOutboxOfOtherRoomsWorksBesideALostMaster(t *testing.T) {
	t.Parallel()
	redistest.Require(t)
	cluster := redistest.Cluster(t, 3, 0, "--cluster-require-full-coverage", "no")
	s := New(cluster.Client(t), "", time.Minute)
	masterOf := func(key string) *redistest.Server {
		return cluster.Masters()[s.client.ClusterKeySlot(t.Context(), key).Val()*3/16384]
	}
	lost := masterOf(s.listingKey(listingOf("!0:x")))
	addAll := func(n int, of func(*redistest.Server) bool) (added []Row) {
		for i := 0; len(added) < n; i++ {
			name := fmt.Sprintf("!%d:x", i)
			if !of(masterOf(s.rowsKey(name))) {
				continue
			}
			if _, _, err := s.Add(t.Context(), name, Event{ID: "$1", JSON: "{}"}, Change{}, "row"); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			added = append(added, Row{name, "$1", 1, "row"})
		}
		return added
	}
	addAll(roomsAtOnce, func(m *redistest.Server) bool { return m == lost })
	lost.Stop()
	want := addAll(20, func(m *redistest.Server) bool { return m != lost })
	slices.SortFunc(want, func(a, b Row) int { return strings.Compare(a.Room, b.Room) })
	if rows, err := s.Rows(t.Context(), 0); err == nil || !slices.Equal(rows, want) {
		t.Errorf("got %d rows, %v, want %d rows and an error", len(rows), err, len(want))
	}
}
