package fold

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

func highlighted(op Op) Op {
	op.Highlight = true
	return op
}

// longID returns an id of 255 bytes.
func longID(sigil string, n int) string {
	id := fmt.Sprintf("%s%06d", sigil, n)
	return id + strings.Repeat("x", 255-len(id))
}

func compacted(t testing.TB, ops ...Op) (r *Record, text string) {
	t.Helper()
	text = fold(t, texts(ops...)).Text()
	return fold(t, []string{text}), text
}

func sum(room *Room) Counts {
	if room == nil {
		return Counts{}
	}
	main, threads := room.Counts()
	for _, thread := range threads {
		main = main.plus(thread)
	}
	return main
}

func ofThread(thread string, from, to int64) (ops []Op) {
	for position := from; position <= to; position++ {
		ops = append(ops, notified("!a", position, thread))
	}
	return ops
}

func TestLimitsOfARoom(t *testing.T) {
	for _, test := range []struct {
		name string
		ops  []Op
		want string
		kept int
		then []Op // after a compaction
		left string
	}{
		{
			"the newest are kept, and the others count", ofThread(Main, 1, 500), "{500 0} map[]", 200,
			append(ofThread(Main, 1, 500), read("!a", All, 490)), "{10 0} map[]",
		},
		{
			"a receipt between those that only count leaves one of them", ofThread(Main, 1, 500), "{500 0} map[]", 200,
			[]Op{read("!a", All, 100)}, "{201 0} map[]",
		},
		{
			"a busy thread does not hide the main timeline", append(ofThread(Main, 1, 2), ofThread("$t", 3, 252)...), "{2 0} map[$t:{250 0}]", 200,
			[]Op{read("!a", "$t", 252)}, "{2 0} map[]",
		},
		{
			"a busy thread does not hide another thread", append(ofThread("$quiet", 1, 5), ofThread("$t", 6, 300)...), "{0 0} map[$quiet:{5 0} $t:{295 0}]", 200,
			[]Op{read("!a", "$t", 300), read("!a", "$quiet", 3)}, "{0 0} map[$quiet:{2 0}]",
		},
		{
			"a busy thread leaves 50 of the main timeline", append(ofThread(Main, 1, 60), ofThread("$t", 61, 300)...), "{60 0} map[$t:{240 0}]", 200,
			[]Op{read("!a", "$t", 300), read("!a", Main, 20)}, "{40 0} map[]",
		},
		{
			"highlights are kept longer than others", append(ofThread(Main, 21, 500), highlighted(notified("!a", 3, "$t"))), "{480 0} map[$t:{1 1}]", 200,
			[]Op{read("!a", Main, 499)}, "{1 0} map[$t:{1 1}]",
		},
		{
			"an omitted notification that is repeated counts once", ofThread("$t", 1, 300), "{0 0} map[$t:{300 0}]", 200,
			ofThread("$t", 1, 300), "{0 0} map[$t:{300 0}]",
		},
		{
			"a receipt of another thread leaves what only counts", ofThread("$t", 1, 300), "{0 0} map[$t:{300 0}]", 200,
			[]Op{read("!a", "$u", 300), read("!a", Main, 300)}, "{0 0} map[$t:{300 0}]",
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			r, text := compacted(t, test.ops...)
			main, threads := r.rooms["!a"].Counts()
			if got := fmt.Sprint(main, threads); got != test.want || r.rooms["!a"].kept() != test.kept || r.rooms["!a"].Len() != sum(r.rooms["!a"]).Notifications {
				t.Errorf("got %s and %d of %d, want %s and %d", got, r.rooms["!a"].kept(), r.rooms["!a"].Len(), test.want, test.kept)
			}
			for range 2 {
				r = fold(t, append([]string{text}, texts(test.then...)...))
				main, threads = r.rooms["!a"].Counts()
				if got := fmt.Sprint(main, threads); got != test.left {
					t.Errorf("then got %s, want %s", got, test.left)
				}
				text = r.Text()
			}
			if r.IsShortened() {
				t.Error("the record is shortened")
			}
		})
	}
}

func TestNewestIncludesWhatOnlyCounts(t *testing.T) {
	r, text := compacted(t, append(ofThread("$t", 1, 300), notified("!b", 7, Main))...)
	r.rooms["!a"].keep(1)
	r.rooms["!a"].omit(Main, omission{n: [2]int{1}, upTo: [2]int64{400}})
	if a, b := r.rooms["!a"].Newest(), r.rooms["!b"].Newest(); a != 400 || b != 7 {
		t.Errorf("got %d and %d", a, b)
	}
	if r := fold(t, []string{text, read("!a", All, 300).Text()}); r.rooms["!a"].Newest() != 0 {
		t.Errorf("after a read: got %d", r.rooms["!a"].Newest())
	}
}

