package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/pushfx/pushfx/handlers"
	"github.com/pushfx/pushfx/integration/homeserver/sessions"
	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/redistest"
)

// auth returns what user-interactive authentication takes.
func auth(user, password string) string {
	return fmt.Sprintf(`{"type":"m.login.password","identifier":{"type":"m.id.user","user":%q},"password":%q,"session":"x"}`, user, password)
}

func (d *demo) changePassword(token, user, password, next, more string) answer {
	d.t.Helper()
	return d.do("POST", v3+"/account/password", token,
		fmt.Sprintf(`{"auth":%s,"new_password":%q%s}`, auth(user, password), next, more))
}

func TestChangePassword(t *testing.T) {
	t.Parallel()
	d := startDemo(t)
	phone, tablet := d.login("alice", "demo", "PHONE").AccessToken, d.login("alice", "demo", "TABLET").AccessToken
	for _, token := range []string{phone, tablet, "demo-alice"} {
		d.setPusher(token, token[len(token)-5:])
	}
	if got := d.changePassword(phone, "alice", "demo", "s3cret", ""); got.status != 200 || got.body != "{}" {
		t.Fatalf("got %d %s", got.status, got.body)
	}
	d.expect("GET", whoamiPath, phone, "", 200, "")
	d.expect("GET", whoamiPath, tablet, "", 401, unknownToken)
	if keys := d.pushkeys(phone); keys != phone[len(phone)-5:] {
		t.Errorf("got pushers %q", keys)
	}
	d.expect("POST", v3+"/login", "", `{"type":"m.login.password","user":"alice","password":"demo"}`, 403, wrongPassword)
	tablet = d.login("@alice:localhost", "s3cret", "TABLET").AccessToken

	// With a token that has no session, all sessions are other ones.
	if got := d.changePassword("demo-alice", "alice", "s3cret", "demo", ""); got.status != 200 {
		t.Fatalf("got %d %s", got.status, got.body)
	}
	d.expect("GET", whoamiPath, tablet, "", 401, unknownToken)
	d.login("alice", "demo", "")
}

func TestPasswordIsAskedFor(t *testing.T) {
	t.Parallel()
	d := startDemo(t)
	token := d.login("alice", "demo", "").AccessToken
	for _, path := range []string{"/account/password", "/account/deactivate"} {
		for _, test := range []struct {
			name, body string
			status     int
			errcode    string
		}{
			{"no auth", `{"new_password":"x"}`, 401, ""},
			{"only the session", `{"new_password":"x","auth":{"session":"x"}}`, 401, ""},
			{"unknown stage", `{"new_password":"x","auth":{"type":"m.login.dummy","session":"x"}}`, 401, "M_UNKNOWN"},
			{"wrong password", `{"new_password":"x","auth":` + auth("alice", "x") + `}`, 401, "M_FORBIDDEN"},
			{"another user", `{"new_password":"x","auth":` + auth("bob", "demo") + `}`, 401, "M_FORBIDDEN"},
			{"no password", `{"new_password":"x","auth":{"type":"m.login.password","user":"alice"}}`, 400, "M_MISSING_PARAM"},
			{"no user", `{"new_password":"x","auth":{"type":"m.login.password","password":"demo"}}`, 400, "M_MISSING_PARAM"},
			{"auth that is no object", `{"new_password":"x","auth":1}`, 400, "M_BAD_JSON"},
			{"no JSON", `x`, 400, "M_NOT_JSON"},
		} {
			t.Run(path+", "+test.name, func(t *testing.T) {
				got := d.do("POST", v3+path, token, test.body)
				var body struct {
					Errcode, Session string
					Flows            json.RawMessage
					Params           json.RawMessage
				}
				if err := json.Unmarshal([]byte(got.body), &body); err != nil || got.status != test.status || body.Errcode != test.errcode {
					t.Errorf("got %d %s", got.status, got.body)
				}
				asked := body.Session != "" && string(body.Flows) == `[{"stages":["m.login.password"]}]` && string(body.Params) == "{}"
				if asked != (test.status == 401) {
					t.Errorf("got %d %s", got.status, got.body)
				}
			})
		}
	}
	for body, errcode := range map[string]string{
		`{"auth":` + auth("alice", "demo") + `}`:                                              "M_MISSING_PARAM",
		`{"auth":` + auth("alice", "demo") + `,"new_password":""}`:                            "M_WEAK_PASSWORD",
		`{"auth":` + auth("alice", "demo") + `,"new_password":1}`:                             "M_BAD_JSON",
		`{"auth":` + auth("alice", "demo") + `,"new_password":"x","logout_devices":"please"}`: "M_BAD_JSON",
	} {
		got := d.do("POST", v3+"/account/password", token, body)
		if got.status != 400 || !strings.Contains(got.body, errcode) {
			t.Errorf("%s: got %d %s", body, got.status, got.body)
		}
	}
	d.login("alice", "demo", "")
}

