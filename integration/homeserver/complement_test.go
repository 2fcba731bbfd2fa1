package main

import (
	"fmt"
	"testing"
	"time"
)

// These tests repeat tests of Complement, the test suite for homeservers.

// Each part starts with the state that the previous part left.
func TestPushRulesInSync(t *testing.T) {
	t.Parallel()
	d := startDemo(t)
	token := d.login("alice", "demo", "").AccessToken
	const room = "!foo:example.org"
	path := rulesPath + "global/room/" + room

	first := d.sync(token, "")
	if _, delivered := first.rules("override"); !delivered {
		t.Fatalf("push rules do not come down in the initial sync: %+v", first)
	}
	next := first.NextBatch
	for _, part := range []struct{ method, path, body, want string }{
		{"PUT", path, `{"actions":["notify"]}`, "[{!foo:example.org true [notify]}]"},
		{"PUT", path + "/enabled", `{"enabled":false}`, "[{!foo:example.org false [notify]}]"},
		{"PUT", path + "/enabled", `{"enabled":true}`, "[{!foo:example.org true [notify]}]"},
		{"PUT", path + "/actions", `{"actions":["dont_notify"]}`, "[{!foo:example.org true [dont_notify]}]"},
		{"DELETE", path, "", "[]"},
	} {
		waiting := d.startSync(token, "since="+next+longPoll)
		began := time.Now()
		d.expect(part.method, part.path, token, part.body, 200, "{}")
		got := woken(t, waiting)
		if took := time.Since(began); took > patience {
			t.Errorf("%s %s: only after %v", part.method, part.path, took)
		}
		if rules, _ := got.rules("room"); fmt.Sprint(rules) != part.want {
			t.Errorf("%s %s: got %v, want %s", part.method, part.path, rules, part.want)
		}
		next = got.NextBatch
	}
}

func TestPushersAtPasswordChange(t *testing.T) {
	t.Parallel()
	d := startDemo(t)
	for user, test := range map[string]struct {
		pusher string // the device that sets it
		more   string // of the request
		want   string // the pushkeys that remain
	}{
		"another_token":      {"TABLET", "", ""},
		"the_same_token":     {"PHONE", "", "a_push_key"},
		"logs_out_others":    {"TABLET", `,"logout_devices":true`, ""},
		"logs_out_no_others": {"TABLET", `,"logout_devices":false`, "a_push_key"},
	} {
		t.Run(user, func(t *testing.T) {
			t.Parallel()
			d := *d
			d.t = t
			tokens := map[string]string{}
			for _, device := range []string{"PHONE", "TABLET"} {
				tokens[device] = d.login(user, "demo", device).AccessToken
			}
			d.setPusher(tokens[test.pusher], "a_push_key")
			if got := d.changePassword(tokens["PHONE"], user, "demo", "my_new_password", test.more); got.status != 200 {
				t.Fatalf("got %d %s", got.status, got.body)
			}
			if keys := d.pushkeys(tokens["PHONE"]); keys != test.want {
				t.Errorf("got pushers %q, want %q", keys, test.want)
			}
			tabletStays := test.more == `,"logout_devices":false`
			if got := d.do("GET", whoamiPath, tokens["TABLET"], ""); (got.status == 200) != tabletStays {
				t.Errorf("the other token: got %d %s", got.status, got.body)
			}
			d.login(user, "my_new_password", "")
			d.expect("POST", v3+"/login", "", `{"type":"m.login.password","user":"`+user+`","password":"demo"}`, 403, wrongPassword)
		})
	}
}
