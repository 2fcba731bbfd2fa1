package sqlstore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/mxid"
)

// storage stands for the module on all hosts. While it is away, a member of each room is left.
type storage struct {
	mu     sync.Mutex
	isAway bool
	got    []string // events and rests
	hangs  func(ctx context.Context, event string)
}

func (s *storage) HandOver(ctx context.Context, e module.NewEvent, rest module.Rest, shown func([]mxid.UserID)) (module.Rest, error) {
	if s.hangs != nil {
		s.hangs(ctx, e.JSON)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.got = append(s.got, e.JSON+string(rest)); rest == "" {
		shown([]mxid.UserID{"@a:x"})
	}
	if s.isAway || ctx.Err() != nil {
		return "+", &module.LeftError{Users: []mxid.UserID{"@a:x"}, Reasons: []error{module.Unavailable(nil)}}
	}
	return "", nil
}

// outboxes are hosts on one database, whose clock stands still.
type outboxes struct {
	*testing.T
	storage
	hosts []*Outbox
	db    *sql.DB
	now   time.Time
	fails error // of Shown
}

func newOutboxes(t *testing.T, n int) *outboxes {
	t.Helper()
	all, file := &outboxes{T: t, now: time.UnixMilli(1e12)}, filepath.Join(t.TempDir(), "outbox.db")
	for range n {
		all.hosts = append(all.hosts, &Outbox{
			DB: open(t, file), Events: &all.storage, Now: func() time.Time { return all.pass(0) },
			Event: func(_ context.Context, id int64) (module.NewEvent, bool, error) {
				return module.NewEvent{Event: module.Event{JSON: string(rune('0' + id))}}, id != 9, nil // 9 is redacted
			},
			Shown: func(int64, []mxid.UserID) error { return all.fails },
		})
	}
	all.db = open(t, file)
	all.must(all.db.Exec(OutboxSchema))
	return all
}

// pass moves the clock.
func (o *outboxes) pass(by time.Duration) time.Time {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.now = o.now.Add(by)
	return o.now
}

func (o *outboxes) must(_ any, err error) {
	o.Helper()
	if err != nil {
		o.Fatal(err)
	}
}

func (o *outboxes) add(host int, id int64, room string) (r Row) {
	o.Helper()
	tx, err := o.db.Begin()
	o.must(tx, err)
	r, err = o.hosts[host].Add(o.Context(), tx, id, room)
	o.must(r, err)
	o.must(nil, tx.Commit())
	return r
}

// want calls HandOverDue on all hosts at once after a wait, and compares what is handed over.
func (o *outboxes) want(after time.Duration, want ...string) {
	o.Helper()
	o.pass(after)
	o.got = nil
	var running sync.WaitGroup
	for _, host := range o.hosts {
		host.scan(o.Context(), &running, make(chan error, 1))
	}
	running.Wait()
	if slices.Sort(o.got); !slices.Equal(o.got, want) {
		o.Errorf("after %v: handed over are %v, want %v", after, o.got, want)
	}
}

func (o *outboxes) wantRows(want int) {
	o.Helper()
	var rows int
	o.must(nil, o.db.QueryRow(`SELECT COUNT(*) FROM push_outbox`).Scan(&rows))
	if rows != want {
		o.Errorf("%d rows are left, want %d", rows, want)
	}
}

func TestOneHostHoldsARow(t *testing.T) {
	t.Parallel()
	o := newOutboxes(t, 3)
	r := o.add(0, 1, "!a:x")
	o.want(lease) // the host that has added it holds it
	o.must(nil, o.hosts[0].HandOver(t.Context(), r))
	o.wantRows(0)

	o.add(0, 2, "!a:x") // the host dies
	o.add(0, 3, "!b:x")
	o.add(0, 9, "!b:x")
	o.want(lease)
	o.want(time.Millisecond, "2", "3")
	o.want(2 * lease)
	o.wantRows(0)
}

func TestWhatIsLeftIsRepeatedAfterGrowingWaits(t *testing.T) {
	t.Parallel()
	o := newOutboxes(t, 3)
	o.isAway = true
	if err := o.hosts[1].HandOver(t.Context(), o.add(1, 1, "!a:x")); err == nil {
		t.Error("nobody is left")
	}
	for _, wait := range []time.Duration{1, 2, 4, 8, 8} {
		o.want(wait * time.Second)
		o.want(time.Millisecond, "1+")
	}
	o.isAway = false
	o.must(nil, o.hosts[2].HandOver(t.Context(), o.add(2, 2, "!a:x"))) // a new event does not wait
	o.wantRows(1)
	o.want(8*time.Second+time.Millisecond, "1+")
	o.wantRows(0)
}

// When a storage is back, no row waits for its own next try, and the rows of hosts that hold them stay theirs.
func TestAStorageThatIsBackEndsAllWaits(t *testing.T) {
	t.Parallel()
	o := newOutboxes(t, 1)
	o.isAway = true
	for id := range int64(4) {
		_ = o.hosts[0].HandOver(t.Context(), o.add(0, id, "!a:x"))
	}
	o.add(0, 5, "!a:x")
	o.must(o.db.Exec(`UPDATE push_outbox SET until = until + 50000 WHERE id < 3`))
	o.isAway = false
	o.want(1001*time.Millisecond, "0+", "1+", "2+", "3+")
	o.wantRows(1)
}

func TestTheEventsOfARoomAreHandedOverInOrder(t *testing.T) {
	t.Parallel()
	o := newOutboxes(t, 1)
	for id := range int64(8) {
		o.add(0, 8-id, "!a:x")
	}
	o.pass(2 * lease)
	o.got = nil
	var running sync.WaitGroup
	o.hosts[0].scan(t.Context(), &running, nil)
	running.Wait()
	if !slices.IsSorted(o.got) || len(o.got) != 8 {
		t.Errorf("handed over are %v", o.got)
	}
}

// A room whose handover hangs delays no other room, neither in one scan nor in the next.
func TestASlowRoomDelaysNoOther(t *testing.T) {
	t.Parallel()
	o := newOutboxes(t, 1)
	hang, done := make(chan struct{}), make(chan string, 9)
	o.hangs = func(_ context.Context, event string) {
		if event == "1" {
			<-hang
		}
		done <- event
	}
	var running sync.WaitGroup
	scan := func(want ...string) {
		t.Helper()
		o.hosts[0].scan(t.Context(), &running, nil)
		for range want {
			if got := <-done; !slices.Contains(want, got) {
				t.Errorf("handed over is %s, want %v", got, want)
			}
		}
	}
	o.add(0, 1, "!slow:x")
	o.add(0, 2, "!a:x")
	o.pass(2 * lease)
	scan("2")
	o.add(0, 3, "!slow:x")
	o.add(0, 4, "!b:x")
	o.pass(2 * lease)
	scan("4")
	close(hang)
	running.Wait()
	o.wantRows(0)
}

// An event that syncs do not show yet is handed over again from its beginning.
func TestAnEventThatIsNotShownIsHandedOverAgain(t *testing.T) {
	t.Parallel()
	o := newOutboxes(t, 1)
	o.fails = errors.New("the disk is full")
	if err := o.hosts[0].HandOver(t.Context(), o.add(0, 1, "!a:x")); !errors.Is(err, o.fails) {
		t.Errorf("got %v", err)
	}
	o.want(2*time.Second, "1")
	o.wantRows(1)
	o.fails = nil
	o.want(2*time.Second+time.Millisecond, "1")
	o.wantRows(0)
}

// A host that stops gives its rows to the others.
func TestAStoppingHostGivesItsRowsBack(t *testing.T) {
	t.Parallel()
	o := newOutboxes(t, 2)
	ctx, stop := context.WithCancel(t.Context())
	o.hangs = func(context.Context, string) { stop() }
	if err := o.hosts[0].HandOver(ctx, o.add(0, 1, "!a:x")); err == nil {
		t.Error("nobody is left")
	}
	o.hangs = nil
	o.want(time.Millisecond, "1+")
	o.wantRows(0)
}

// The events of a room are handed over one after the other, but none waits for long.
func TestTurns(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		o, start := new(Outbox), time.Now()
		took := make(chan string, 4)
		take := func(room string, lasts time.Duration) {
			go func() {
				end := o.takeTurn(room)
				took <- fmt.Sprint(room, " ", time.Since(start))
				time.Sleep(lasts)
				end()
			}()
			synctest.Wait()
		}
		take("!a", 50*time.Millisecond)
		take("!a", time.Hour)
		take("!a", time.Hour)
		take("!b", 0)
		for _, want := range []string{"!a 0s", "!b 0s", "!a 50ms", "!a 250ms"} {
			if got := <-took; got != want {
				t.Errorf("got %s, want %s", got, want)
			}
		}
		time.Sleep(2 * time.Hour)
		o.mu.Lock()
		defer o.mu.Unlock()
		if len(o.turns) > 0 {
			t.Errorf("%d rooms are left", len(o.turns))
		}
	})
}

