package main

import (
	"fmt"
	"testing"
)

const whoamiPath = "/_matrix/client/v3/account/whoami"

func TestTokens(t *testing.T) {
	t.Parallel()
	d := startDemo(t, "-server-name", "example.org")
	for _, test := range []struct{ query, token, user string }{
		{"", "demo-alice", "@alice:example.org"},
		{"", "demo-a.b_c=d-e+9", "@a.b_c=d-e+9:example.org"},
		{"", "demo-", ""},
		{"", "demo-alice/PHONE", ""},
		{"", "demo-al{ice}", ""},
		{"", "session-alice/PHONE/secret", ""},
		{"?access_token=demo-bob", "demo-alice", "@alice:example.org"}, // the header wins
		{"?access_token=demo-alice", "", "@alice:example.org"},
		{"?access_token=x", "", ""},
	} {
		status, body := 401, unknownToken
		if test.user != "" {
			status, body = 200, fmt.Sprintf(`{"device_id":"DEMO","is_guest":false,"user_id":%q}`, test.user)
		}
		d.expect("GET", whoamiPath+test.query, test.token, "", status, body)
	}
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
