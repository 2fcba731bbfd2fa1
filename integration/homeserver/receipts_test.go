package main

import (
	"fmt"
	"net/url"
	"strings"
	"testing"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/redistest"
	"github.com/pushfx/pushfx/module/unread/fold"
)

type unreadRoom struct {
	Unread  *threadUnread           `json:"unread_notifications"`
	Threads map[string]threadUnread `json:"unread_thread_notifications"`
}

func (d *demo) unread(token, more string) string {
	d.t.Helper()
	var b struct {
		Rooms struct{ Join map[string]unreadRoom }
	}
	d.object("GET", v3+"/sync?"+more, token, "", &b)
	room := b.Rooms.Join[teaRoom]
	if room.Unread == nil {
		return "none"
	}
	return fmt.Sprint(*room.Unread, " ", room.Threads)
}

func TestReceiptsAndCounts(t *testing.T) {
	t.Parallel()
	d := startDemo(t)
	d.setPusherHere("demo-alice", "phone", "")
	byThread := "filter=" + url.QueryEscape(`{"room":{"timeline":{"unread_thread_notifications":true}}}`)
	thread := `,"m.relates_to":{"rel_type":"m.thread","event_id":"$1"}`
	receipt := func(kind, event, body string, status int) {
		t.Helper()
		d.expect("POST", v3+"/rooms/"+teaRoom+"/receipt/"+kind+"/"+event, "demo-alice", body, status, "")
	}
	expect := func(sum, threads string) {
		t.Helper()
		if got := d.unread("demo-alice", ""); got != sum+" map[]" {
			t.Errorf("got %s, want %s", got, sum)
		}
		if got := d.unread("demo-alice", byThread); got != threads {
			t.Errorf("by thread: got %s, want %s", got, threads)
		}
	}
	for _, id := range []string{"$1", "$2", "$3"} {
		d.send("demo-bob", id, "")
	}
	d.send("demo-bob", "$4", thread+`,"m.mentions":{"user_ids":["@alice:localhost"]}`)
	d.send("demo-bob", "$5", thread)
	expect("{5 1}", "{3 0} map[$1:{2 1}]")
	receipt("m.fully_read", "$5", "{}", 200)
	receipt("m.read", "$1", `{"thread_id":"$1"}`, 200) // the root, in its thread
	expect("{5 1}", "{3 0} map[$1:{2 1}]")
	receipt("m.read", "$2", `{"thread_id":"main"}`, 200)
	expect("{3 1}", "{1 0} map[$1:{2 1}]")
	receipt("m.read.private", "$4", `{"thread_id":"$1"}`, 200)
	expect("{2 0}", "{1 0} map[$1:{1 0}]")
	receipt("m.read", "$1", "{}", 200) // behind
	expect("{2 0}", "{1 0} map[$1:{1 0}]")
	d.expect("PUT", v3+"/rooms/"+teaRoom+"/redact/$5/t", "demo-bob", "{}", 200, "")
	expect("{1 0}", "{1 0} map[]")
	d.expect("GET", v3+"/notifications?limit=0", "demo-alice", "", 400, "")
	mention, unread, _ := strings.Cut(d.do("GET", v3+"/notifications", "demo-alice", "").body, `,{"actions"`)
	if !strings.Contains(mention, `"event":{"event_id":"$4"`) || !strings.Contains(mention, `"read":true`) || !strings.Contains(unread, `"event":{"event_id":"$3"`) || !strings.Contains(unread, `"read":false`) {
		t.Errorf("got %s and %s", mention, unread)
	}
	d.expect("POST", v3+"/rooms/"+teaRoom+"/read_markers", "demo-alice", `{"m.fully_read":"$3","m.read":"$3"}`, 200, "{}")
	expect("{0 0}", "{0 0} map[]")
	poll(t, "the last count is 0", func() bool { // of a message that was sent late, or of a push with counts only
		counts := strings.Split(d.stdout.String(), "unread ")
		return strings.HasPrefix(counts[len(counts)-1], "0 ")
	})

	for body, kind := range map[string]string{`{"thread_id":""}`: "m.read", `{"thread_id":"$9"}`: "m.read", `{"thread_id":1}`: "m.read", `{}`: "m.other", `{"thread_id":"main"}`: fullyRead} {
		receipt(kind, "$2", body, 400)
	}
	for _, body := range []string{`{"thread_id":null}`, `{"thread_id":1}`} {
		d.expect("POST", v3+"/rooms/"+teaRoom+"/receipt/m.read/$2", "demo-alice", body, 400, `{"errcode":"M_INVALID_PARAM","error":"Invalid thread_id."}`)
	}
	receipt("m.read", "$4", `{"thread_id":"main"}`, 400)
	receipt("m.read", "$unknown", "{}", 404)
	d.expect("POST", v3+"/rooms/"+teaRoom+"/receipt/m.read/$1", "demo-carol", "{}", 403, "")

	d.send("demo-bob", "$6", "")
	d.send("demo-alice", "$7", "") // an own message reads
	expect("{0 0}", "{0 0} map[]")
	d.send("demo-bob", "$8", "")
	d.expect("POST", sendPath, "demo-bob", fmt.Sprintf(membership, "@alice:localhost", "leave"), 200, "")
	d.expect("POST", sendPath, "demo-bob", fmt.Sprintf(membership, "@alice:localhost", "join"), 200, "")
	expect("{0 0}", "{0 0} map[]")
}

