package main

import (
	"fmt"
	"strings"
	"testing"

	"github.com/pushfx/pushfx/integration/homeserver/sessions"
)

const whoamiPath = "/_matrix/client/v3/account/whoami"

func TestTokens(t *testing.T) {
	t.Parallel()
	d := startDemo(t, "-server-name", "example.org")
	longest := strings.Repeat("a", 255-len("@:example.org"))
	for _, test := range []struct{ token, user, device string }{
		{"demo-alice", "@alice:example.org", "DEMO"},
		{"demo-alice/PHONE", "@alice:example.org", "PHONE"},
		{"demo-alice/a/b", "@alice:example.org", "a/b"},
		{"demo-a.b_c=d-e+9", "@a.b_c=d-e+9:example.org", "DEMO"},
		{"demo-" + longest, "@" + longest + ":example.org", "DEMO"},
		{"demo-" + longest + "a", "", ""},
		{"demo-", "", ""},
		{"demo-/PHONE", "", ""},
		{"demo-alice/", "", ""},
		{"demo-alice/a b", "", ""},
		{"demo-alice/" + strings.Repeat("D", sessions.MaxDeviceBytes+1), "", ""},
		{"demo-Alice", "", ""},
		{"demo-al:ice", "", ""},
		{"demo-al{ice}", "", ""},
		{"demo-älice", "", ""},
		{"Demo-alice", "", ""},
		{"alice", "", ""},
		{"session-alice", "", ""},
		{"session-alice/PHONE", "", ""},
		{"session-alice/PHONE/", "", ""},
		{"session-alice//SECRET", "", ""},
		{"session-alice/PHONE/SECRET", "", ""},
		{"session-/PHONE/SECRET", "", ""},
	} {
		status, body := 401, `{"errcode":"M_UNKNOWN_TOKEN","error":"Unknown access token."}`
		if test.user != "" {
			status, body = 200, fmt.Sprintf(`{"device_id":%q,"is_guest":false,"user_id":%q}`, test.device, test.user)
		}
		d.expect("GET", whoamiPath, test.token, "", status, body)
	}
}

func TestWhereTokensStand(t *testing.T) {
	t.Parallel()
	d := startDemo(t)
	const (
		alice   = `{"device_id":"DEMO","is_guest":false,"user_id":"@alice:localhost"}`
		missing = `{"errcode":"M_MISSING_TOKEN","error":"Missing access token."}`
		unknown = `{"errcode":"M_UNKNOWN_TOKEN","error":"Unknown access token."}`
	)
	for _, test := range []struct {
		name, header, query string
		status              int
		body                string
	}{
		{"header", "Bearer demo-alice", "", 200, alice},
		{"lower case scheme", "bearer demo-alice", "", 200, alice},
		{"query", "", "?access_token=demo-alice", 200, alice},
		{"header before query", "Bearer demo-alice", "?access_token=demo-bob", 200, alice},
		{"nowhere", "", "", 401, missing},
		{"empty header", "Bearer ", "", 401, missing},
		{"empty query", "", "?access_token=", 401, missing},
		{"another scheme", "Basic demo-alice", "", 401, missing},
		{"no scheme", "demo-alice", "", 401, missing},
		{"unknown in the query", "", "?access_token=x", 401, unknown},
	} {
		t.Run(test.name, func(t *testing.T) {
			got := get(t, d, whoamiPath+test.query, "Authorization", test.header)
			if got.status != test.status || got.body != test.body {
				t.Errorf("got %d %s, want %d %s", got.status, got.body, test.status, test.body)
			}
		})
	}
}

func TestEveryPrefixNeedsToken(t *testing.T) {
	t.Parallel()
	d := startDemo(t)
	for _, prefix := range []string{"/_matrix/client/v3", "/_matrix/client/r0"} {
		for _, path := range []string{
			"/pushrules/", "/pushrules/global/", "/pushers", "/account/whoami", "/capabilities",
			"/user/@alice:localhost/account_data/m.push_rules", "/sync", "/joined_rooms",
		} {
			d.expect("GET", prefix+path, "", "", 401, `{"errcode":"M_MISSING_TOKEN","error":"Missing access token."}`)
			d.expect("GET", prefix+path, "x", "", 401, `{"errcode":"M_UNKNOWN_TOKEN","error":"Unknown access token."}`)
			d.expect("GET", prefix+path, "demo-alice", "", 200, "")
		}
	}
}
