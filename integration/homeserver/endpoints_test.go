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
	d.expect("PUT", other, "demo-alice", "{}", 404, `{"errcode":"M_UNRECOGNIZED","error":"Unrecognized request."}`)
}

func TestFeaturesShowInVersions(t *testing.T) {
	t.Parallel()
	const path = "/_matrix/client/versions"
	if got := startDemo(t).do("GET", path, "", ""); !strings.Contains(got.body, `"unstable_features":{}`) {
		t.Errorf("without features: %s", got.body)
	}
	got := startDemo(t, "-features", "encrypted-events,polls").do("GET", path, "", "")
	if !strings.Contains(got.body, `"unstable_features":{"org.matrix.msc4028":true}`) {
		t.Errorf("with features: %s", got.body)
	}
}

func TestTheSameFeatureTwiceIsRefusedAtStart(t *testing.T) {
	t.Parallel()
	line := expectFailure(t, exitFailure, "-features", "polls,polls")
	if !strings.Contains(line, "Config.Features: feature polls: ") || !strings.Contains(line, "want an id that is unique among the default rules") {
		t.Error(line)
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
