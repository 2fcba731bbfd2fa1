package sqlstore

import (
	"context"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/mxid"
)

// storage stands for the module on all hosts. While it is away, a member of each room is left.
type storage struct {
	mu     sync.Mutex
	isAway bool
	got    []string // events and rests
}

func (s *storage) HandOver(_ context.Context, e module.NewEvent, rest module.Rest, shown func([]mxid.UserID)) (module.Rest, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.got = append(s.got, e.JSON+string(rest)); rest == "" {
		shown([]mxid.UserID{"@a:x"})
	}
	if s.isAway {
		return "+", &module.LeftError{Users: []mxid.UserID{"@a:x"}, Reasons: []error{module.Unavailable(nil)}}
	}
	return "", nil
}

// outboxes are hosts on one database, whose clock stands still.
type outboxes struct {
	*testing.T
	storage
	hosts []*Outbox
	now   time.Time
}

func newOutboxes(t *testing.T, n int) *outboxes {
	t.Helper()
	all, file := &outboxes{T: t, now: time.UnixMilli(1e12)}, filepath.Join(t.TempDir(), "outbox.db")
	for range n {
		all.hosts = append(all.hosts, &Outbox{
			DB: open(t, file), Events: &all.storage, Now: func() time.Time { return all.now },
			Event: func(_ context.Context, id int64) (module.NewEvent, bool, error) {
				return module.NewEvent{Event: module.Event{JSON: string(rune('0' + id))}}, id != 9, nil // 9 is redacted
			},
			Shown: func(int64, []mxid.UserID) error { return nil },
		})
	}
	all.must(all.hosts[0].DB.Exec(OutboxSchema))
	return all
}

func (o *outboxes) must(_ any, err error) {
	o.Helper()
	if err != nil {
		o.Fatal(err)
	}
}

func (o *outboxes) add(host int, id int64, room string) (r Row) {
	o.Helper()
	tx, err := o.hosts[host].DB.Begin()
	o.must(tx, err)
	r, err = o.hosts[host].Add(o.Context(), tx, id, room)
	o.must(r, err)
	o.must(nil, tx.Commit())
	return r
}

// want calls HandOverDue on all hosts at once after a wait, and compares what is handed over.
func (o *outboxes) want(after time.Duration, want ...string) {
	o.Helper()
	o.now, o.got = o.now.Add(after), nil
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
	o.must(nil, o.hosts[0].DB.QueryRow(`SELECT COUNT(*) FROM push_outbox`).Scan(&rows))
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
	for _, wait := range []time.Duration{1, 2, 4, 8, 16, 32, 60, 60} {
		o.want(wait * time.Second)
		o.want(time.Millisecond, "1+")
	}
	o.isAway = false
	o.must(nil, o.hosts[2].HandOver(t.Context(), o.add(2, 2, "!a:x"))) // a new event does not wait
	o.wantRows(1)
	o.want(time.Minute+time.Millisecond, "1+")
	o.wantRows(0)
}

func TestTheEventsOfARoomAreHandedOverInOrder(t *testing.T) {
	t.Parallel()
	o := newOutboxes(t, 1)
	for id := range int64(8) {
		o.add(0, 8-id, "!a:x")
	}
	o.now, o.got = o.now.Add(2*lease), nil
	var running sync.WaitGroup
	o.hosts[0].scan(t.Context(), &running, nil)
	running.Wait()
	if !slices.IsSorted(o.got) || len(o.got) != 8 {
		t.Errorf("handed over are %v", o.got)
	}
}
