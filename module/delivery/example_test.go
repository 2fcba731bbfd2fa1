package delivery_test

import (
	"context"
	"log"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/pushfx/pushfx"
	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/handover"
	"github.com/pushfx/pushfx/module/match"
	"github.com/pushfx/pushfx/module/redistest"
)

// announce has the JSON of two events of the room's state, m.room.create and m.room.power_levels.
func announce(ctx context.Context, events module.EventService, create, levels string) (module.Rest, error) {
	power, err := match.ReadPower(create, levels, "@bob:example.org")
	if err != nil {
		log.Print(err) // power is nil: only rules about power do not match
	}
	e := module.NewEvent{
		Event: module.Event{
			JSON: `{"event_id":"$1","room_id":"!lobby:example.org","type":"m.room.message","sender":"@bob:example.org",
				"content":{"msgtype":"m.text","body":"Lunch?"}}`,
			SenderName: "Bob", RoomName: "Lobby",
			Room: match.Room{MemberCount: 2, Power: power},
		},
		Sender:  "@bob:example.org",
		Members: []match.Member{{User: "@alice:example.org", DisplayName: "Alice"}},
	}
	rest, err := events.HandOver(ctx, e, "", nil)
	return rest, err
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
	events := handover.New(d, nil)
	const create = `{"sender":"@bob:example.org","content":{"room_version":"12"}}`
	if rest, err := announce(t.Context(), events, create, ""); err != nil || rest != "" {
		t.Fatal(rest, err)
	}
	if _, rule := d.got[0].Result.Rule(); rule != ".m.rule.room_one_to_one" {
		t.Errorf("decided by %q", rule)
	}
}

func TestTheReadmeShowsTheExamples(t *testing.T) {
	page, code := readFile(t, "README.md"), withoutIndent(readFile(t, "example_test.go"))
	blocks := regexp.MustCompile("(?s)```go\n(.*?)```").FindAllStringSubmatch(page, -1)
	if len(blocks) != 1 {
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
