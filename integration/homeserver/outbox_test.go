package main

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/pushfx/pushfx/integration/homeserver/rooms"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/redistest"
)

// A starting host hands over events that another host left in the outbox 10 s ago.
func TestAStartingHostEmptiesTheOutbox(t *testing.T) {
	t.Parallel()
	redistest.Require(t)
	server := redistest.Single(t)
	client := server.Client(t)
	flags := []string{"-redis-mode", "standalone", "-redis", "redis://" + server.Addr(), "-key-prefix", "hs1:"}
	first := startDemo(t, flags...)
	first.setPusherHere("demo-alice", "phone", "")
	store, rows := rooms.New(client, "hs1:", time.Minute), "hs1:demo:outbox:{!r:x}"
	data, err := json.Marshal(row{Sender: "@bob:localhost"})
	for _, id := range []string{"$old", "$young"} {
		if err == nil {
			_, _, err = store.Add(t.Context(), "!r:x", rooms.Event{ID: id, JSON: fmt.Sprintf(
				`{"event_id":%q,"room_id":"!r:x","type":"m.room.message","sender":"@bob:localhost","content":{}}`, id,
			)}, rooms.Change{Members: []mxid.UserID{"@alice:localhost"}}, string(data))
		}
	}
	if err == nil {
		old := client.Time(t.Context()).Val().Unix() - 10
		err = client.HSet(t.Context(), rows, "$old", fmt.Sprint(old, " 1 ", string(data))).Err()
	}
	if err != nil {
		t.Fatal(err)
	}
	second := startDemo(t, flags...)
	poll(t, "the old event is printed", func() bool { return strings.Contains(first.stdout.String()+second.stdout.String(), "event $old") })
	poll(t, "its row is removed", func() bool { return client.HLen(t.Context(), rows).Val() == 1 })
	if strings.Contains(first.stdout.String()+second.stdout.String(), "event $young") {
		t.Error("the young event was sent, too")
	}
}
