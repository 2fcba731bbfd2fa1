package main

import (
	"strings"
	"testing"

	"github.com/pushfx/pushfx/integration/gateway/receiver"
)

func TestAccountData(t *testing.T) {
	t.Parallel()
	d := startDemo(t)
	const forbidden = `{"errcode":"M_FORBIDDEN","error":"Cannot access what belongs to other users."}`
	d.expect("GET", accountDataPath, "demo-alice", "", 200, d.do("GET", rulesPath, "demo-alice", "").body)
	d.expect("PUT", accountDataPath, "demo-alice", `{"global":{}}`, 405,
		`{"errcode":"M_BAD_JSON","error":"Cannot set m.push_rules through this API. Use /pushrules."}`)
	d.expect("GET", accountDataPath, "demo-bob", "", 403, forbidden)
	const other = v3 + "/user/@alice:localhost/account_data/m.direct"
	d.expect("GET", other, "demo-alice", "", 404, `{"errcode":"M_NOT_FOUND","error":"Account data not found."}`)
	d.expect("GET", other, "demo-bob", "", 403, forbidden)
	const notifications = v3 + "/user/@alice:localhost/account_data/org.matrix.msc3890.local_notification_settings.PHONE"
	const unread, elsewhere = v3 + "/user/@alice:localhost/rooms/!a:x/account_data/m.marked_unread", v3 + "/user/@alice:localhost/rooms/!b:x/account_data/m.marked_unread"
	for _, path := range []string{other, notifications, unread} {
		d.expect("PUT", path, "demo-alice", `{"unread":true,"Ähnlich":[1.50]}`, 200, "{}")
		d.expect("PUT", path, "demo-bob", `{}`, 403, forbidden)
		d.expect("GET", path, "demo-alice", "", 200, `{"unread":true,"Ähnlich":[1.50]}`)
		d.expect("GET", path, "demo-bob", "", 403, forbidden)
		d.expect("PUT", path, "demo-alice", `[]`, 400, `{"errcode":"M_BAD_JSON","error":"Must be a JSON object."}`)
		d.expect("PUT", path, "demo-alice", `{`, 400, `{"errcode":"M_NOT_JSON","error":"Not valid JSON."}`)
		d.expect("DELETE", path, "demo-alice", "", 405, `{"errcode":"M_UNRECOGNIZED","error":"Method not allowed."}`)
	}
	d.expect("GET", elsewhere, "demo-alice", "", 404, `{"errcode":"M_NOT_FOUND","error":"Account data not found."}`)
	d.expect("PUT", strings.Replace(unread, "!a:x", "a", 1), "demo-alice", "{}", 400, `{"errcode":"M_INVALID_PARAM","error":"Invalid room id."}`)
	d.expect("PUT", strings.Replace(unread, "!a:x", "!%00", 1), "demo-alice", "{}", 400, `{"errcode":"M_INVALID_PARAM","error":"Invalid room id."}`)
	d.expect("PUT", other+"%00", "demo-alice", "{}", 400, `{"errcode":"M_INVALID_PARAM","error":"Invalid type."}`)
	d.expect("PUT", other+strings.Repeat("x", 255), "demo-alice", "{}", 400, `{"errcode":"M_INVALID_PARAM","error":"Invalid type."}`)
}

// Clients ask for these beside push rules and pushers.
func TestEndpointsBesidePush(t *testing.T) {
	t.Parallel()
	d := startDemo(t)
	d.login("alice", "demo", "PHONE")
	d.login("alice", "demo", "LAPTOP")
	d.expect("GET", v3+"/devices", "demo-alice", "", 200, `{"devices":[{"device_id":"LAPTOP"},{"device_id":"PHONE"}]}`)
	d.send("demo-bob", "$1", "")
	const path = v3 + "/rooms/" + teaRoom + "/event/"
	if got := d.do("GET", path+"$1", "demo-alice", ""); got.status != 200 || !strings.HasPrefix(got.body, `{"event_id":"$1","room_id":"`+teaRoom+`","type":"m.room.message"`) {
		t.Errorf("got %d %s", got.status, got.body)
	}
	d.expect("GET", path+"$2", "demo-alice", "", 404, `{"errcode":"M_NOT_FOUND","error":"Event not found."}`)
	d.expect("GET", path+"$1", "demo-mallory", "", 403, `{"errcode":"M_FORBIDDEN","error":"You are not in this room."}`)
}

func TestFeaturesShowInVersions(t *testing.T) {
	t.Parallel()
	const path = "/_matrix/client/versions"
	got := startDemo(t, "-features", "encrypted-events,polls").do("GET", path, "", "")
	if !strings.Contains(got.body, `"unstable_features":{"org.matrix.msc4028":true}`) {
		t.Errorf("with features: %s", got.body)
	}
}

func TestUnknownPathsAndMethods(t *testing.T) {
	t.Parallel()
	d := startDemo(t)
	for _, path := range []string{"/nope", "/_matrix/client/v3", "/_matrix/client/v3/nope", "/_matrix/client/v1/pushrules/", "/_matrix/client/v3/pushrules/nope/a"} {
		for _, token := range []string{"", "demo-alice"} {
			d.expect("PUT", path, token, "", 404, `{"errcode":"M_UNRECOGNIZED","error":"Unrecognized request."}`)
		}
	}
	for _, path := range []string{"/", "/healthz", "/_matrix/client/versions", whoamiPath, "/_matrix/client/v3/capabilities"} {
		d.expect("GET", path, "demo-alice", "", 200, "")
		got := d.do("PUT", path, "demo-alice", "")
		if got.status != 405 || got.body != `{"errcode":"M_UNRECOGNIZED","error":"Method not allowed."}` || got.header.Get("Allow") != "OPTIONS, GET" {
			t.Errorf("%s: got %d %s, Allow %q", path, got.status, got.body, got.header.Get("Allow"))
		}
	}
}

func TestOtherOriginsCanReadMatrixPathsOnly(t *testing.T) {
	t.Parallel()
	d := startDemo(t)
	for _, path := range []string{
		"/nope", "/healthz", whoamiPath, "/_matrix/client/v3/pushrules/", "/_matrix/client/v3/pushrules/nope",
	} {
		for _, method := range []string{"OPTIONS", "GET", "PUT", "POST", "DELETE"} {
			got := d.do(method, path, "", "")
			for name, want := range map[string]string{
				"Access-Control-Allow-Origin":  "*",
				"Access-Control-Allow-Methods": "GET, POST, PUT, DELETE, OPTIONS",
				"Access-Control-Allow-Headers": "X-Requested-With, Content-Type, Authorization",
			} {
				if values := got.header.Values(name); len(values) != 1 || values[0] != want {
					t.Errorf("%s %s: %s is %q", method, path, name, values)
				}
			}
			if method == "OPTIONS" && (got.status != 204 || got.body != "") {
				t.Errorf("OPTIONS %s: got %d %s", path, got.status, got.body)
			}
		}
	}
	for _, path := range []string{"/", "/_demo/send", "/_demo/explain", "/_demo/notifications", "/_demo/nope", receiver.Path} {
		for _, method := range []string{"OPTIONS", "GET", "POST"} {
			if got := d.do(method, path, "", ""); got.header.Get("Access-Control-Allow-Origin") != "" {
				t.Errorf("%s %s: other origins are allowed", method, path)
			}
		}
	}
}
