package main

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/pushfx/pushfx/module/redistest"
)

const (
	teaRoom  = "!tea:localhost"
	teaEvent = `{"event_id":%q,"room_id":"!tea:localhost","members":["@alice:localhost","@bob:localhost"],` +
		`"type":"m.room.message","content":{"msgtype":"m.text","body":"Tea?"%s}}`
	membership = `{"room_id":"!tea:localhost","members":["@alice:localhost","@bob:localhost"],` +
		`"type":"m.room.member","state_key":%q,"content":{"membership":%q}}`
)

type syncedRoom struct {
	Timeline struct {
		Events []struct {
			ID      string `json:"event_id"`
			Type    string
			Content map[string]any
		}
		Limited bool
	}
	Summary struct {
		Joined int `json:"m.joined_member_count"`
	}
}

func (r syncedRoom) ids() string {
	var ids []string
	for _, e := range r.Timeline.Events {
		ids = append(ids, e.ID)
	}
	return strings.Join(ids, " ")
}

type syncedRooms struct {
	Next  string `json:"next_batch"`
	Rooms struct{ Join, Leave map[string]syncedRoom }
}

func (d *demo) syncRooms(token, query string) (b syncedRooms) {
	d.t.Helper()
	d.object("GET", v3+"/sync?"+query, token, "", &b)
	return b
}

func (d *demo) send(token, id, more string) {
	d.t.Helper()
	d.expect("POST", sendPath, token, fmt.Sprintf(teaEvent, id, more), 200, "")
}

func TestSyncDeliversRooms(t *testing.T) {
	t.Parallel()
	redistest.Require(t)
	redis := []string{"-redis-mode", "standalone", "-redis", "redis://" + redistest.Single(t).Addr()}
	here, there := startDemo(t, redis...), startDemo(t, redis...)
	empty := here.syncRooms("demo-alice", "")
	if len(empty.Rooms.Join) != 0 {
		t.Errorf("got %+v", empty)
	}
	here.expect("POST", sendPath, "demo-bob", fmt.Sprintf(teaEvent, "$1", ""), 200, `{"event_id":"$1","position":1}`)
	there.expect("POST", sendPath, "demo-bob", fmt.Sprintf(teaEvent, "$2", ""), 200, `{"event_id":"$2","position":2}`)
	there.expect("POST", sendPath, "demo-bob", fmt.Sprintf(teaEvent, "$1", ""), 200, `{"event_id":"$1","position":1}`)
	for _, user := range []string{"demo-alice", "demo-bob"} {
		first := there.syncRooms(user, "")
		if got := first.Rooms.Join[teaRoom]; got.ids() != "$1 $2" || got.Summary.Joined != 2 || got.Timeline.Limited {
			t.Errorf("%s: got %+v", user, got)
		}
	}
	if got := there.syncRooms("demo-alice", "since="+empty.Next); got.Rooms.Join[teaRoom].ids() != "$1 $2" {
		t.Errorf("got %+v", got)
	}

	next := here.syncRooms("demo-alice", "").Next
	for _, d := range []*demo{here, there} { // an event wakes the syncs of its host and of others
		waiting := here.startSync("demo-alice", "since="+next+longPoll)
		began := time.Now()
		d.send("demo-bob", "$"+d.url, "")
		var got syncedRooms
		if err := json.Unmarshal([]byte((<-waiting).body), &got); err != nil || got.Rooms.Join[teaRoom].ids() != "$"+d.url || time.Since(began) > patience {
			t.Errorf("got %+v, %v after %v", got, err, time.Since(began))
		}
		next = got.Next
	}
	for n := range timelineLimit + 1 {
		here.send("demo-bob", fmt.Sprint("$many", n), "")
	}
	got := here.syncRooms("demo-alice", "since="+next).Rooms.Join[teaRoom]
	if len(got.Timeline.Events) != timelineLimit || !got.Timeline.Limited {
		t.Errorf("got %d events, limited %v", len(got.Timeline.Events), got.Timeline.Limited)
	}
	got = here.syncRooms("demo-alice", `filter={"room":{"timeline":{"limit":1}}}&since=`+next).Rooms.Join[teaRoom]
	if got.ids() != fmt.Sprint("$many", timelineLimit) {
		t.Errorf("with a limit of 1: got %s", got.ids())
	}
	here.expect("GET", v3+"/sync?since=s1_x", "demo-alice", "", 400, "")
}

