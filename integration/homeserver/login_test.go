package main

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/pushfx/pushfx/integration/homeserver/sessions"
	"github.com/pushfx/pushfx/module/redistest"
)

const (
	v3 = "/_matrix/client/v3"

	unknownToken  = `{"errcode":"M_UNKNOWN_TOKEN","error":"Unknown access token."}`
	wrongPassword = `{"errcode":"M_FORBIDDEN","error":"Invalid username or password."}`
)

// loggedIn is the answer to a login.
type loggedIn struct {
	UserID      string `json:"user_id"`
	AccessToken string `json:"access_token"`
	DeviceID    string `json:"device_id"`
}

// login logs a user in; an empty device leaves it to the server.
func (d *demo) login(user, password, device string) loggedIn {
	d.t.Helper()
	request := map[string]any{
		"type": passwordType, "identifier": map[string]string{"type": "m.id.user", "user": user}, "password": password,
	}
	if device != "" {
		request["device_id"] = device
	}
	var session loggedIn
	d.object("POST", v3+"/login", "", encode(d.t, request), &session)
	return session
}

// object makes a request that must succeed, and reads the answer.
func (d *demo) object(method, path, token, body string, into any) {
	d.t.Helper()
	got := d.do(method, path, token, body)
	if err := json.Unmarshal([]byte(got.body), into); got.status != 200 || err != nil {
		d.t.Fatalf("%s %s: got %d %s", method, path, got.status, got.body)
	}
}

