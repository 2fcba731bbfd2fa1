package fold

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

const tweaks = `["notify",{"set_tweak":"sound","value":"bell"}]`

func notified(room string, position int64, thread string) Op {
	return Op{Kind: Notified, Room: room, Position: position, Thread: thread, Time: 1000 + position, Actions: knownActions[0]}
}

func read(room, thread string, position int64) Op {
	return Op{Kind: Read, Room: room, Thread: thread, Position: position, Time: 1000}
}

func redacted(room string, position int64) Op {
	return Op{Kind: Redacted, Room: room, Position: position, Time: 1000}
}

func texts(ops ...Op) (all []string) {
	for _, op := range ops {
		all = append(all, op.Text())
	}
	return all
}

func fold(t testing.TB, list []string, rooms ...string) *Record {
	t.Helper()
	r, err := Fold(list, rooms...)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// describe shows all of a record that later operations can depend on.
func describe(r *Record) string {
	var lines []string
	for id, room := range r.rooms {
		lines = append(lines, fmt.Sprint(id, room.touched, room.all, room.main, room.threads, room.Unread(), room.omitted, room.redacted, room.seen, room.isCut))
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

func TestCountsOfThreads(t *testing.T) {
	for _, test := range []struct {
		name string
		ops  []Op
		want string
	}{
		{"nothing", nil, "{0 0} map[]"},
		{"main and threads", []Op{notified("!a", 1, Main), notified("!a", 2, "$t"), notified("!a", 3, "$t"), notified("!a", 4, "$u")}, "{1 0} map[$t:{2 0} $u:{1 0}]"},
		{"the same twice", []Op{notified("!a", 1, Main), notified("!a", 1, Main)}, "{1 0} map[]"},
		{"a read of all threads", []Op{notified("!a", 1, Main), notified("!a", 2, "$t"), read("!a", All, 2), notified("!a", 3, "$t")}, "{0 0} map[$t:{1 0}]"},
		{"a read of main", []Op{notified("!a", 1, Main), notified("!a", 2, "$t"), read("!a", Main, 2)}, "{0 0} map[$t:{1 0}]"},
		{"a read of a thread", []Op{notified("!a", 1, Main), notified("!a", 2, "$t"), notified("!a", 3, "$u"), read("!a", "$t", 3)}, "{1 0} map[$u:{1 0}]"},
		{"a read before the notification", []Op{read("!a", All, 2), notified("!a", 2, Main), notified("!a", 3, Main)}, "{1 0} map[]"},
		{"a read behind the mark", []Op{read("!a", All, 3), read("!a", All, 1), notified("!a", 2, Main)}, "{0 0} map[]"},
		{"a redaction", []Op{notified("!a", 1, Main), notified("!a", 2, Main), redacted("!a", 1)}, "{1 0} map[]"},
		{"a redaction before the notification", []Op{redacted("!a", 1), notified("!a", 1, Main)}, "{0 0} map[]"},
		{"other rooms", []Op{notified("!b", 1, Main), read("!b", All, 9), notified("!a", 5, Main)}, "{1 0} map[]"},
	} {
		t.Run(test.name, func(t *testing.T) {
			r := fold(t, texts(test.ops...))
			room := r.rooms["!a"]
			if room == nil {
				room = &Room{}
			}
			main, threads := room.Counts()
			if got := fmt.Sprint(main, threads); got != test.want {
				t.Errorf("got %s, want %s", got, test.want)
			}
			again := fold(t, []string{r.Text()})
			if stored := again.rooms["!a"]; stored != nil {
				main, threads := stored.Counts() // of the encoded form
				if got := fmt.Sprint(main, threads); got != test.want || stored.Len() != len(stored.Unread()) {
					t.Errorf("read again: got %s and %d, want %s", got, stored.Len(), test.want)
				}
			}
			if describe(again) != describe(r) {
				t.Errorf("read again:\n%s\nwant\n%s", describe(again), describe(r))
			}
		})
	}
}

// model is the fold of operations, as the package comment describes it.
type model struct{ ops []Op }

func (m model) String() string {
	rooms := map[string]*Room{}
	for _, op := range m.ops {
		if rooms[op.Room] == nil {
			rooms[op.Room] = &Room{}
		}
		room := rooms[op.Room]
		room.touched = max(room.touched, op.Time)
		if op.Kind != Notified || m.isRedacted(op) {
			continue
		}
		n := Notification{op.Position, op.Time, op.Thread, op.Highlight, op.Invite, op.Actions}
		if !m.isRead(op) {
			room.unread = append(room.unread, n)
		} else if n.Highlight {
			room.seen = append(room.seen, n)
		}
	}
	var lines []string
	for id, room := range rooms {
		for _, all := range []*[]Notification{&room.unread, &room.seen} {
			slices.SortFunc(*all, byPosition)
			*all = slices.CompactFunc(*all, isSamePosition)
		}
		lines = append(lines, fmt.Sprint(id, room.touched, room.unread, room.seen))
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

func (m model) isRead(n Op) bool {
	for _, op := range m.ops {
		if op.Kind == Read && op.Room == n.Room && op.Position >= n.Position && (op.Thread == All || op.Thread == n.Thread) {
			return true
		}
	}
	return false
}

func (m model) isRedacted(n Op) bool {
	for _, op := range m.ops {
		if op.Kind == Redacted && op.Room == n.Room && op.Position == n.Position {
			return true
		}
	}
	return false
}

func randomOp(random *rand.Rand) Op {
	position := 1 + random.Int64N(12)
	op := Op{
		Kind: []Kind{Notified, Notified, Notified, Read, Redacted}[random.IntN(5)],
		Room: []string{"!a:x", "!b:x", "!c:x"}[random.IntN(3)], Position: position, Time: random.Int64N(100),
	}
	threads := []string{Main, "$t", "$u"}
	switch op.Kind {
	case Notified:
		op.Thread, op.Highlight, op.Invite, op.Actions = threads[position%3], position%4 < 2, position == 7, []string{knownActions[0], tweaks}[random.IntN(2)]
	case Read:
		op.Thread = append(threads, All)[random.IntN(4)]
	}
	return op
}

func TestRandomHistoriesEqualModel(t *testing.T) {
	seeds := uint64(10_000)
	if testing.Short() {
		seeds /= 10
	}
	for seed := range seeds {
		random := rand.New(rand.NewPCG(seed, 1))
		ops := make([]Op, 1+random.IntN(25))
		for i := range ops {
			ops[i] = randomOp(random)
		}
		for range random.IntN(10) {
			ops = append(ops, ops[random.IntN(len(ops))])
		}
		random.Shuffle(len(ops), func(i, j int) { ops[i], ops[j] = ops[j], ops[i] })
		m := model{slices.Clone(ops)}
		var list []string
		for len(ops) > 0 {
			n := 1 + random.IntN(len(ops))
			list = append(list, texts(ops[:n]...)...)
			if ops = ops[n:]; len(ops) > 0 {
				list = []string{fold(t, list).Text()}
			}
		}
		r := fold(t, list)
		var lines []string
		for id, room := range r.rooms {
			lines = append(lines, fmt.Sprint(id, room.touched, room.Unread(), room.Seen()))
			alone := fold(t, list, id)
			alone.rooms[id].unpack()
			if len(alone.rooms) != 1 || fmt.Sprint(*alone.rooms[id]) != fmt.Sprint(*room) {
				t.Fatalf("seed %d: room %s alone is %+v, want %+v", seed, id, alone.rooms[id], room)
			}
		}
		slices.Sort(lines)
		if got := strings.Join(lines, "\n"); got != m.String() {
			t.Fatalf("seed %d:\n%s\nwant\n%s", seed, got, m)
		}
	}
}

// Any order, repetition and grouping of operations without redactions gives the same record.
func TestOrderHasNoEffect(t *testing.T) {
	for seed := range uint64(2000) {
		random := rand.New(rand.NewPCG(seed, 2))
		var ops []Op
		for range 30 {
			if op := randomOp(random); op.Kind != Redacted {
				ops = append(ops, op)
			}
		}
		want := fold(t, texts(ops...)).Text()
		random.Shuffle(len(ops), func(i, j int) { ops[i], ops[j] = ops[j], ops[i] })
		at := random.IntN(len(ops))
		first := fold(t, texts(ops[:at]...)).Text()
		if got := fold(t, append([]string{first}, texts(append(ops[at:], ops...)...)...)).Text(); got != want {
			t.Fatalf("seed %d:\n%q\nwant\n%q", seed, got, want)
		}
	}
}

func TestIdleRoomsLeave(t *testing.T) {
	r := fold(t, texts(notified("!unread", 1, Main), read("!idle", All, 5), read("!new", All, 1005)))
	r.rooms["!new"].touched = 2000
	r.Expire(1500, 0)
	if len(r.rooms) != 2 || r.rooms["!idle"] != nil {
		t.Errorf("got %s", describe(r))
	}
}

func TestRedactionsAreKnownUntilTheyExpire(t *testing.T) {
	list := texts(notified("!a", 5, Main), redacted("!a", 5), redacted("!idle", 7), read("!read", All, 8))
	for range 2 {
		r := fold(t, list)
		r.Expire(9999, 1000)
		if !r.rooms["!a"].IsRead(Main, 5) || !r.rooms["!idle"].IsRead("$t", 7) || r.rooms["!a"].IsRead(Main, 6) || r.rooms["!read"] != nil {
			t.Errorf("got %s", describe(r))
		}
		list = []string{r.Text(), notified("!a", 5, Main).Text()}
	}
	r := fold(t, list[:1])
	r.Expire(9999, 1001)
	if len(r.rooms) != 0 {
		t.Errorf("expired, got %s", describe(r))
	}
}

func TestIsRead(t *testing.T) {
	r := fold(t, texts(read("!a", All, 5), read("!a", Main, 7), read("!a", "$t", 9), read("!a", "$old", 4)))
	room := fold(t, []string{r.Text()}).rooms["!a"]
	for _, test := range []struct {
		thread   string
		position int64
		want     bool
	}{
		{Main, 5, true}, {Main, 7, true}, {Main, 8, false}, {"$t", 9, true}, {"$t", 10, false}, {"$u", 5, true}, {"$u", 6, false}, {"$old", 5, true}, {All, 5, true}, {All, 6, false},
	} {
		if got := room.IsRead(test.thread, test.position); got != test.want {
			t.Errorf("IsRead(%q, %d) is %t", test.thread, test.position, got)
		}
	}
	if (*Room)(nil).IsRead(Main, 1) {
		t.Error("a room without operations is read")
	}
}
