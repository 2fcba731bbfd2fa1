package main

import (
	"strings"
	"testing"
)

func TestExplain(t *testing.T) {
	t.Parallel()
	const path = "/_demo/explain"
	d := startDemo(t)
	d.expect("GET", rulesPath, "demo-alice", "", 200, "")
	d.expect("PUT", rulesPath+"global/content/lunch", "demo-alice", `{"pattern":"lunch","actions":["notify",{"set_tweak":"highlight"}]}`, 200, "{}")

	const event = `{"type":"m.room.message","sender":"@bob:localhost","content":{"body":"Lunch?"}}`
	const power = `{"sender":50,"creator":false,"notifications":{"room":20}}`
	got := d.do("POST", path, "demo-alice",
		`{"user":"@alice:localhost","event":`+event+`,"facts":{"display_name":"Al","member_count":3,"power":`+power+`}}`)
	for _, part := range []string{
		`{"own":false,"rules":[{"kind":"override","rule_id":".m.rule.master","verdict":"disabled"}`,
		`{"kind":"content","rule_id":"lunch","verdict":"decides"}`,
		`{"kind":"underride","rule_id":".m.rule.room_one_to_one","verdict":"fails","condition":{"kind":"room_member_count","is":"2"},"saw":"the room has 3 members"}`,
		`"result":{"kind":"content","rule_id":"lunch","actions":["notify",{"set_tweak":"highlight"}],"notify":true,"highlight":true,"sound":""}}`,
	} {
		if got.status != 200 || !strings.Contains(got.body, part) {
			t.Errorf("got %d %s, want it to have %s", got.status, got.body, part)
		}
	}
	if got := d.do("POST", path, "demo-alice", `{"event":{"sender":"@alice:localhost","content":{"body":"lunch"}}}`); !strings.HasPrefix(got.body, `{"own":true,`) {
		t.Errorf("an own event: got %d %s", got.status, got.body)
	}
	mention := `{"event":{"sender":"@bob:localhost","content":{"m.mentions":{"room":true}}},"facts":{"power":` + power + `}}`
	if got := d.do("POST", path, "demo-alice", mention); !strings.Contains(got.body, `"rule_id":".m.rule.is_room_mention","verdict":"decides"`) {
		t.Errorf("a mention of all: got %d %s", got.status, got.body)
	}

	d.expect("POST", path, "", `{"event":{}}`, 401, `{"errcode":"M_MISSING_TOKEN","error":"Missing access token."}`)
	d.expect("POST", path, "demo-alice", `{"user":"@bob:localhost","event":{}}`, 403, `{"errcode":"M_FORBIDDEN","error":"Cannot access what belongs to other users."}`)
	d.expect("POST", path, "demo-alice", `{}`, 400, `{"errcode":"M_MISSING_PARAM","error":"Missing field: event"}`)
	d.expect("POST", path, "demo-alice", `{"event":7}`, 400, `{"errcode":"M_BAD_JSON","error":"Field 'event' must be an object that has each name once."}`)
	d.expect("POST", path, "demo-alice", `{"event":{},"facts":{"member_count":"3"}}`, 400, `{"errcode":"M_BAD_JSON","error":"Field 'facts.member_count' has the wrong type."}`)
	d.expect("POST", path, "demo-alice", `{`, 400, `{"errcode":"M_NOT_JSON","error":"Not valid JSON."}`)
	d.expect("GET", path, "demo-alice", "", 405, `{"errcode":"M_UNRECOGNIZED","error":"Method not allowed."}`)
}