func TestASyncWaitsForCounts(t *testing.T) {
	t.Parallel()
	d := startDemo(t)
	d.send("demo-bob", "$1", "")
	next := d.syncRooms("demo-alice", "").Next
	waiting := d.startSync("demo-alice", "since="+next+longPoll)
	d.expect("POST", v3+"/rooms/"+teaRoom+"/receipt/m.read/$1", "demo-alice", "{}", 200, "{}")
	if got := <-waiting; !strings.Contains(got.body, `"unread_notifications":{"notification_count":0,"highlight_count":0}`) {
		t.Errorf("got %s", got.body)
	}
}

func TestTheFlagBadge(t *testing.T) {
	t.Parallel()
	for badge, third := range map[string]string{"rooms": "unread 1", "notifications": "unread 3"} {
		d := startDemo(t, "-badge", badge)
		d.send("demo-bob", "$1", "")
		d.send("demo-bob", "$2", "")
		d.setPusherHere("demo-alice", "phone", "")
		d.send("demo-bob", "$3", "")
		poll(t, badge+": the third notification is printed", func() bool { return strings.Contains(d.stdout.String(), "event $3") })
		if got := d.stdout.String(); !strings.Contains(got, third) && strings.Contains(got, "unread") { // a busy host sends no counts
			t.Errorf("%s: got %q, want %s", badge, got, third)
		}
	}
}

// A first sync drops the counts of a room that the user is not in, such as after a leave that
// the module never learned of.
func TestAFirstSyncRepairsCounts(t *testing.T) {
	t.Parallel()
	server := redistest.Single(t)
	d := startDemo(t, "-redis-mode", "standalone", "-redis", server.Addr())
	d.send("demo-bob", "$1", "")
	next := d.syncRooms("demo-alice", "").Next
	left := fold.Op{Kind: fold.Notified, Room: "!left:localhost", Position: 1, Thread: module.MainThread, Actions: `["notify"]`}
	if err := server.Client(t).RPush(t.Context(), "unread:{@alice:localhost}", left.Text()).Err(); err != nil {
		t.Fatal(err)
	}
	for _, s := range []struct{ query, want string }{{"since=" + next, `"unread":2}`}, {"", `"unread":1}`}} {
		d.sync("demo-alice", s.query)
		if got := d.do("GET", "/_demo/pushers", "demo-alice", "").body; !strings.HasSuffix(got, s.want) {
			t.Errorf("after %q: got %s, want %s", s.query, got, s.want)
		}
	}
}

// Counts are by the rules at the time of the event: neither a rule nor an ignored user changes them later. Encrypted
// events count by their own rule.
func TestCountsStayWhenRulesChange(t *testing.T) {
	t.Parallel()
	d := startDemo(t)
	expect := func(want string) {
		t.Helper()
		if got := d.unread("demo-alice", ""); got != want+" map[]" {
			t.Errorf("got %s, want %s", got, want)
		}
	}
	d.send("demo-bob", "$1", "")
	d.send("demo-bob", "$2", `,"m.mentions":{"user_ids":["@alice:localhost"]}`)
	expect("{2 1}")
	d.expect("PUT", rulesPath+"global/room/"+teaRoom, "demo-alice", `{"actions":[]}`, 200, "{}")
	expect("{2 1}")
	d.send("demo-bob", "$3", "") // in a muted room
	expect("{2 1}")
	d.expect("DELETE", rulesPath+"global/room/"+teaRoom, "demo-alice", "", 200, "{}")
	d.expect("POST", "/_demo/send", "demo-bob", `{"event_id":"$4","room_id":"`+teaRoom+`","members":["@alice:localhost"],`+
		`"type":"m.room.encrypted","content":{"algorithm":"m.megolm.v1.aes-sha2","ciphertext":"x"}}`, 200, "")
	expect("{3 1}")
	d.expect("PUT", v3+"/user/@alice:localhost/account_data/m.ignored_user_list", "demo-alice", `{"ignored_users":{"@bob:localhost":{}}}`, 200, "{}")
	d.send("demo-bob", "$5", "")
	expect("{3 1}")
	d.expect("POST", v3+"/rooms/"+teaRoom+"/receipt/m.read/$5", "demo-alice", "{}", 200, "{}")
	expect("{0 0}")
}
