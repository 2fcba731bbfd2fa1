package delivery_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/pushfx/pushfx"
	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/fault"
	"github.com/pushfx/pushfx/module/match"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/redistest"
)

// row is an event that waits for Notify.
type row struct {
	event   module.Event
	members []match.Member // who are left
}

// outbox is a table of rows.
type outbox interface {
	delete(ctx context.Context, r row) error
	keep(ctx context.Context, r row, members []match.Member) error
	olderThan(ctx context.Context, age time.Duration) []row
}

// announce has the JSON of two events of the room's state, m.room.create and m.room.power_levels.
func announce(ctx context.Context, notifier module.Notifier, create, levels string) error {
	power, err := match.ReadPower(create, levels, "@bob:example.org")
	if err != nil {
		log.Print(err) // power is nil: only rules about power do not match
	}
	event := module.Event{
		JSON: `{"event_id":"$1","room_id":"!lobby:example.org","type":"m.room.message","sender":"@bob:example.org",
			"content":{"msgtype":"m.text","body":"Lunch?"}}`,
		SenderName: "Bob", RoomName: "Lobby",
		Room: match.Room{MemberCount: 2, Power: power},
	}
	members := []match.Member{{User: "@alice:example.org", DisplayName: "Alice"}}
	decisions, undecided := notifier.Decide(ctx, event, members)
	return errors.Join(undecided, notifier.Notify(ctx, event, decisions))
}

// handOver is called when the transaction has committed.
func handOver(ctx context.Context, notifier module.Notifier, rows outbox, r row) error {
	decisions, undecided := notifier.Decide(ctx, r.event, r.members)
	err := errors.Join(undecided, notifier.Notify(ctx, r.event, decisions))
	switch left, all := module.Left(err); {
	case all:
		return err // the row stays
	case len(left) > 0:
		return errors.Join(err, rows.keep(ctx, r, module.MembersOf(r.members, left)))
	}
	return errors.Join(err, rows.delete(ctx, r))
}

// handOverRest is called at the start, and every minute.
func handOverRest(ctx context.Context, notifier module.Notifier, rows outbox) {
	for _, r := range rows.olderThan(ctx, 10*time.Second) {
		_ = handOver(ctx, notifier, rows, r)
	}
}

type notified struct {
	module.Notifier
	got      []string // events and users of each call
	failures []error  // of the calls
}

func (n *notified) Decide(_ context.Context, _ module.Event, members []match.Member) (decisions module.Decisions, _ error) {
	for _, m := range members {
		decisions = append(decisions, module.Decision{User: m.User})
	}
	return decisions, nil
}

func (n *notified) Notify(_ context.Context, _ module.Event, decisions module.Decisions) (err error) {
	users := ""
	for _, d := range decisions {
		users += string(d.User)
	}
	if n.got = append(n.got, users); len(n.failures) > 0 {
		err, n.failures = n.failures[0], n.failures[1:]
	}
	return err
}

type rows struct{ left []row }

func (o *rows) delete(context.Context, row) error {
	o.left = o.left[1:]
	return nil
}

func (o *rows) keep(_ context.Context, _ row, members []match.Member) error {
	o.left[0].members = members
	return nil
}

func (o *rows) olderThan(context.Context, time.Duration) []row { return o.left }

func TestTheOutboxOfThePageRepeatsForTheUsersWhoAreLeft(t *testing.T) {
	away := module.Unavailable(context.DeadlineExceeded)
	left := &module.LeftError{Users: []mxid.UserID{"@b:x"}, Reasons: []error{away}}
	for name, test := range map[string]struct {
		failures []error
		want     string
	}{
		"all":     {[]error{away, away}, "[@a:x@b:x @a:x@b:x @a:x@b:x]"},
		"some":    {[]error{left, left}, "[@a:x@b:x @b:x @b:x]"},
		"refused": {[]error{away, fault.New(fault.InvalidParam, "The event is too large.")}, "[@a:x@b:x @a:x@b:x]"},
	} {
		t.Run(name, func(t *testing.T) {
			n, o := &notified{failures: test.failures}, &rows{left: []row{{members: []match.Member{{User: "@a:x"}, {User: "@b:x"}}}}}
			if err := handOver(t.Context(), n, o, o.left[0]); err == nil || len(o.left) != 1 {
				t.Errorf("got error %v, and %d rows are left", err, len(o.left))
			}
			for range 3 {
				handOverRest(t.Context(), n, o)
			}
			if fmt.Sprint(n.got) != test.want || len(o.left) != 0 {
				t.Errorf("got %v, and %d rows are left", n.got, len(o.left))
			}
		})
	}
}

// deciding decides, and keeps the decisions.
type deciding struct {
	module.Notifier
	got module.Decisions
}

func (d *deciding) Notify(_ context.Context, _ module.Event, got module.Decisions) error {
	d.got = got
	return nil
}

func TestTheEventOfThePageIsDecidedByTheRuleForTwoMembers(t *testing.T) {
	push, err := pushfx.New(redistest.Single(t).Client(t), pushfx.DefaultConfig(), pushfx.Options{Delivery: &pushfx.DeliveryOptions{}})
	if err != nil {
		t.Fatal(err)
	}
	d := &deciding{Notifier: push.Notifier}
	const create = `{"sender":"@bob:example.org","content":{"room_version":"12"}}`
	if err := announce(t.Context(), d, create, ""); err != nil {
		t.Fatal(err)
	}
	if _, rule := d.got[0].Result.Rule(); rule != ".m.rule.room_one_to_one" {
		t.Errorf("decided by %q", rule)
	}
}

func TestTheReadmeShowsTheExamples(t *testing.T) {
	page, code := readFile(t, "README.md"), withoutIndent(readFile(t, "example_test.go"))
	blocks := regexp.MustCompile("(?s)```go\n(.*?)```").FindAllStringSubmatch(page, -1)
	if len(blocks) != 2 {
		t.Fatalf("README.md has %d Go blocks", len(blocks))
	}
	for _, block := range blocks {
		if !strings.Contains(code, withoutIndent(block[1])) {
			t.Errorf("not in example_test.go:\n%s", block[1])
		}
	}
	if len(page) > 10<<10 {
		t.Errorf("README.md has %d bytes, more than 10 KB", len(page))
	}
}

func readFile(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func withoutIndent(code string) string {
	return regexp.MustCompile(`(?m)^\s+`).ReplaceAllString(code, "")
}
