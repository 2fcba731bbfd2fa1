package main

import (
	"encoding/json"
	"strings"
	"testing"
)

const filterPath = v3 + "/user/@alice:localhost/filter"

func TestFilters(t *testing.T) {
	t.Parallel()
	d := startDemo(t)
	const text = `{"room":{"timeline":{"limit":8},"x":1.50}}`
	var stored struct {
		ID string `json:"filter_id"`
	}
	d.object("POST", filterPath, "demo-alice", text, &stored)
	d.expect("GET", filterPath+"/"+stored.ID, "demo-alice", "", 200, text)
	d.expect("GET", filterPath+"/"+stored.ID, "demo-bob", "", 403, `{"errcode":"M_FORBIDDEN","error":"Cannot access what belongs to other users."}`)
	d.expect("GET", filterPath+"/nope", "demo-alice", "", 404, `{"errcode":"M_NOT_FOUND","error":"Filter not found."}`)
	d.expect("POST", filterPath, "demo-alice", `{"account_data":{"types":"m.push_rules"}}`, 400, "")
	d.expect("POST", filterPath, "demo-alice", `{"x":"`+strings.Repeat("x", maxFilterBytes)+`"}`, 413, "")
	for patterns, want := range map[string]bool{`["*"]`: true, `["m.*"]`: true, `["m*push*s"]`: true, `["m.push"]`: false, `["m*push*push*"]`: false, `[]`: false} {
		var f filter
		if err := json.Unmarshal([]byte(`{"account_data":{"types":`+patterns+`}}`), &f); err != nil || f.AccountData.allows("m.push_rules") != want {
			t.Errorf("%s: got %v, %v", patterns, !want, err)
		}
	}
}