// honest are the notifications of a user with many rooms, of which each has a mention.
func honest(rooms int) (ops []Op) {
	for room := range rooms {
		id := fmt.Sprintf("!%06d-ooooooooooooooooooooooooooooooooooooooo", room)
		for position := range int64(3) {
			op := notified(id, 1+position, Main)
			op.Highlight = position == 1
			ops = append(ops, op)
		}
	}
	return ops
}

func wantHonest(t *testing.T, r *Record, rooms int) {
	t.Helper()
	for _, op := range honest(rooms) {
		room := r.rooms[op.Room]
		if got := sum(room); got != (Counts{3, 1}) || len(room.Unread()) != 3 {
			t.Fatalf("room %s has %+v", op.Room, got)
		}
	}
}

func invites(n int) (ops []Op) {
	for i := range n {
		op := notified(longID("!", i), 1, Main)
		op.Invite, op.Time = true, 1_000_000+int64(i)
		ops = append(ops, op)
	}
	return ops
}

// threadsOf are notifications in threads with roots of 255 bytes.
func threadsOf(rooms, threads int) (ops []Op) {
	for room := range rooms {
		for i := range threads {
			op := notified(fmt.Sprintf("!shared%d", room), int64(i+1), longID("$", i))
			op.Time = 1_000_000
			ops = append(ops, op)
		}
	}
	return ops
}

// An account invites a user to many rooms, and fills rooms that it shares with the user. It
// must not take the counts and mentions of the user's other rooms.
func TestARoomTakesNoCountsOfAnother(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name        string
		ops         []Op
		isShortened bool
	}{
		{"nothing else", nil, false},
		{"invites", invites(1050), true},
		{"threads", threadsOf(10, 200), true},
		{"both", append(invites(1050), threadsOf(10, 200)...), true},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			list := texts(honest(4000)...)
			for ops := test.ops; len(ops) > 0; {
				n := min(64, len(ops))
				list = append(list, texts(ops[:n]...)...)
				ops = ops[n:]
				if len(list) > 5000 || len(ops) == 0 {
					list = []string{fold(t, list).Text()}
				}
			}
			text := fold(t, list).Text()
			r := fold(t, []string{text})
			if len(text) > MaxBytes || r.IsShortened() != test.isShortened {
				t.Errorf("%d bytes, shortened is %t", len(text), r.IsShortened())
			}
			wantHonest(t, r, 4000)
			if again := fold(t, []string{r.Text()}); describe(again) != describe(r) {
				t.Error("the record changes when it is written again")
			}
			shared, kept := 0, 0
			for id, room := range r.rooms {
				switch {
				case strings.HasPrefix(id, "!shared"):
					if got := sum(room); got.Notifications != 200 {
						t.Errorf("room %s has %+v", id, got)
					}
					shared++
				case room.isInvite():
					kept++
				}
			}
			if len(test.ops) > 2000 && shared != 10 {
				t.Errorf("%d shared rooms are left", shared)
			}
			if test.ops != nil && test.ops[0].Invite {
				if newest := r.rooms[longID("!", 1049)]; newest == nil || kept < 100 || r.rooms[longID("!", 1049-kept)] != nil {
					t.Errorf("%d invites are left, not the newest ones", kept)
				}
			}
		})
	}
}

func TestFiveThousandRoomsFit(t *testing.T) {
	r, text := compacted(t, honest(5000)...)
	wantHonest(t, r, 5000)
	if len(text) > MaxBytes || r.IsShortened() {
		t.Errorf("%d bytes, shortened is %t", len(text), r.IsShortened())
	}
}

// The largest rooms are shortened to their counts and a mention before any room goes, and
// rooms without notifications go first.
func TestTheLargestRoomsAreShortenedFirst(t *testing.T) {
	t.Parallel()
	ops := honest(4900)
	for room := range 40 {
		for i := range 200 {
			op := notified(fmt.Sprintf("!large%d", room), int64(i+1), longID("$", i))
			op.Highlight = i == 70 || i == 71
			ops = append(ops, op)
		}
	}
	for i := range 1000 {
		ops = append(ops, read(fmt.Sprintf("!idle%d", i), All, 1))
	}
	r, text := compacted(t, ops...)
	wantHonest(t, r, 4900)
	for room := range 40 {
		room := r.rooms[fmt.Sprintf("!large%d", room)]
		if got := sum(room); got != (Counts{200, 2}) || len(room.Unread()) > 12 || !room.Unread()[0].Highlight {
			t.Fatalf("got %+v, %d kept", got, len(room.Unread()))
		}
	}
	if len(text) > MaxBytes || r.rooms["!idle0"] != nil || !r.IsShortened() {
		t.Errorf("%d bytes, shortened is %t, idle %v", len(text), r.IsShortened(), r.rooms["!idle0"])
	}
	var reads []string
	for id := range r.rooms {
		reads = append(reads, read(id, All, 1000).Text())
	}
	if r := fold(t, append([]string{text}, reads...)); r.IsShortened() {
		t.Error("the record is shortened, although all is read")
	}
}