func TestDeactivate(t *testing.T) {
	t.Parallel()
	d := startDemo(t)
	phone, tablet := d.login("alice", "demo", "PHONE").AccessToken, d.login("alice", "demo", "TABLET").AccessToken
	d.setPusher(tablet, "tablet")
	d.setPusher("demo-bob", "bob")
	d.expect("POST", v3+"/account/deactivate", phone, `{"auth":`+auth("alice", "demo")+`,"erase":true}`, 200,
		`{"id_server_unbind_result":"no-support"}`)
	for _, token := range []string{phone, tablet} {
		d.expect("GET", whoamiPath, token, "", 401, unknownToken)
	}
	for _, token := range []string{phone, tablet, "demo-alice", "demo-alice/PHONE"} {
		d.expect("GET", rulesPath, token, "", 401, unknownToken)
	}
	d.expect("POST", v3+"/login", "", `{"type":"m.login.password","user":"alice","password":"demo"}`, 403,
		`{"errcode":"M_USER_DEACTIVATED","error":"This account has been deactivated."}`)
	if keys := d.pushkeys("demo-bob"); keys != "bob" {
		t.Errorf("somebody else's: %q", keys)
	}
}

// TestDeactivationForgets: of a user who is deactivated nothing is left but
// that.
func TestDeactivationForgets(t *testing.T) {
	t.Parallel()
	server := redistest.Single(t)
	d := startDemo(t, "-redis-mode", "standalone", "-redis", server.Addr())
	token := d.login("alice", "demo", "").AccessToken
	d.setPusher(token, "phone")
	d.expect("POST", filterPath, token, "{}", 200, "")
	keys := func() []string {
		keys, err := server.Client(t).Keys(t.Context(), "*alice*").Result()
		if err != nil {
			t.Fatal(err)
		}
		return keys
	}
	if before := keys(); len(before) < 4 {
		t.Errorf("before: %q", before)
	}
	d.expect("POST", v3+"/account/deactivate", token, `{"auth":`+auth("alice", "demo")+`}`, 200, "")
	if after := keys(); len(after) != 1 || after[0] != "demo:account:{@alice:localhost}" {
		t.Errorf("after: %q", after)
	}
}

// TestRequestsThatRaceWithADeactivation leave nothing behind.
func TestRequestsThatRaceWithADeactivation(t *testing.T) {
	t.Parallel()
	server := redistest.Single(t)
	d := startDemo(t, "-redis-mode", "standalone", "-redis", server.Addr())
	client := server.Client(t)
	for i := range 50 {
		user := fmt.Sprintf("user%d", i)
		token := "demo-" + user
		requests := []change{
			{"GET", rulesPath, ""},
			{"GET", v3 + "/sync", ""},
			{"POST", v3 + "/user/@" + user + ":localhost/filter", "{}"},
		}
		answers := make(chan answer, len(requests))
		for _, r := range requests {
			go func() { answers <- d.try(r.method, r.path, token, r.body) }()
		}
		d.expect("POST", v3+"/account/deactivate", token, `{"auth":`+auth(user, "demo")+`}`, 200, "")
		for range requests {
			if got := <-answers; got.status != 200 && got.status != 401 {
				t.Errorf("got %d %s", got.status, got.body)
			}
		}
		keys, err := client.Keys(t.Context(), "*{@"+user+":localhost}*").Result()
		if err != nil || len(keys) != 1 {
			t.Fatalf("left over: %q, %v", keys, err)
		}
	}
}

