package main

import (
	"fmt"
	"strings"
	"testing"

	"github.com/pushfx/pushfx/integration/gateway/receiver"
)

const sendPath = "/_demo/send"

// setPusherHere sets a pusher at the demo's own gateway.
func (d *demo) setPusherHere(token, pushkey, format string) {
	d.t.Helper()
	d.setPusherAt(d.url+receiver.Path, token, pushkey, format)
}

func (d *demo) setPusherAt(url, token, pushkey, format string) {
	d.t.Helper()
	d.expect("POST", v3+"/pushers/set", token, fmt.Sprintf(`{"kind":"http","app_id":"app","pushkey":%q,"app_display_name":"App",`+
		`"device_display_name":"Phone","lang":"en","append":true,"data":{"url":%q%s}}`, pushkey, url, format), 200, "{}")
}

func TestSentEventsArePrinted(t *testing.T) {
	t.Parallel()
	d := startDemo(t)
	d.setPusherHere("demo-alice", "phone", "")
	d.setPusherHere("demo-alice", "watch", `,"format":"event_id_only"`)
	d.setPusherHere("demo-bob", "phone of bob", "")
	const body = `{"event_id":"$one","room_id":"!r:localhost","room_name":"Room","members":["@alice:localhost","@bob:localhost"],` +
		`"type":"m.room.message","content":{"msgtype":"m.text","body":"Hello"}}`
	for range 2 {
		d.expect("POST", sendPath, "demo-bob", body, 200, `{"event_id":"$one","position":1}`)
	}
	d.expect("POST", sendPath, "demo-bob", strings.Replace(body, "$one", "$two", 1), 200, `{"event_id":"$two","position":2}`)
	poll(t, "both notifications are printed", func() bool { return strings.Count(d.stdout.String(), "event $two") == 2 })
	printed := d.stdout.String()
	for line, want := range map[string]int{
		"event $one": 2, // the sender is not notified, and the repeated event is sent once
		`room !r:localhost (Room)  m.room.message from @bob:localhost (bob)  "Hello"`: 2,
		"event id only": 2,
	} {
		if got := strings.Count(printed, line); got != want {
			t.Errorf("%q is printed %d times, want %d:\n%s", line, got, want, printed)
		}
	}
}

func TestUsersThatIgnoreTheSenderAreNotNotified(t *testing.T) {
	t.Parallel()
	d := startDemo(t)
	ignored := func(user string) string { return v3 + "/user/@" + user + ":localhost/account_data/m.ignored_user_list" }
	d.setPusherHere("demo-alice", "phone of alice", "")
	d.setPusherHere("demo-carol", "phone of carol", "")
	const list = `{"ignored_users":{"@bob:localhost":{}},"org.example":1}`
	d.expect("PUT", ignored("alice"), "demo-alice", list, 200, "{}")
	d.expect("PUT", ignored("carol"), "demo-carol", `{"ignored_users":["@bob:localhost"]}`, 400, "")
	d.expect("PUT", ignored("carol"), "demo-carol", `{}`, 200, "{}")
	send := func(token, id string) {
		t.Helper()
		d.expect("POST", sendPath, token, `{"event_id":"`+id+`","room_id":"!r:localhost","members":["@alice:localhost","@carol:localhost"],`+
			`"type":"m.room.message","content":{"msgtype":"m.text","body":"Hello"}}`, 200, "")
	}
	send("demo-bob", "$ignored")
	send("demo-dave", "$seen") // arrives after the first event, at the same pushers
	poll(t, "the other notifications are printed", func() bool {
		printed := d.stdout.String()
		return strings.Count(printed, "event $seen") == 2 && strings.Count(printed, "event $ignored") > 0
	})
	if got := strings.Count(d.stdout.String(), "event $ignored"); got != 1 {
		t.Errorf("printed %d times, want once, for carol:\n%s", got, d.stdout)
	}
}

// A refused event takes no position in its room.
func TestSendingRefusesInvalidEvents(t *testing.T) {
	t.Parallel()
	d := startDemo(t, "-gateways", "none")
	const good = `{"event_id":"$1","room_id":"!r:x","members":["@alice:localhost"],"type":"x","state_key":"s","content":{}}`
	d.expect("POST", sendPath, "", good, 401, "")
	for from, to := range map[string]string{
		`"room_id":"!r:x"`:     `"room_id":"r"`,
		`"type":"x"`:           `"type":""`,
		`"content":{}`:         `"content":null`,
		`["@alice:localhost"]`: `[]`,
		`"@alice:localhost"`:   `"alice"`,
	} {
		d.expect("POST", sendPath, "demo-bob", strings.Replace(good, from, to, 1), 400, "")
	}
	long := strings.Repeat("x", 255)
	for want, body := range map[string]string{
		`"M_INVALID_PARAM","error":"Field 'event_id' has more than 255 bytes."`:  strings.Replace(good, "$1", "$"+long, 1),
		`"M_INVALID_PARAM","error":"Field 'room_id' has more than 255 bytes."`:   strings.Replace(good, "!r", "!"+long, 1),
		`"M_INVALID_PARAM","error":"Field 'type' has more than 255 bytes."`:      strings.Replace(good, `"type":"x"`, `"type":"x`+long+`"`, 1),
		`"M_INVALID_PARAM","error":"Field 'state_key' has more than 255 bytes."`: strings.Replace(good, `"s"`, `"s`+long+`"`, 1),
		`"M_INVALID_PARAM","error":"Invalid room id."`:                           strings.Replace(good, "!r", `!\u0000r`, 1),
		`"M_INVALID_PARAM","error":"Invalid event id."`:                          strings.Replace(good, "$1", `$\u0000`, 1),
		`"M_BAD_JSON"`:  strings.Replace(good, `{}`, `{"a":1,"a":2}`, 1),
		`"M_TOO_LARGE"`: strings.Replace(good, `{}`, `{"body":"`+strings.Repeat("x", maxBodyBytes-len(good)-len(`"body":""`))+`"}`, 1),
	} {
		if got := d.do("POST", sendPath, "demo-bob", body); got.status/100 != 4 || !strings.Contains(got.body, want) {
			t.Errorf("got %d %s, want %s", got.status, got.body, want)
		}
	}
	most := strings.Replace(strings.Replace(good, "$1", "$"+long[1:], 1), `{}`, `{"body":"`+strings.Repeat("<", 60<<10)+`"}`, 1)
	d.expect("POST", sendPath, "demo-bob", most, 200, `{"event_id":"$`+long[1:]+`","position":1}`)
	// With -gateways none, pushers can name public gateways only.
	d.expect("POST", v3+"/pushers/set", "demo-alice", `{"kind":"http","app_id":"app","pushkey":"key","app_display_name":"App",`+
		`"device_display_name":"Phone","lang":"en","data":{"url":"`+d.url+receiver.Path+`"}}`, 400, "")
}
