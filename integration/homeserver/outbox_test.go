package main

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/match"
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
	now := client.Time(t.Context()).Val().Unix()
	for id, age := range map[string]int64{"$old": 10, "$young": 0} {
		data, err := json.Marshal(row{ID: id, Room: "!r:x", Event: module.Event{Position: 1, Thread: module.MainThread, Room: match.Room{MemberCount: 2}, JSON: fmt.Sprintf(
			`{"event_id":%q,"room_id":"!r:x","type":"m.room.message","sender":"@bob:localhost","content":{}}`, id)},
			Members: []mxid.UserID{"@alice:localhost"}, Sender: "@bob:localhost"})
		if err == nil {
			err = client.HSet(t.Context(), "hs1:demo:outbox", id, fmt.Sprint(now-age, " ", string(data))).Err()
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	second := startDemo(t, flags...)
	poll(t, "the old event is printed", func() bool { return strings.Contains(first.stdout.String()+second.stdout.String(), "event $old") })
	poll(t, "its row is deleted", func() bool { return client.HLen(t.Context(), "hs1:demo:outbox").Val() == 1 })
	if strings.Contains(first.stdout.String()+second.stdout.String(), "event $young") {
		t.Error("the young event was sent, too")
	}
}