func TestMembership(t *testing.T) {
	t.Parallel()
	d := startDemo(t)
	d.setPusherHere("demo-alice", "phone", "")
	d.send("demo-bob", "$1", "")
	next := d.syncRooms("demo-alice", "").Next
	d.expect("POST", sendPath, "demo-alice", fmt.Sprintf(membership, "@alice:localhost", "leave"), 200, "")
	left := d.syncRooms("demo-alice", "since="+next)
	if got := left.Rooms.Leave[teaRoom]; len(left.Rooms.Join) != 0 || len(got.Timeline.Events) != 1 || got.Timeline.Events[0].Type != "m.room.member" {
		t.Errorf("got %+v", left)
	}
	d.send("demo-bob", "$2", "") // names alice, who has left
	if got := d.syncRooms("demo-alice", "since="+left.Next); len(got.Rooms.Join)+len(got.Rooms.Leave) != 0 {
		t.Errorf("got %+v", got)
	}
	d.expect("PUT", v3+"/rooms/"+teaRoom+"/redact/$1/t", "demo-alice", "{}", 403, `{"errcode":"M_FORBIDDEN","error":"You are not in this room."}`)
	d.expect("POST", sendPath, "demo-bob", fmt.Sprintf(membership, "@alice:localhost", "invite"), 200, "")
	poll(t, "the invitation is printed", func() bool { return strings.Contains(d.stdout.String(), "m.room.member from @bob:localhost") })
	d.expect("POST", sendPath, "demo-alice", fmt.Sprintf(membership, "@alice:localhost", "join"), 200, "")
	d.send("demo-bob", "$3", "")
	poll(t, "the message is printed", func() bool { return strings.Contains(d.stdout.String(), "event $3 ") })
	if printed := d.stdout.String(); strings.Contains(printed, "event $2 ") {
		t.Errorf("a user who has left is notified:\n%s", printed)
	}
	if got := d.syncRooms("demo-alice", "since="+left.Next).Rooms.Join[teaRoom]; got.Summary.Joined != 2 || !strings.HasSuffix(got.ids(), " $3") {
		t.Errorf("got %+v", got)
	}
}

// An invited user who has not joined gets the invite: as a notification, in the badge and in GET /notifications. Later
// events of the room do not reach the user.
func TestAnInvitedUserGetsTheInviteAlone(t *testing.T) {
	t.Parallel()
	d := startDemo(t, "-badge", "notifications")
	d.setPusherHere("demo-carol", "phone", "")
	next := d.syncRooms("demo-carol", "").Next
	d.send("demo-bob", "$before", "")
	d.expect("POST", sendPath, "demo-bob", fmt.Sprintf(membership, "@carol:localhost", "invite"), 200, "")
	d.send("demo-bob", "$after", `,"m.mentions":{"user_ids":["@carol:localhost"]}`)
	d.expect("POST", sendPath, "demo-bob", strings.Replace(fmt.Sprintf(teaEvent, "$named", ""), "@alice", "@carol", 1), 200, "")
	d.expect("POST", sendPath, "demo-bob", fmt.Sprintf(membership, "@dave:localhost", "invite"), 200, "")
	d.expect("PUT", v3+"/rooms/"+teaRoom+"/redact/$before/t", "demo-bob", "{}", 200, "")
	d.expect("POST", sendPath, "demo-bob", `{"event_id":"$other","room_id":"!other:localhost","members":["@carol:localhost"],`+
		`"type":"m.room.message","content":{"msgtype":"m.text","body":"Hello"}}`, 200, "")
	poll(t, "the message of another room is printed", func() bool { return strings.Contains(d.stdout.String(), "event $other ") })
	if printed := d.stdout.String(); strings.Count(printed, "room "+teaRoom) != 1 || !strings.Contains(printed, "m.room.member from @bob") ||
		!strings.Contains(printed, `"Hello"  unread 2`) {
		t.Errorf("printed %s", printed)
	}
	list := d.do("GET", v3+"/notifications", "demo-carol", "").body
	if strings.Count(list, `"event_id"`) != 2 || !strings.Contains(list, `"membership":"invite"`) || strings.Contains(list, "Tea?") {
		t.Errorf("got %s", list)
	}
	if got := d.syncRooms("demo-carol", "since="+next); len(got.Rooms.Join) != 1 || len(got.Rooms.Leave) != 0 {
		t.Errorf("got %+v", got)
	}
	d.expect("POST", sendPath, "demo-carol", fmt.Sprintf(membership, "@carol:localhost", "join"), 200, "")
	d.send("demo-bob", "$joined", "")
	got := d.syncRooms("demo-carol", "since="+next).Rooms.Join[teaRoom]
	var types []string
	for _, e := range got.Timeline.Events {
		types = append(types, e.Type)
	}
	if want := "[m.room.member m.room.member m.room.message]"; fmt.Sprint(types) != want {
		t.Errorf("got %v, want %s: the invite, the join, and the message after it", types, want)
	}
}

