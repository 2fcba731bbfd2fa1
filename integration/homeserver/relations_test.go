package main

import (
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"
)

func TestRelationsAndReceiptsAreServed(t *testing.T) {
	t.Parallel()
	d := startDemo(t)
	d.send("demo-bob", "$1", "")
	d.send("demo-bob", "$2", `,"m.relates_to":{"rel_type":"m.thread","event_id":"$1"}`)
	d.send("demo-bob", "$3", `,"m.relates_to":{"rel_type":"m.reference","event_id":"$2"}`)
	path := "/_matrix/client/v1/rooms/" + teaRoom + "/relations/$1"
	for more, want := range map[string]string{
		"": "$2", "?recurse=true": "$3 $2", "/m.thread": "$2", "/m.thread?recurse=true": "$2", "/m.reference": "",
		"/m.reference/m.room.message?recurse=true": "$3", "/m.thread/m.reaction": "",
	} {
		var got struct {
			Chunk []struct {
				ID string `json:"event_id"`
			}
		}
		d.object("GET", path+more, "demo-alice", "", &got)
		var ids []string
		for _, e := range got.Chunk {
			ids = append(ids, e.ID)
		}
		if strings.Join(ids, " ") != want {
			t.Errorf("%s: got %q, want %s", more, ids, want)
		}
	}
	d.expect("GET", path, "demo-mallory", "", http.StatusForbidden, "")
	d.expect("GET", strings.Replace(path, "$1", "$9", 1), "demo-alice", "", http.StatusNotFound, "")
	d.expect("GET", path, "", "", http.StatusUnauthorized, "")

	for _, receipt := range []string{"m.read/$2 {\"thread_id\":\"$1\"}", "m.read.private/$3 {}"} {
		where, body, _ := strings.Cut(receipt, " ")
		d.expect("POST", v3+"/rooms/"+teaRoom+"/receipt/"+where, "demo-alice", body, 200, "{}")
	}
	for user, want := range map[string]int{"demo-alice": 2, "demo-bob": 0} {
		var b struct {
			Rooms struct{ Join map[string]roomBatch }
		}
		d.object("GET", v3+"/sync", user, "", &b)
		events := b.Rooms.Join[teaRoom].Ephemeral.Events
		if len(events) != want {
			t.Errorf("%s has %v", user, events)
		}
		for _, e := range events {
			threaded, private := e.Content["$2"]["m.read"]["@alice:localhost"], e.Content["$3"]["m.read.private"]["@alice:localhost"]
			if e.Type != "m.receipt" || threaded.Thread != "$1" && private.Time == 0 || private.Thread != "" {
				t.Errorf("got %+v", e)
			}
		}
	}
}

// Any member may send an invalid relation. It counts as none: the event is in the main timeline, and it is counted,
// pushed and shown as any other. It takes nothing from other events.
func TestAnInvalidRelationCountsAsNone(t *testing.T) {
	t.Parallel()
	invalid := []string{
		`{"rel_type":5,"event_id":"$1"}`, `{"rel_type":"m.thread","event_id":"foo"}`, `{"rel_type":"m.thread","event_id":"$\u0000"}`,
		`{"rel_type":"m.thread","event_id":"$` + strings.Repeat("x", 255) + `"}`, `{"rel_type":"m.thread","event_id":["$1"]}`,
		`{"rel_type":"m.thread"}`, `{"event_id":"$1"}`, `{"rel_type":"","event_id":"$1"}`, `{"Rel_Type":"m.thread","event_id":"$1"}`,
		`["$1"]`, `"$1"`, `5`, `null`,
	}
	d := startDemo(t)
	d.setPusherHere("demo-alice", "phone", "")
	sendAll := func() {
		d.send("demo-bob", "$1", "")
		for i, relation := range invalid {
			d.send("demo-bob", fmt.Sprint("$odd", i), `,"m.relates_to":`+relation)
		}
		d.send("demo-bob", "$reply", `,"m.relates_to":{"rel_type":"m.thread","event_id":"$1"}`)
	}
	sendAll()
	for _, token := range []string{"demo-alice", "demo-bob"} {
		got := d.do("GET", "/_matrix/client/v1/rooms/"+teaRoom+"/relations/$1", token, "")
		if got.status != http.StatusOK || strings.Count(got.body, `"event_id":"$`) != 2 || !strings.Contains(got.body, `"$reply"`) { // itself, and its root
			t.Errorf("%s: got %d %s", token, got.status, got.body)
		}
	}
	byThread := "filter=" + url.QueryEscape(`{"room":{"timeline":{"unread_thread_notifications":true}}}`)
	want := fmt.Sprintf("{%d 0} map[$1:{1 0}]", 1+len(invalid))
	poll(t, "the counts are "+want, func() bool {
		sendAll() // again, because a busy host may count an event later
		return d.unread("demo-alice", byThread) == want
	})
	poll(t, "all events are pushed", func() bool { return strings.Contains(d.stdout.String(), "event $reply ") })
	for i, relation := range invalid {
		if !strings.Contains(d.stdout.String(), fmt.Sprintf("event $odd%d ", i)) {
			t.Errorf("the event with the relation %s is not pushed", relation)
		}
	}
}
