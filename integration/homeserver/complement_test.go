package main

import (
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
	for _, part := range []struct {
		name string
		change
		want func(rules []rule) bool
	}{
		{
			"adding a rule wakes an incremental sync",
			change{"PUT", path, `{"actions":["notify"]}`},
			func(rules []rule) bool { return len(rules) == 1 && rules[0].ID == room && rules[0].Enabled },
		},
		{
			"disabling a rule wakes an incremental sync",
			change{"PUT", path + "/enabled", `{"enabled":false}`},
			func(rules []rule) bool { return len(rules) == 1 && !rules[0].Enabled },
		},
		{
			"enabling a rule wakes an incremental sync",
			change{"PUT", path + "/enabled", `{"enabled":true}`},
			func(rules []rule) bool { return len(rules) == 1 && rules[0].Enabled },
		},
		{
			"setting the actions of a rule wakes an incremental sync",
			change{"PUT", path + "/actions", `{"actions":["dont_notify"]}`},
			func(rules []rule) bool {
				return len(rules) == 1 && len(rules[0].Actions) == 1 && rules[0].Actions[0] == "dont_notify"
			},
		},
		{
			"deleting a rule wakes an incremental sync",
			change{"DELETE", path, ""},
			func(rules []rule) bool { return len(rules) == 0 },
		},
	} {
		waiting := d.startSync(token, "since="+next+longPoll)
		began := time.Now()
		d.expect(part.method, part.path, token, part.body, 200, "{}")
		got := woken(t, waiting)
		if took := time.Since(began); took > patience {
			t.Errorf("%s: only after %v", part.name, took)
		}
		if rules, _ := got.rules("room"); !part.want(rules) {
			t.Errorf("%s: got %+v", part.name, rules)
		}
		next = got.NextBatch
	}
}

func TestPushersAtPasswordChange(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name   string
		pusher string // the device that sets it
		more   string // of the request
		want   string // the pushkeys that remain
	}{
		{"pushers created with a different access token are deleted", "TABLET", "", ""},
		{"pushers created with the same access token are not deleted", "PHONE", "", "a_push_key"},
		{"logout_devices logs out the others, too", "TABLET", `,"logout_devices":true`, ""},
		{"without logging out the others, nothing is deleted", "TABLET", `,"logout_devices":false`, "a_push_key"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			d := startDemo(t)
			tokens := map[string]string{}
			for _, device := range []string{"PHONE", "TABLET"} {
				tokens[device] = d.login("alice", "demo", device).AccessToken
			}
			d.setPusher(tokens[test.pusher], "a_push_key")
			if got := d.changePassword(tokens["PHONE"], "alice", "demo", "my_new_password", test.more); got.status != 200 {
				t.Fatalf("got %d %s", got.status, got.body)
			}
			if keys := d.pushkeys(tokens["PHONE"]); keys != test.want {
				t.Errorf("got pushers %q, want %q", keys, test.want)
			}
			tabletStays := test.more == `,"logout_devices":false`
			if got := d.do("GET", whoamiPath, tokens["TABLET"], ""); (got.status == 200) != tabletStays {
				t.Errorf("the other token: got %d %s", got.status, got.body)
			}
			d.login("alice", "my_new_password", "")
			d.expect("POST", v3+"/login", "", `{"type":"m.login.password","user":"alice","password":"demo"}`, 403, wrongPassword)
		})
	}
}