func TestRedaction(t *testing.T) {
	t.Parallel()
	d := startDemo(t)
	redact := v3 + "/rooms/" + teaRoom + "/redact/"
	d.send("demo-bob", "$1", "")
	next := d.syncRooms("demo-alice", "").Next
	first := d.do("PUT", redact+"$1/t", "demo-alice", `{"reason":"x"}`)
	second := d.do("PUT", redact+"$1/t", "demo-alice", `{"reason":"x"}`)
	if first.status != 200 || first.body != second.body {
		t.Errorf("got %+v, then %+v", first, second)
	}
	got := d.syncRooms("demo-bob", "").Rooms.Join[teaRoom]
	if len(got.Timeline.Events) != 2 || len(got.Timeline.Events[0].Content) != 0 || got.Timeline.Events[1].Type != "m.room.redaction" {
		t.Errorf("got %+v", got)
	}
	if got := d.syncRooms("demo-alice", "since="+next).Rooms.Join[teaRoom]; len(got.Timeline.Events) != 1 {
		t.Errorf("got %+v", got)
	}
	d.expect("PUT", redact+"$unknown/t", "demo-alice", "{}", 404, `{"errcode":"M_NOT_FOUND","error":"Event not found."}`)
	d.expect("PUT", redact+"$1/t", "demo-carol", "{}", 403, "")
	d.expect("PUT", redact+"$1/t", "demo-alice", "[]", 400, "")
}

// A client names a room by its name or by its members, and finds its user in the room, without the room's whole state.
func TestSyncHasTheStateThatNamesARoom(t *testing.T) {
	t.Parallel()
	d := startDemo(t)
	state := func(query string) string {
		var b struct {
			Rooms struct {
				Join map[string]struct {
					State struct {
						Events []struct {
							Type    string
							Key     string `json:"state_key"`
							Content map[string]string
						}
					}
					Summary struct {
						Heroes []string `json:"m.heroes"`
					}
				}
			}
		}
		d.object("GET", v3+"/sync?"+query, "demo-alice", "", &b)
		room := b.Rooms.Join[teaRoom]
		var all []string
		for _, e := range room.State.Events {
			all = append(all, fmt.Sprint(e.Type, " ", e.Key, " ", e.Content))
		}
		return fmt.Sprint(room.Summary.Heroes, " ", strings.Join(all, ", "))
	}
	const (
		members = "[@bob:localhost] m.room.member @bob:localhost map[displayname:bob membership:join], " +
			"m.room.member @alice:localhost map[displayname:alice membership:join]"
		named = members + ", m.room.name  map[name:Tea at four]"
	)
	expect := func(query, want string) {
		t.Helper()
		if got := state(query); got != want {
			t.Errorf("%q: got %s, want %s", query, got, want)
		}
	}
	next := d.syncRooms("demo-alice", "").Next
	d.send("demo-bob", "$1", "")
	expect("", members)
	expect("since="+next, members)
	d.expect("POST", sendPath, "demo-bob", strings.Replace(fmt.Sprintf(teaEvent, "$2", ""), `"members"`, `"room_name":"Tea at four","members"`, 1), 200, "")
	d.send("demo-bob", "$3", "")
	expect("", named)
	expect("since="+next, named)
	d.expect("POST", sendPath, "demo-bob", `{"room_id":"`+teaRoom+`","members":["@alice:localhost","@bob:localhost"],`+
		`"type":"m.room.name","state_key":"","content":{"name":"Tea at five"}}`, 200, "")
	expect("", strings.Replace(named, "four", "five", 1))
	next = d.syncRooms("demo-alice", "").Next
	d.expect("POST", v3+"/rooms/"+teaRoom+"/receipt/m.read/$3", "demo-alice", "{}", 200, "{}")
	expect("since="+next, "[@bob:localhost] ") // only counts changed
}