func TestAccountsOnACluster(t *testing.T) {
	t.Parallel()
	servers := redistest.Cluster(t, 3, 0)
	d := startDemo(t, "-redis-mode", "cluster", "-redis", strings.Join(servers.Addrs(), ","))
	for _, user := range []string{"a", "b", "c", "d", "e"} {
		old, token := d.login(user, "demo", "OLD").AccessToken, d.login(user, "demo", "NEW").AccessToken
		if got := d.changePassword(token, user, "demo", "x", ""); got.status != 200 {
			t.Errorf("%s: got %d %s", user, got.status, got.body)
		}
		d.expect("GET", whoamiPath, old, "", 401, unknownToken)
		d.expect("POST", v3+"/user/@"+user+":localhost/filter", token, "{}", 200, "")
		d.expect("POST", v3+"/account/deactivate", token, `{"auth":`+auth(user, "x")+`}`, 200, "")
		d.expect("GET", whoamiPath, token, "", 401, unknownToken)
	}
}

// TestNoPusherOutlivesItsDevice, though it is set while the device logs out:
// the module asks the host's accounts.
func TestNoPusherOutlivesItsDevice(t *testing.T) {
	t.Parallel()
	d := startDemo(t)
	for range 100 {
		token := d.login("alice", "demo", "PHONE").AccessToken
		set := make(chan answer, 1)
		go func() {
			set <- d.try("POST", v3+"/pushers/set", token, `{"kind":"http","app_id":"app","pushkey":"phone","app_display_name":"",`+
				`"device_display_name":"","lang":"en","data":{"url":"https://p.example/_matrix/push/v1/notify"}}`)
		}()
		d.expect("POST", v3+"/logout", token, "", 200, "{}")
		if got := <-set; got.status != 200 && got.status != 401 {
			t.Fatalf("got %d %s", got.status, got.body)
		}
		if keys := d.pushkeys("demo-alice"); keys != "" {
			t.Fatalf("left over: %q", keys)
		}
	}
}

// moduleAway is a module whose Redis cannot be reached, though the host's sessions can.
type moduleAway struct{ module.HostService }

var errAway = module.Unavailable(errors.New("no route to host"))

func (moduleAway) EnsureDefaults(context.Context, mxid.UserID) error                 { return errAway }
func (moduleAway) RetainDevicePushers(context.Context, mxid.UserID, ...string) error { return errAway }
func (moduleAway) RemoveDevicePushers(context.Context, mxid.UserID, ...string) error { return errAway }
func (moduleAway) KeepOnlyDevicePushers(context.Context, mxid.UserID, string) error  { return errAway }
func (moduleAway) ForgetUser(context.Context, mxid.UserID) error                     { return errAway }

// Accounts do without the module: its errors are logged, and the client does not
// see them.
func TestAccountsDoWithoutTheModule(t *testing.T) {
	t.Parallel()
	core, logs := observer.New(zap.DebugLevel)
	log := zap.New(core)
	users := sessions.New(startStore(t), "localhost", func(mxid.UserID) {})
	limits := newLimits(0, 0)
	groups := []handlers.RouteGroup{newAccount(users, limits, moduleAway{}, log)}
	router := newRouter(groups, users, newLogin(users, limits, moduleAway{}, log), wellKnown{}, limits, newDrain(), log)
	request := func(path, token, body string) string {
		t.Helper()
		r := httptest.NewRequest(http.MethodPost, v3+path, strings.NewReader(body))
		r.Header.Set("Authorization", "Bearer "+token)
		w := httptest.NewRecorder()
		router.ServeHTTP(w, r)
		var got loggedIn
		if err := json.Unmarshal(w.Body.Bytes(), &got); err != nil || w.Code != http.StatusOK {
			t.Errorf("%s: got %d %s", path, w.Code, w.Body)
		}
		return got.AccessToken
	}
	logIn := func() string {
		t.Helper()
		return request("/login", "", `{"type":"m.login.password","user":"alice","password":"demo"}`)
	}
	request("/logout", logIn(), "")
	request("/logout/all", logIn(), "")
	token := logIn()
	request("/account/password", token, `{"new_password":"demo","auth":`+auth("alice", "demo")+`}`)
	request("/account/deactivate", token, `{"auth":`+auth("alice", "demo")+`}`)
	failed := map[any]int{}
	for _, entry := range logs.FilterMessage("push: a call failed").All() {
		failed[entry.ContextMap()["at"]]++
	}
	want := map[any]int{"login": 6, "logout": 1, "logout of all devices": 1, "password change": 1, "deactivation": 1}
	if !maps.Equal(failed, want) {
		t.Errorf("logged %v, want %v", failed, want)
	}
}