func encode(t *testing.T, value any) string {
	t.Helper()
	text, err := json.Marshal(value)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// setPusher sets a pusher with a key.
func (d *demo) setPusher(token, pushkey string) {
	d.t.Helper()
	d.expect("POST", v3+"/pushers/set", token, fmt.Sprintf(`{"kind":"http","app_id":"app","pushkey":%q,"app_display_name":"",`+
		`"device_display_name":"","lang":"en","append":true,"data":{"url":"https://p.example/_matrix/push/v1/notify"}}`, pushkey), 200, "{}")
}

// pushkeys returns the keys of a user's pushers, in order.
func (d *demo) pushkeys(token string) string {
	d.t.Helper()
	var list struct{ Pushers []struct{ Pushkey string } }
	d.object("GET", v3+"/pushers", token, "", &list)
	var keys []string
	for _, pusher := range list.Pushers {
		keys = append(keys, pusher.Pushkey)
	}
	return strings.Join(keys, " ")
}

func TestLogin(t *testing.T) {
	t.Parallel()
	d := startDemo(t, "-server-name", "example.org:8448")
	for _, prefix := range []string{v3, "/_matrix/client/r0"} {
		d.expect("GET", prefix+"/login", "", "", 200, `{"flows":[{"type":"m.login.password"}]}`)
		for _, body := range []string{
			`{"type":"m.login.password","identifier":{"type":"m.id.user","user":"alice"},"password":"demo"}`,
			`{"type":"m.login.password","identifier":{"type":"m.id.user","user":"@alice:example.org:8448"},"password":"demo"}`,
			`{"type":"m.login.password","user":"alice","password":"demo","device_id":null}`,
			`{"type":"m.login.password","user":"@alice:example.org:8448","password":"demo","initial_device_display_name":"x"}`,
			`{"type":"m.login.password","user":"nobody","identifier":{"type":"m.id.user","user":"alice"},"password":"demo","device_id":""}`,
			`{"type":"m.login.password","user":"alice","password":"demo","device_id":"my/own:device"}`,
		} {
			var got loggedIn
			d.object("POST", prefix+"/login", "", body, &got)
			if got.UserID != "@alice:example.org:8448" || got.DeviceID == "" ||
				strings.Contains(body, "my/own") && got.DeviceID != "my/own:device" {
				t.Errorf("%s: got %+v", body, got)
			}
			d.expect("GET", whoamiPath, got.AccessToken, "", 200,
				fmt.Sprintf(`{"device_id":%q,"is_guest":false,"user_id":"@alice:example.org:8448"}`, got.DeviceID))
		}
	}
	if first, second := d.login("alice", "demo", ""), d.login("alice", "demo", ""); first.DeviceID == second.DeviceID {
		t.Errorf("two devices are %q", first.DeviceID)
	}
}

func TestLoginGivesTheDefaultRules(t *testing.T) {
	t.Parallel()
	d := startDemo(t)
	session := d.login("alice", "demo", "")
	d.expect("PUT", rulesPath+"global/room/!r:x", session.AccessToken, `{"actions":[]}`, 200, "{}")
}

func TestRefusedLogins(t *testing.T) {
	t.Parallel()
	d := startDemo(t)
	long := strings.Repeat("D", sessions.MaxDeviceBytes+1)
	for _, test := range []struct {
		name, body   string
		status       int
		errcode, tag string // tag is part of the text
	}{
		{"wrong password", `{"type":"m.login.password","user":"alice","password":"x"}`, 403, "M_FORBIDDEN", "password"},
		{"empty password", `{"type":"m.login.password","user":"alice","password":""}`, 403, "M_FORBIDDEN", "password"},
		{"another server", `{"type":"m.login.password","user":"@alice:other","password":"demo"}`, 403, "M_FORBIDDEN", ""},
		{"no server", `{"type":"m.login.password","user":"@alice","password":"demo"}`, 403, "M_FORBIDDEN", ""},
		{"no user id", `{"type":"m.login.password","user":"al ice","password":"demo"}`, 403, "M_FORBIDDEN", ""},
		{"braces", `{"type":"m.login.password","user":"al{i}ce","password":"demo"}`, 403, "M_FORBIDDEN", ""},
		{"address", `{"type":"m.login.password","identifier":{"type":"m.id.thirdparty","medium":"email","address":"a@b"},"password":"demo"}`, 403, "M_FORBIDDEN", ""},
		{"number", `{"type":"m.login.password","identifier":{"type":"m.id.phone","country":"GB","phone":"1"},"password":"demo"}`, 403, "M_FORBIDDEN", ""},
		{"no type", `{"user":"alice","password":"demo"}`, 400, "M_MISSING_PARAM", "type"},
		{"no password", `{"type":"m.login.password","user":"alice"}`, 400, "M_MISSING_PARAM", "password"},
		{"null password", `{"type":"m.login.password","user":"alice","password":null}`, 400, "M_MISSING_PARAM", "password"},
		{"nobody", `{"type":"m.login.password","password":"demo"}`, 400, "M_MISSING_PARAM", "identifier"},
		{"identifier without type", `{"type":"m.login.password","identifier":{"user":"alice"},"password":"demo"}`, 400, "M_MISSING_PARAM", "identifier.type"},
		{"identifier without user", `{"type":"m.login.password","identifier":{"type":"m.id.user"},"password":"demo"}`, 400, "M_MISSING_PARAM", "identifier.user"},
		{"unknown identifier", `{"type":"m.login.password","identifier":{"type":"x","user":"alice"},"password":"demo"}`, 400, "M_UNKNOWN", "identifier"},
		{"unknown type", `{"type":"m.login.token","token":"x"}`, 400, "M_UNKNOWN", "login type"},
		{"password that is no text", `{"type":"m.login.password","user":"alice","password":1}`, 400, "M_BAD_JSON", "password"},
		{"user that is no text", `{"type":"m.login.password","identifier":{"type":"m.id.user","user":[]},"password":"demo"}`, 400, "M_BAD_JSON", "identifier.user"},
		{"array", `[]`, 400, "M_BAD_JSON", "object"},
		{"null", `null`, 400, "M_BAD_JSON", "object"},
		{"nothing", ``, 400, "M_NOT_JSON", ""},
		{"no JSON", `{"type"`, 400, "M_NOT_JSON", ""},
		{"two values", `{} {}`, 400, "M_NOT_JSON", ""},
		{"too large", `{"type":"` + strings.Repeat("x", maxBodyBytes) + `"}`, 413, "M_TOO_LARGE", ""},
		{"device with a space", `{"type":"m.login.password","user":"alice","password":"demo","device_id":"a b"}`, 400, "M_INVALID_PARAM", "device_id"},
		{"long device", `{"type":"m.login.password","user":"alice","password":"demo","device_id":"` + long + `"}`, 400, "M_INVALID_PARAM", "device_id"},
	} {
		t.Run(test.name, func(t *testing.T) {
			got := d.do("POST", v3+"/login", "", test.body)
			var body struct{ Errcode, Error string }
			if err := json.Unmarshal([]byte(got.body), &body); err != nil || got.status != test.status ||
				body.Errcode != test.errcode || !strings.Contains(body.Error, test.tag) {
				t.Errorf("got %d %s", got.status, got.body)
			}
		})
	}
}

// TestLoginAgain: a device that logs in again stays the same, with its pushers,
// but its old token dies.
func TestLoginAgain(t *testing.T) {
	t.Parallel()
	d := startDemo(t)
	old := d.login("alice", "demo", "PHONE")
	d.setPusher(old.AccessToken, "phone")
	session := d.login("alice", "demo", "PHONE")
	if session.AccessToken == old.AccessToken {
		t.Error("the token is the old one")
	}
	d.expect("GET", whoamiPath, old.AccessToken, "", 401, unknownToken)
	if keys := d.pushkeys(session.AccessToken); keys != "phone" {
		t.Errorf("got pushers %q", keys)
	}
	for _, forged := range []string{"session-alice/PHONE/SECRET", strings.ToLower(session.AccessToken),
		strings.Replace(session.AccessToken, "alice", "bob", 1), strings.Replace(session.AccessToken, "PHONE", "PHON", 1)} {
		d.expect("GET", whoamiPath, forged, "", 401, unknownToken)
	}
}

func TestLogout(t *testing.T) {
	t.Parallel()
	d := startDemo(t)
	phone, tablet := d.login("alice", "demo", "PHONE").AccessToken, d.login("alice", "demo", "TABLET").AccessToken
	bob := d.login("bob", "demo", "PHONE").AccessToken
	d.setPusher(phone, "phone")
	d.setPusher(tablet, "tablet")
	d.setPusher("demo-alice", "curl")
	d.setPusher(bob, "bob")

	d.expect("POST", v3+"/logout", phone, "", 200, "{}")
	d.expect("GET", whoamiPath, phone, "", 401, unknownToken)
	d.expect("POST", v3+"/logout", phone, "{}", 401, unknownToken)
	if keys := d.pushkeys(tablet); keys != "tablet curl" {
		t.Errorf("after the logout: %q", keys)
	}
	d.expect("POST", v3+"/logout", "demo-alice", "", 200, "{}")
	if keys := d.pushkeys("demo-alice"); keys != "tablet" {
		t.Errorf("after the logout of a token without a session: %q", keys)
	}
	d.expect("POST", v3+"/logout/all", tablet, "", 200, "{}")
	d.expect("GET", whoamiPath, tablet, "", 401, unknownToken)
	if keys := d.pushkeys("demo-alice"); keys != "" {
		t.Errorf("after the logout of all: %q", keys)
	}
	if keys := d.pushkeys(bob); keys != "bob" {
		t.Errorf("somebody else's: %q", keys)
	}
}

// A logout that could end the session but not remove the pushers, since Redis was
// gone by then, is finished by the user's next login, with any device.
func TestLoginRemovesWhatALogoutHasLeft(t *testing.T) {
	t.Parallel()
	server := redistest.Single(t)
	d := startDemo(t, "-redis-mode", "standalone", "-redis", server.Addr())
	phone, watch := d.login("alice", "demo", "PHONE").AccessToken, d.login("alice", "demo", "WATCH").AccessToken
	d.setPusher(phone, "phone")
	d.setPusher(watch, "watch")
	d.setPusher("demo-alice", "curl")
	if err := server.Client(t).HDel(t.Context(), "demo:devices:{@alice:localhost}", "PHONE").Err(); err != nil {
		t.Fatal(err)
	}
	d.expect("GET", whoamiPath, phone, "", 401, unknownToken)
	tablet := d.login("alice", "demo", "TABLET").AccessToken
	if keys := d.pushkeys(tablet); keys != "watch curl" {
		t.Errorf("after the next login: %q", keys)
	}
}
