package main

import (
	"io"
	"net/http"
	"strings"
	"testing"
)

// get makes a GET request with a header, which an empty value leaves out.
func get(t *testing.T, d *demo, path, name, value string) answer {
	t.Helper()
	request, err := http.NewRequest(http.MethodGet, d.url+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	if value != "" {
		request.Header.Set(name, value)
	}
	response, err := d.client.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer{response.StatusCode, response.Header, strings.TrimSpace(string(body))}
}

func TestPublicEndpoints(t *testing.T) {
	t.Parallel()
	d := startDemo(t)
	d.expect("GET", "/healthz", "", "", 200, "ok")
	d.expect("GET", "/.well-known/matrix/client", "", "", 200, `{"m.homeserver":{"base_url":"`+d.url+`"}}`)
	versions := d.do("GET", "/_matrix/client/versions", "", "")
	if versions.status != 200 || !strings.Contains(versions.body, `"v1.17"`) || !strings.Contains(versions.body, `"r0.6.1"`) {
		t.Errorf("got %d %s", versions.status, versions.body)
	}
}

// TestNoHostHeaderIsRepeated: a cache could keep it for others.
func TestNoHostHeaderIsRepeated(t *testing.T) {
	t.Parallel()
	for flags, want := range map[string]string{
		"-listen=127.0.0.1:0":                  "", // where it listens
		"-base-url=https://matrix.example.org": "https://matrix.example.org",
	} {
		d := startDemo(t, flags)
		request, err := http.NewRequest(http.MethodGet, d.url+"/.well-known/matrix/client", nil)
		if err != nil {
			t.Fatal(err)
		}
		request.Host = "evil.example"
		response, err := d.client.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(response.Body)
		response.Body.Close()
		if want == "" {
			want = d.url
		}
		if got := strings.TrimSpace(string(body)); got != `{"m.homeserver":{"base_url":"`+want+`"}}` || err != nil {
			t.Errorf("%s: got %s, %v", flags, got, err)
		}
	}
}

func TestUnknownPathsAreInTheDebugLog(t *testing.T) {
	t.Parallel()
	d := startDemo(t, "-log-level", "debug")
	long := strings.Repeat("x", 300)
	for _, path := range []string{"/nowhere", v3 + "/nowhere?access_token=s3cret", "/" + long} {
		d.expect("GET", path, "", "", 404, "")
	}
	log := d.stderr.String()
	for _, want := range []string{`"path": "/nowhere"`, `"path": "` + v3 + `/nowhere"`, `"path": "/` + long[:199] + `"`} {
		if !strings.Contains(log, want) {
			t.Errorf("no %s in the log:\n%s", want, log)
		}
	}
	if strings.Contains(log, "s3cret") {
		t.Errorf("a query is in the log:\n%s", log)
	}
}

func TestCapabilities(t *testing.T) {
	t.Parallel()
	d := startDemo(t)
	d.expect("GET", "/_matrix/client/v3/capabilities", "demo-alice", "", 200,
		`{"capabilities":{"m.3pid_changes":{"enabled":false},"m.change_password":{"enabled":true},`+
			`"m.get_login_token":{"enabled":false},"m.set_avatar_url":{"enabled":false},"m.set_displayname":{"enabled":false}}}`)
}

func TestModuleIsMountedInBothForms(t *testing.T) {
	t.Parallel()
	d := startDemo(t)
	const rule = `{"rule_id":"!r:x","default":false,"enabled":true,"actions":[]}`
	d.expect("PUT", "/_matrix/client/v3/pushrules/global/room/!r:x", "demo-alice", `{"actions":[]}`, 404,
		`{"errcode":"M_NOT_FOUND","error":"PushRules event not found."}`)
	d.expect("GET", "/_matrix/client/r0/pushrules/", "demo-alice", "", 200, "")
	d.expect("PUT", "/_matrix/client/r0/pushrules/global/room/!r:x", "demo-alice", `{"rule":{"actions":[]}}`, 200, "{}")
	d.expect("GET", "/_matrix/client/r0/pushrules/global/room/!r:x", "demo-alice", "", 200, `{"rule":`+rule+`}`)
	d.expect("GET", "/_matrix/client/v3/pushrules/global/room/!r:x", "demo-alice", "", 200, rule)
}

func TestAccountData(t *testing.T) {
	t.Parallel()
	d := startDemo(t)
	for _, prefix := range []string{"/_matrix/client/v3", "/_matrix/client/r0"} {
		for _, user := range []string{"@alice:localhost", "%40alice%3Alocalhost"} {
			path := prefix + "/user/" + user + "/account_data/m.push_rules"
			rules := d.do("GET", prefix+"/pushrules/", "demo-alice", "").body
			d.expect("GET", path, "demo-alice", "", 200, rules)
			d.expect("PUT", path, "demo-alice", `{"global":{}}`, 405,
				`{"errcode":"M_BAD_JSON","error":"Cannot set m.push_rules through this API. Use /pushrules."}`)
			d.expect("DELETE", path, "demo-alice", "", 405,
				`{"errcode":"M_BAD_JSON","error":"Cannot set m.push_rules through this API. Use /pushrules."}`)
			d.expect("POST", path, "demo-alice", "{}", 405, `{"errcode":"M_UNRECOGNIZED","error":"Method not allowed."}`)
			for _, method := range []string{"GET", "PUT", "DELETE"} {
				d.expect(method, path, "demo-bob", "{}", 403,
					`{"errcode":"M_FORBIDDEN","error":"Cannot access what belongs to other users."}`)
			}
		}
	}
}

func TestOtherAccountData(t *testing.T) {
	t.Parallel()
	d := startDemo(t)
	const path = "/_matrix/client/v3/user/@alice:localhost/account_data/"
	for _, eventType := range []string{"m.direct", "m.push", "m.push_rules2", "org.example%2Ftype", "%21"} {
		d.expect("GET", path+eventType, "demo-alice", "", 404, `{"errcode":"M_NOT_FOUND","error":"Account data not found."}`)
		d.expect("GET", path+eventType, "demo-bob", "", 403, "")
		for _, method := range []string{"PUT", "POST", "DELETE"} {
			d.expect(method, path+eventType, "demo-alice", "{}", 404, `{"errcode":"M_UNRECOGNIZED","error":"Unrecognized request."}`)
		}
	}
	for _, nothing := range []string{"", "a/b"} {
		d.expect("GET", path+nothing, "demo-alice", "", 404, `{"errcode":"M_UNRECOGNIZED","error":"Unrecognized request."}`)
	}
}

func TestUnknownPathsAndMethods(t *testing.T) {
	t.Parallel()
	d := startDemo(t)
	for _, token := range []string{"", "demo-alice"} {
		for _, path := range []string{
			"/", "/nope", "/_matrix/client/nope", "/_matrix/client/v3", "/_matrix/client/v3/", "/_matrix/client/v3/nope",
			"/_matrix/client/r0/nope/pushrules/", "/_matrix/client/v1/pushrules/",
			"/_matrix/client/v3/user/@alice:localhost/nope", "/_matrix/client/v3/login/nope",
			"/_matrix/client/v3/pushrules/nope/a", "/_matrix/client/v3/pushrules/global/room/a/nope", "/_matrix/client/r0/pushers/nope",
		} {
			for _, method := range []string{"GET", "PUT", "POST", "DELETE"} {
				d.expect(method, path, token, "", 404, `{"errcode":"M_UNRECOGNIZED","error":"Unrecognized request."}`)
			}
		}
	}
	for _, path := range []string{"/healthz", "/.well-known/matrix/client", "/_matrix/client/versions", whoamiPath, "/_matrix/client/v3/capabilities"} {
		for _, method := range []string{"PUT", "POST", "DELETE"} {
			got := d.do(method, path, "demo-alice", "")
			if got.status != 405 || got.body != `{"errcode":"M_UNRECOGNIZED","error":"Method not allowed."}` ||
				got.header.Get("Allow") != "GET, OPTIONS" {
				t.Errorf("%s %s: got %d %s, Allow %q", method, path, got.status, got.body, got.header.Get("Allow"))
			}
		}
	}
}

func TestBrowsersMayAsk(t *testing.T) {
	t.Parallel()
	d := startDemo(t)
	for _, path := range []string{
		"/", "/nope", "/healthz", "/_matrix/client/versions", whoamiPath,
		"/_matrix/client/v3/pushrules/", "/_matrix/client/v3/pushrules/nope", "/_matrix/client/r0/pushers/set",
		"/_matrix/client/v3/user/@alice:localhost/account_data/m.push_rules",
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
}
