package main

import (
	"fmt"
	"testing"
)

const whoamiPath = "/_matrix/client/v3/account/whoami"

func TestTokens(t *testing.T) {
	t.Parallel()
	d := startDemo(t, "-server-name", "example.org")
	for _, test := range []struct{ token, user, device string }{
		{"demo-alice", "@alice:example.org", "DEMO"},
		{"demo-a.b_c=d-e+9", "@a.b_c=d-e+9:example.org", "DEMO"},
		{"demo-", "", ""},
		{"demo-alice/PHONE", "", ""},
		{"demo-al{ice}", "", ""},
		{"session-alice/PHONE/secret", "", ""},
	} {
		status, body := 401, `{"errcode":"M_UNKNOWN_TOKEN","error":"Unknown access token."}`
		if test.user != "" {
			status, body = 200, fmt.Sprintf(`{"device_id":%q,"is_guest":false,"user_id":%q}`, test.device, test.user)
		}
		d.expect("GET", whoamiPath, test.token, "", status, body)
	}
}

func TestTokensInHeaderAndQuery(t *testing.T) {
	t.Parallel()
	d := startDemo(t)
	d.expect("GET", whoamiPath+"?access_token=demo-bob", "demo-alice", "", 200, `{"device_id":"DEMO","is_guest":false,"user_id":"@alice:localhost"}`)
	d.expect("GET", whoamiPath+"?access_token=demo-alice", "", "", 200, `{"device_id":"DEMO","is_guest":false,"user_id":"@alice:localhost"}`)
	d.expect("GET", whoamiPath+"?access_token=x", "", "", 401, unknownToken)
}

func TestEveryPrefixNeedsAToken(t *testing.T) {
	t.Parallel()
	d := startDemo(t)
	for _, prefix := range []string{"/_matrix/client/v3", "/_matrix/client/r0"} {
		for _, path := range []string{
			"/pushrules/", "/pushrules/global/", "/pushers", "/account/whoami", "/capabilities",
			"/user/@alice:localhost/account_data/m.push_rules", "/sync",
		} {
			d.expect("GET", prefix+path, "", "", 401, `{"errcode":"M_MISSING_TOKEN","error":"Missing access token."}`)
			d.expect("GET", prefix+path, "x", "", 401, `{"errcode":"M_UNKNOWN_TOKEN","error":"Unknown access token."}`)
			d.expect("GET", prefix+path, "demo-alice", "", 200, "")
		}
	}
}
