package main

import (
	"errors"
	"fmt"
	"testing"

	"github.com/pushfx/pushfx/integration/homeserver/rooms"
	"github.com/pushfx/pushfx/module"
)

func TestAnEncryptedEventSaysWhatItRefersTo(t *testing.T) {
	t.Parallel()
	member := module.RelatedEvent{Type: "m.rtc.member", Sender: "@bob:localhost"}
	for name, test := range map[string]struct {
		kind, relation string
		found          bool
		err            error
		want           module.RelatedEvent
	}{
		"a call":           {"m.room.encrypted", "m.reference", true, nil, member},
		"another relation": {"m.room.encrypted", "m.thread", true, nil, module.RelatedEvent{}},
		"another event":    {"m.room.message", "m.reference", true, nil, module.RelatedEvent{}},
		"to an old event":  {"m.room.encrypted", "m.reference", false, nil, module.RelatedEvent{}},
		"storage is away":  {"m.room.encrypted", "m.reference", false, errors.New("away"), module.RelatedEvent{}},
	} {
		event := fmt.Sprintf(`{"type":%q,"content":{"m.relates_to":{"rel_type":%q,"event_id":"$member"}}}`, test.kind, test.relation)
		got := relatedTo(event, func(id string) (rooms.Event, bool, error) {
			if id != "$member" {
				t.Errorf("%s: asked for %s", name, id)
			}
			return rooms.Event{JSON: `{"type":"m.rtc.member","sender":"@bob:localhost","state_key":"","content":{}}`}, test.found, test.err
		})
		if got != test.want {
			t.Errorf("%s: got %+v", name, got)
		}
	}
}
