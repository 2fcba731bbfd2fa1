package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/pushfx/pushfx/integration/homeserver/sessions"
	"github.com/pushfx/pushfx/integration/hosttest"
	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/redistest"
)

func auth(user, password string) string {
	return fmt.Sprintf(`{"type":"m.login.password","identifier":{"type":"m.id.user","user":%q},"password":%q,"session":"x"}`, user, password)
}

func (d *demo) changePassword(token, user, password, next, more string) answer {
	d.t.Helper()
	return d.do("POST", v3+"/account/password", token,
		fmt.Sprintf(`{"auth":%s,"new_password":%q%s}`, auth(user, password), next, more))
}

func TestPasswordIsRequired(t *testing.T) {
	t.Parallel()
	d := startDemo(t)
	token := d.login("alice", "demo", "").AccessToken
	for _, path := range []string{"/account/password", "/account/deactivate"} {
		for body, errcode := range map[string]string{
			`{"new_password":"x"}`:                                               "",
			`{"new_password":"x","auth":{"session":"x"}}`:                        "",
			`{"new_password":"x","auth":{"type":"m.login.dummy","session":"x"}}`: "M_UNKNOWN",
			`{"new_password":"x","auth":` + auth("alice", "x") + `}`:             "M_FORBIDDEN",
			`{"new_password":"x","auth":` + auth("bob", "demo") + `}`:            "M_FORBIDDEN",
		} {
			got := d.do("POST", v3+path, token, body)
			var asked struct {
				Errcode, Session string
				Flows            json.RawMessage
			}
			if err := json.Unmarshal([]byte(got.body), &asked); err != nil || got.status != 401 || asked.Errcode != errcode ||
				asked.Session == "" || string(asked.Flows) != `[{"stages":["m.login.password"]}]` {
				t.Errorf("%s: got %d %s", body, got.status, got.body)
			}
		}
	}
	d.login("alice", "demo", "")
}

// After a deactivation, only the mark that the user is deactivated stays.
func TestDeactivationRemovesTheUsersData(t *testing.T) {
	t.Parallel()
	server := redistest.Single(t)
	d, db := startDemo(t, "-redis-mode", "standalone", "-redis", server.Addr()), hosttest.OpenData(t)
	token := d.login("alice", "demo", "").AccessToken
	d.expect("PUT", v3+"/user/@alice:localhost/account_data/m.ignored_user_list", token, `{"ignored_users":{"@eve:localhost":{}}}`, 200, "{}")
	d.expect("POST", v3+"/user/@alice:localhost/filter", token, "{}", 200, "")
	d.send("demo-bob", "$1", "")
	d.expect("POST", v3+"/rooms/"+teaRoom+"/receipt/m.read/$1", token, "{}", 200, "{}")
	d.setPusher(token, "phone")
	left := func() (all []string) {
		t.Helper()
		all, err := server.Client(t).Keys(t.Context(), "*alice*").Result()
		for _, table := range []string{"users", "devices", "account_data", "ignored_users", "filters", "members", "changes", "receipts"} {
			var n int
			if err == nil {
				err = db.Writer().QueryRowContext(t.Context(), "SELECT COUNT(*) FROM "+table+" WHERE user_id = '@alice:localhost'").Scan(&n)
			}
			if n > 0 {
				all = append(all, table)
			}
		}
		if err != nil {
			t.Fatal(err)
		}
		return all
	}
	if before := left(); len(before) < 10 {
		t.Errorf("before: %q", before)
	}
	d.expect("POST", v3+"/account/deactivate", token, `{"auth":`+auth("alice", "demo")+`}`, 200, "")
	if after := left(); !slices.Equal(after, []string{"users", "members"}) { // as a user who has left
		t.Errorf("after: %q", after)
	}
	for _, token := range []string{token, "demo-alice"} {
		d.expect("GET", rulesPath, token, "", 401, unknownToken)
	}
	d.expect("POST", v3+"/login", "", `{"type":"m.login.password","user":"alice","password":"demo"}`, 403,
		`{"errcode":"M_USER_DEACTIVATED","error":"This account has been deactivated."}`)
}

// Redis does not reply while a host deactivates a user. Another host repeats what the first could not do.
func TestAFailedDeactivationIsRepeated(t *testing.T) {
	t.Parallel()
	redistest.Require(t)
	server := redistest.Single(t)
	proxy := redistest.NewProxy(t, server)
	d := startDemo(t, "-redis-mode", "standalone", "-redis", proxy.Addr())
	token := d.login("alice", "demo", "").AccessToken
	d.setPusher(token, "phone")
	for n := range 50 {
		proxy.CutRequest(n+1, "EVALSHA", "EVAL").With("pushers:{@alice")
	}
	d.expect("POST", v3+"/account/deactivate", token, `{"auth":`+auth("alice", "demo")+`}`, 200, "")
	left := func() []string {
		keys, err := server.Client(t).Keys(t.Context(), "*@alice:*").Result()
		if err != nil {
			t.Fatal(err)
		}
		return keys
	}
	if keys := left(); len(keys) == 0 {
		t.Error("nothing is left to forget")
	}
	startDemo(t, "-redis-mode", "standalone", "-redis", server.Addr())
	poll(t, "the user is forgotten", func() bool { return len(left()) == 0 })
	users := sessions.New(hosttest.OpenData(t), "localhost", nil)
	poll(t, "the user is not listed", func() bool {
		listed, err := users.ToForget(t.Context())
		return err == nil && len(listed) == 0
	})
}

// A device logs out while it sets a pusher. The pusher does not stay, because the module asks
// the host whether the device is logged in.
func TestNoPusherOutlivesItsDevice(t *testing.T) {
	t.Parallel()
	d := startDemo(t)
	for range 100 {
		token := d.login("alice", "demo", "PHONE").AccessToken
		set := d.start("POST", v3+"/pushers/set", token, `{"kind":"http","app_id":"app","pushkey":"phone","app_display_name":"",`+
			`"device_display_name":"","lang":"en","data":{"url":"https://p.example/_matrix/push/v1/notify"}}`)
		d.expect("POST", v3+"/logout", token, "", 200, "{}")
		if got := <-set; got.status != 200 && got.status != 401 {
			t.Fatalf("got %d %s", got.status, got.body)
		}
		if keys := d.pushkeys("demo-alice"); keys != "" {
			t.Fatalf("left over: %q", keys)
		}
	}
}

// moduleAway is a module that cannot reach its Redis.
type moduleAway struct{ module.HostService }

var errAway = module.Unavailable(errors.New("no route to host"))

func (moduleAway) EnsureDefaults(context.Context, mxid.UserID) error                 { return errAway }
func (moduleAway) RetainDevicePushers(context.Context, mxid.UserID, ...string) error { return errAway }
func (moduleAway) RemoveDevicePushers(context.Context, mxid.UserID, ...string) error { return errAway }
func (moduleAway) KeepOnlyDevicePushers(context.Context, mxid.UserID, string) error  { return errAway }
func (moduleAway) ForgetUser(context.Context, mxid.UserID) error                     { return errAway }

// Requests about accounts succeed when the module fails. Only the log shows its errors.
func TestAccountsWorkWithoutTheModule(t *testing.T) {
	t.Parallel()
	core, logs := observer.New(zap.DebugLevel)
	log := zap.New(core)
	users := sessions.New(hosttest.OpenData(t), "localhost", func(mxid.UserID) {})
	router := routerOf(&api{sessions: users, host: moduleAway{}, forgetting: newForgetting(users, moduleAway{}, log), log: log})
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
