package main

import (
	"encoding/json"

	"github.com/pushfx/pushfx/integration/homeserver/rooms"
	"github.com/pushfx/pushfx/module"
)

// relatedTo returns the event that an encrypted event refers to, by which the module knows a call. It is zero for other
// events, and if the event is not found now.
func relatedTo(event string, find func(id string) (rooms.Event, bool, error)) (related module.RelatedEvent) {
	var has struct {
		Type string `json:"type"`
	}
	relation := rooms.RelationOf(event)
	if relation.Type != "m.reference" || json.Unmarshal([]byte(event), &has) != nil || has.Type != "m.room.encrypted" {
		return related
	}
	e, found, err := find(relation.Parent)
	if err != nil || !found || json.Unmarshal([]byte(e.JSON), &related) != nil {
		return module.RelatedEvent{}
	}
	return related
}