// Only a user with more unread rooms than a record can have loses those that were quiet
// longest.
func TestMoreRoomsThanARecordHolds(t *testing.T) {
	t.Parallel()
	var ops []Op
	for i := range 4000 {
		op := notified(longID("!", i), 1, Main)
		op.Time = int64(i)
		ops = append(ops, op)
	}
	r, text := compacted(t, ops...)
	if len(text) > MaxBytes || len(r.rooms) < 1800 || !r.IsShortened() {
		t.Errorf("%d bytes, %d rooms, shortened is %t", len(text), len(r.rooms), r.IsShortened())
	}
	for i, op := range ops {
		if found := r.rooms[op.Room] != nil; found != (i >= 4000-len(r.rooms)) {
			t.Fatalf("of %d rooms, number %d: found is %t", len(r.rooms), i, found)
		}
	}
	if r.Expire(4000, 0); r.IsShortened() {
		t.Error("the record is shortened for ever")
	}
}

func TestMarksOfManyThreads(t *testing.T) {
	t.Parallel()
	var ops []Op
	for i := range 20_000 {
		ops = append(ops, read(fmt.Sprintf("!%d", i%20), longID("$", i), int64(i+1)))
	}
	r, text := compacted(t, append(ops, honest(3000)...)...)
	wantHonest(t, r, 3000)
	if len(text) > MaxBytes || r.IsShortened() {
		t.Errorf("%d bytes, shortened is %t", len(text), r.IsShortened())
	}
}

func TestAThreadIsNamedOnce(t *testing.T) {
	root := longID("$", 1)
	ops := append(ofThread(root, 100, 400), highlighted(notified("!a", 3, root)), read("!a", root, 10))
	r, text := compacted(t, ops...)
	if n := strings.Count(text, root); n != 1 || len(r.rooms["!a"].seen) != 1 {
		t.Errorf("the root is stored %d times, seen are %+v", n, r.rooms["!a"].seen)
	}
}

// A user may have many rules with long actions.
func TestActionsHaveABound(t *testing.T) {
	var ops []Op
	for i := range 100 {
		op := highlighted(notified(fmt.Sprintf("!%02d", i), 1, Main))
		op.Actions = fmt.Sprintf(`["notify",{"set_tweak":"%01000d"}]`, i)
		ops = append(ops, op)
	}
	r, text := compacted(t, ops...)
	if len(text) > maxActionBytes+10_000 {
		t.Errorf("%d bytes", len(text))
	}
	if first, last := r.rooms["!00"].Unread()[0].Actions, r.rooms["!99"].Unread()[0].Actions; first != ops[0].Actions || last != Simplest(true) {
		t.Errorf("got %s and %s", first, last)
	}
}

func TestReadHighlights(t *testing.T) {
	ops := append(ofThread(Main, 1, 20), highlighted(notified("!a", 30, "$t")), highlighted(notified("!a", 31, Main)), highlighted(notified("!a", 32, Main)))
	list := append(texts(ops...), read("!a", All, 31).Text(), highlighted(notified("!a", 25, Main)).Text(), redacted("!a", 31).Text())
	for range 3 {
		r := fold(t, list)
		var seen []int64
		for _, n := range r.rooms["!a"].Seen() {
			seen = append(seen, n.Position)
		}
		if !slices.Equal(seen, []int64{25, 30}) || r.rooms["!a"].Len() != 1 {
			t.Errorf("got %v, %d unread", seen, r.rooms["!a"].Len())
		}
		r.Expire(1_000_000, 0)
		list = []string{r.Text(), ops[20].Text()}
	}
}

func TestLimitsOfReadHighlights(t *testing.T) {
	for _, test := range []struct {
		name string
		room func(i int) string
		want int
	}{
		{"a room", func(int) string { return "!a" }, maxSeen},
		{"rooms", func(i int) string { return fmt.Sprintf("!%d-oooooooooooooooooooooooooooooooooooooooo", i%20) }, maxSeen},
		{"rooms with long ids", func(i int) string { return longID("!", i) }, maxSeenBytes / (255 + seenBytes + len(Main))},
	} {
		t.Run(test.name, func(t *testing.T) {
			var ops []Op
			for i := range 200 {
				ops = append(ops, highlighted(notified(test.room(i), int64(i+1), Main)), read(test.room(i), All, 1000))
			}
			for _, r := range []*Record{fold(t, texts(ops...)), fold(t, []string{fold(t, texts(ops...)).Text()})} {
				var seen []int64
				for _, room := range r.rooms {
					for _, n := range room.Seen() {
						seen = append(seen, n.Position)
					}
				}
				slices.Sort(seen)
				if len(seen) != test.want || seen[0] != int64(201-test.want) {
					t.Errorf("got %v, want the last %d", seen, test.want)
				}
				if text := r.Text(); strings.Contains(test.name, "long") && len(text) < maxSeenBytes/2 {
					t.Errorf("%d bytes", len(text))
				}
			}
		})
	}
}
