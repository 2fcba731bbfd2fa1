package main

import (
	"fmt"
	"testing"

	"github.com/pushfx/pushfx/integration/homeserver/rooms"
	"github.com/pushfx/pushfx/integration/hosttest"
	"github.com/pushfx/pushfx/module"
)

func TestAnEncryptedEventSaysWhatItRefersTo(t *testing.T) {
	t.Parallel()
	member := module.RelatedEvent{Type: "m.rtc.member", Sender: "@bob:localhost"}
	store := rooms.New(hosttest.OpenData(t))
	o := &outbox{rooms: store}
	_, err := store.Add(t.Context(), rooms.Event{
		Room: teaRoom, ID: "$member", JSON: `{"type":"m.rtc.member","sender":"@bob:localhost","state_key":"","content":{}}`,
	}, rooms.Change{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		kind, relation, parent string
		want                   module.RelatedEvent
	}{
		"a call":           {"m.room.encrypted", "m.reference", "$member", member},
		"another relation": {"m.room.encrypted", "m.thread", "$member", module.RelatedEvent{}},
		"another event":    {"m.room.message", "m.reference", "$member", module.RelatedEvent{}},
		"to an old event":  {"m.room.encrypted", "m.reference", "$old", module.RelatedEvent{}},
	} {
		event := fmt.Sprintf(`{"type":%q,"content":{"m.relates_to":{"rel_type":%q,"event_id":%q}}}`, test.kind, test.relation, test.parent)
		if got, err := o.relatedTo(t.Context(), rooms.Event{Room: teaRoom, JSON: event, Parent: test.parent}, readEvent(event)); got != test.want || err != nil {
			t.Errorf("%s: got %+v, %v", name, got, err)
		}
	}
}
