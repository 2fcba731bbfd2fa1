package main

import (
	"strings"
	"testing"
)

func TestRooms(t *testing.T) {
	t.Parallel()
	d := startDemo(t)
	d.expect("GET", v3+"/joined_rooms", "demo-alice", "", 200, `{"joined_rooms":[]}`)
	d.expect("GET", rulesPath, "demo-alice", "", 200, "")
	d.expect("PUT", rulesPath+"global/room/!old:x", "demo-alice", `{"actions":[]}`, 200, "{}")
	var upgraded struct {
		Room string `json:"replacement_room"`
	}
	d.object("POST", v3+"/rooms/%21old%3Ax/upgrade", "demo-alice", `{"new_version":"12"}`, &upgraded)
	if !strings.HasPrefix(upgraded.Room, "!") || !strings.HasSuffix(upgraded.Room, ":localhost") {
		t.Errorf("got %q", upgraded.Room)
	}
	d.expect("GET", rulesPath+"global/room/"+upgraded.Room+"/actions", "demo-alice", "", 200, `{"actions":[]}`)
	d.expect("POST", v3+"/rooms/!old:x/upgrade", "demo-new", `{"new_version":"12"}`, 200, "") // has no rules
	for body, errcode := range map[string]string{`{}`: "M_MISSING_PARAM", `{"new_version":12}`: "M_BAD_JSON", ``: "M_NOT_JSON"} {
		got := d.do("POST", v3+"/rooms/!old:x/upgrade", "demo-alice", body)
		if got.status != 400 || !strings.Contains(got.body, errcode) {
			t.Errorf("%q: got %d %s", body, got.status, got.body)
		}
	}
	d.expect("POST", v3+"/rooms/old/upgrade", "demo-alice", `{"new_version":"12"}`, 400,
		`{"errcode":"M_INVALID_PARAM","error":"Invalid room id."}`)
}
