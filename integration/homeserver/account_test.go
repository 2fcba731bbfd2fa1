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

	"github.com/pushfx/pushfx"
	"github.com/pushfx/pushfx/handlers"
	"github.com/pushfx/pushfx/integration/homeserver/sessions"
	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/pusher"
	"github.com/pushfx/pushfx/module/redisclient"
	"github.com/pushfx/pushfx/module/redistest"
	"github.com/pushfx/pushfx/module/stored"
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

// After a deactivation, Redis keeps only the mark that the user is deactivated.
func TestDeactivationRemovesTheUsersData(t *testing.T) {
	t.Parallel()
	server := redistest.Single(t)
	d := startDemo(t, "-redis-mode", "standalone", "-redis", server.Addr())
	token := d.login("alice", "demo", "").AccessToken
	d.setPusher(token, "phone")
	d.expect("PUT", v3+"/user/@alice:localhost/account_data/m.direct", token, "{}", 200, "{}")
	keys := func() []string {
		keys, err := server.Client(t).Keys(t.Context(), "*alice*").Result()
		if err != nil {
			t.Fatal(err)
		}
		return keys
	}
	if before := keys(); len(before) < 3 {
		t.Errorf("before: %q", before)
	}
	d.expect("POST", v3+"/account/deactivate", token, `{"auth":`+auth("alice", "demo")+`}`, 200, "")
	if after := keys(); len(after) != 1 || after[0] != "demo:account:{@alice:localhost}" {
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
	client := server.Client(t)
	proxy := redistest.NewProxy(t, server)
	d := startDemo(t, "-redis-mode", "standalone", "-redis", proxy.Addr())
	tokens := map[string]string{}
	for _, user := range []string{"alice", "carol"} {
		tokens[user] = d.login(user, "demo", "").AccessToken
		d.setPusher(tokens[user], "phone of "+user)
	}
	for n := range 50 {
		proxy.CutRequest(n+1, "EVALSHA", "EVAL").With("pushers:{@alice")
	}
	d.expect("POST", v3+"/account/deactivate", tokens["alice"], `{"auth":`+auth("alice", "demo")+`}`, 200, "")
	// Carol's deactivation failed after its first step.
	if err := client.HSet(t.Context(), "demo:forget:{3}", "@carol:localhost", "").Err(); err != nil {
		t.Fatal(err)
	}
	listed := func() (users []string) {
		for n := range 8 {
			users = append(users, client.HKeys(t.Context(), fmt.Sprintf("demo:forget:{%d}", n)).Val()...)
		}
		slices.Sort(users)
		return users
	}
	if users := listed(); !slices.Equal(users, []string{"@alice:localhost", "@carol:localhost"}) {
		t.Errorf("listed %q", users)
	}
	left := func(user string) []string {
		keys, err := client.Keys(t.Context(), "*@"+user+":*").Result()
		if err != nil {
			t.Fatal(err)
		}
		return keys
	}
	if alice := left("alice"); len(alice) < 2 {
		t.Errorf("before: %q", alice)
	}
	startDemo(t, "-redis-mode", "standalone", "-redis", server.Addr())
	poll(t, "the users are forgotten", func() bool { return slices.Equal(listed(), []string{"@carol:localhost"}) })
	for user, least := range map[string]int{"alice": 1, "carol": 3} {
		if keys := left(user); least == 1 && len(keys) != 1 || len(keys) < least {
			t.Errorf("after: %q", keys)
		}
	}
	d.expect("GET", whoamiPath, tokens["carol"], "", 200, "")
}

// A user is listed only if a removal fails: a deactivation does not need the list.
func TestADeactivationNeedsNoList(t *testing.T) {
	t.Parallel()
	server := redistest.Single(t)
	d := startDemo(t, "-redis-mode", "standalone", "-redis", server.Addr())
	for n := range 8 {
		if err := server.Client(t).Set(t.Context(), fmt.Sprintf("demo:forget:{%d}", n), "no hash", 0).Err(); err != nil {
			t.Fatal(err)
		}
	}
	token := d.login("alice", "demo", "").AccessToken
	d.expect("POST", v3+"/account/deactivate", token, `{"auth":`+auth("alice", "demo")+`}`, 200, "")
}

// A user whose pushkey is on a lost master is listed where a master replies, whichever list that is.
func TestALostMasterRefusesNoDeactivationOfOthers(t *testing.T) {
	t.Parallel()
	d, last, next := startOnThreeMasters(t)
	users := map[string]string{} // the token of each
	for n := 0; len(users) < 6; n++ {
		key := pusher.Key{AppID: "app", Pushkey: fmt.Sprint("pushkey", n)}
		if redisclient.SlotOf(stored.Keys{}.Pushkey(key.Digest()))*3/16384 != 2 {
			continue // not on the last master
		}
		name := strings.TrimSuffix(next("@user%d:localhost", false)[1:], ":localhost")
		users[name] = d.login(name, "demo", "").AccessToken
		d.setPusherHere(users[name], key.Pushkey, "")
	}
	last.Stop()
	for name, token := range users {
		d.expect("POST", v3+"/account/deactivate", token, `{"auth":`+auth(name, "demo")+`}`, 200, "")
	}
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
	users := sessions.New(startStore(t), "localhost", func(mxid.UserID) {})
	limits := newLimits(0, 0)
	groups := []handlers.RouteGroup{newAccount(config{}, users, limits, moduleAway{}, newForgetting(users, startRooms(t), moduleAway{}, log), log)}
	router := newRouter(groups, newAuth(users, limits), newLogin(users, limits, moduleAway{}, log), limits, newDrain(config{}), newGuard(config{}), &pushfx.Push{}, log)
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
	want := map[any]int{"login": 6, "logout": 1, "logout of all devices": 1, "password change": 1, "deactivation": 2}
	if !maps.Equal(failed, want) {
		t.Errorf("logged %v, want %v", failed, want)
	}
}