// While a storage is away, rows that wait for it cost few tries, and delay no event of a host that has died. When it is
// back, they are soon done.
func TestManyRowsThatWaitCostLittle(t *testing.T) {
	t.Parallel()
	const rows = 100
	o := newOutboxes(t, 1)
	tx, err := o.db.Begin()
	o.must(tx, err)
	for id := range int64(rows) {
		o.must(o.hosts[0].Add(t.Context(), tx, 10+id, fmt.Sprintf("!%d:x", id)))
	}
	o.must(nil, tx.Commit())
	scan := func() int {
		o.pass(time.Second)
		o.got = nil
		var running sync.WaitGroup
		o.hosts[0].scan(t.Context(), &running, make(chan error, 1))
		running.Wait()
		return len(o.got)
	}
	o.pass(2 * lease)
	o.isAway = true
	for range 10 {
		if n := scan(); n != fewRooms {
			t.Errorf("%d tries in a second, want %d", n, fewRooms)
		}
	}
	o.add(0, 8, "!a:x")
	o.must(o.db.Exec(`UPDATE push_outbox SET until = $1 WHERE id = 8`, o.pass(0).UnixMilli()))
	if scan(); !slices.Contains(o.got, "8") {
		t.Errorf("tried %q, and not the event of a host that has died", o.got)
	}
	o.isAway = false
	seconds := 0
	for scan() > 0 {
		seconds++
	}
	if o.wantRows(0); seconds > 8 {
		t.Errorf("took %d s", seconds)
	}
}

// A host that was paused for longer than its lease leaves its row to the host that holds it since.
func TestAHostThatWasPausedLeavesItsRow(t *testing.T) {
	t.Parallel()
	o := newOutboxes(t, 2)
	r := o.add(0, 1, "!a:x")
	o.pass(lease + time.Millisecond)
	taken, err := o.hosts[1].take(t.Context(), "!a:x", 1) // and works on it
	o.must(taken, err)
	o.isAway = true
	if err := o.hosts[0].HandOver(t.Context(), r); err == nil {
		t.Error("nobody is left")
	}
	o.isAway = false
	o.want(lease - time.Second)
	o.wantRows(1)
	o.must(nil, o.hosts[1].handOver(t.Context(), taken[0]))
	o.wantRows(0)
}
