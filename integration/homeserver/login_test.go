package main

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/pushfx/pushfx/integration/hosttest"
	"github.com/pushfx/pushfx/module/redistest"
)

const (
	v3 = "/_matrix/client/v3"

	unknownToken  = `{"errcode":"M_UNKNOWN_TOKEN","error":"Unknown access token."}`
	wrongPassword = `{"errcode":"M_FORBIDDEN","error":"Invalid username or password."}`
)

type loggedIn struct {
	UserID      string `json:"user_id"`
	AccessToken string `json:"access_token"`
	DeviceID    string `json:"device_id"`
}

// login logs a user in. Without a device, the server makes one up.
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

func (d *demo) setPusher(token, pushkey string) {
	d.t.Helper()
	d.expect("POST", v3+"/pushers/set", token, fmt.Sprintf(`{"kind":"http","app_id":"app","pushkey":%q,"app_display_name":"",`+
		`"device_display_name":"","lang":"en","append":true,"data":{"url":"https://p.example/_matrix/push/v1/notify"}}`, pushkey), 200, "{}")
}

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
			`{"type":"m.login.password","user":"@alice:example.org:8448","password":"demo","device_id":"my/own:device"}`,
		} {
			var got loggedIn
			d.object("POST", prefix+"/login", "", body, &got)
			if got.UserID != "@alice:example.org:8448" || got.DeviceID == "" ||
				strings.Contains(body, "my/own") && got.DeviceID != "my/own:device" {
				t.Errorf("%s: got %+v", body, got)
			}
			d.expect("GET", whoamiPath, got.AccessToken, "", 200,
				fmt.Sprintf(`{"device_id":%q,"is_guest":false,"user_id":"@alice:example.org:8448"}`, got.DeviceID))
			d.expect("PUT", rulesPath+"global/room/!r:x", got.AccessToken, `{"actions":[]}`, 200, "{}") // the default rules are there
		}
	}
}

func TestRefusedLogins(t *testing.T) {
	t.Parallel()
	d := startDemo(t)
	for body, want := range map[string]answer{
		`{"type":"m.login.password","user":"alice","password":"x"}`:                        {status: 403, body: "M_FORBIDDEN"},
		`{"type":"m.login.password","user":"@alice:other","password":"demo"}`:              {status: 403, body: "M_FORBIDDEN"},
		`{"type":"m.login.password","user":"al{i}ce","password":"demo"}`:                   {status: 403, body: "M_FORBIDDEN"},
		`{"type":"m.login.password","identifier":{"type":"m.id.phone"},"password":"demo"}`: {status: 403, body: "M_FORBIDDEN"},
		`{"type":"m.login.password","user":"alice"}`:                                       {status: 400, body: "M_MISSING_PARAM"},
		`{"type":"m.login.password","identifier":{"type":"m.id.user"},"password":"demo"}`:  {status: 400, body: "M_MISSING_PARAM"},
		`{"type":"m.login.token","token":"x"}`:                                             {status: 400, body: "M_UNKNOWN"},
		`{"type":"m.login.password","user":"alice","password":1}`:                          {status: 400, body: "M_BAD_JSON"},
		`{} {}`: {status: 400, body: "M_NOT_JSON"},
		`{"type":"` + strings.Repeat("x", maxBodyBytes) + `"}`:                           {status: 413, body: "M_TOO_LARGE"},
		`{"type":"m.login.password","user":"alice","password":"demo","device_id":"a b"}`: {status: 400, body: "M_INVALID_PARAM"},
	} {
		if got := d.do("POST", v3+"/login", "", body); got.status != want.status || !strings.Contains(got.body, want.body) {
			t.Errorf("%.100s: got %d %s", body, got.status, got.body)
		}
	}
}

// A device that logs in again keeps its pushers, and loses its old token.
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

// Redis fails between the end of a session and the removal of its pushers. The user's next
// login, on any device, removes them.
func TestLoginRemovesPushersThatALogoutLeft(t *testing.T) {
	t.Parallel()
	d := startDemo(t, "-redis-mode", "standalone", "-redis", redistest.Single(t).Addr())
	phone, watch := d.login("alice", "demo", "PHONE").AccessToken, d.login("alice", "demo", "WATCH").AccessToken
	d.setPusher(phone, "phone")
	d.setPusher(watch, "watch")
	d.setPusher("demo-alice", "curl")
	if err := hosttest.OpenData(t).Exec(t.Context(), `DELETE FROM devices WHERE device_id = 'PHONE'`); err != nil {
		t.Fatal(err)
	}
	d.expect("GET", whoamiPath, phone, "", 401, unknownToken)
	left := d.pushkeys(watch)
	tablet := d.login("alice", "demo", "TABLET").AccessToken
	keys := d.pushkeys(tablet)
	if keys != "watch curl" {
		t.Errorf("after the next login: %q", keys)
	}
	t.Logf("the logout left the pushers %s, the next login of the user %s", left, keys)
}
