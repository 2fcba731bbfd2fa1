package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/pushfx/pushfx/integration/homeserver/rooms"
	"github.com/pushfx/pushfx/integration/homeserver/sessions"
	"github.com/pushfx/pushfx/integration/hosttest"
	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/redistest"
)

const (
	longPoll = "&timeout=30000"

	// settling is the time until a request waits on the server. A shorter time weakens the
	// tests, but they pass.
	settling = 50 * time.Millisecond

	littleTime = 300 * time.Millisecond
)

type batch struct {
	NextBatch   string `json:"next_batch"`
	AccountData struct {
		Events []struct {
			Type    string
			Content struct{ Global map[string][]rule }
		}
	} `json:"account_data"`
}

type rule struct {
	ID      string `json:"rule_id"`
	Enabled bool
	Actions []any
}

// rules returns the push rules of a kind; delivered is false if the batch has none.
func (b batch) rules(kind string) (rules []rule, delivered bool) {
	for _, event := range b.AccountData.Events {
		if event.Type == "m.push_rules" {
			return event.Content.Global[kind], true
		}
	}
	return nil, false
}

func (d *demo) sync(token, query string) (b batch) {
	d.t.Helper()
	d.object("GET", v3+"/sync?"+query, token, "", &b)
	return b
}

func (d *demo) startSync(token, query string) <-chan answer {
	answers := d.start("GET", v3+"/sync?"+query, token, "")
	time.Sleep(settling)
	return answers
}

// woken waits for a sync that must deliver push rules.
func woken(t *testing.T, answers <-chan answer) (b batch) {
	t.Helper()
	got := <-answers
	if err := json.Unmarshal([]byte(got.body), &b); got.status != 200 || err != nil {
		t.Fatalf("got %d %s", got.status, got.body)
	}
	if _, delivered := b.rules("room"); !delivered {
		t.Errorf("woken by nothing: %s", got.body)
	}
	return b
}

// Each of many changes reaches a sync, whether the sync waits already or not.
func TestNoWakeUpIsLost(t *testing.T) {
	t.Parallel()
	d := startDemo(t)
	next := d.sync("demo-alice", "").NextBatch
	for i := range 200 {
		id := fmt.Sprintf("!%d:x", i)
		answers := d.start("GET", v3+"/sync?since="+next+longPoll, "demo-alice", "")
		began := time.Now()
		d.expect("PUT", rulesPath+"global/room/"+id, "demo-alice", `{"actions":[]}`, 200, "{}")
		got := woken(t, answers)
		if took := time.Since(began); took > patience {
			t.Fatalf("change %d took %v", i, took)
		}
		if rules, _ := got.rules("room"); len(rules) == 0 || rules[0].ID != id {
			t.Fatalf("got %+v, want %s first", rules, id)
		}
		next = got.NextBatch
	}
}

func TestSyncWithFilter(t *testing.T) {
	t.Parallel()
	d := startDemo(t)
	const excluding = `{"account_data":{"not_types":["m.push_*"]}}`
	var stored struct {
		FilterID string `json:"filter_id"`
	}
	d.object("POST", filterPath, "demo-alice", excluding, &stored)
	d.expect("GET", v3+"/sync?filter=nope", "demo-bob", "", 400, "")
	first := d.sync("demo-alice", "filter="+url.QueryEscape(excluding)+longPoll)
	if _, delivered := first.rules("room"); delivered {
		t.Error("the first sync delivers an excluded type")
	}
	began := time.Now()
	waiting := d.startSync("demo-alice", "filter="+stored.FilterID+"&since="+first.NextBatch+"&timeout=500")
	d.expect("PUT", rulesPath+"global/room/!r:x", "demo-alice", `{"actions":[]}`, 200, "{}")
	if got := <-waiting; got.status != 200 || strings.Contains(got.body, "m.push_rules") || time.Since(began) < 500*time.Millisecond {
		t.Errorf("after %v: got %d %s", time.Since(began), got.status, got.body)
	}
}

// Clients wait for the account data that they set.
func TestSyncDeliversAccountData(t *testing.T) {
	t.Parallel()
	redistest.Require(t)
	redis := []string{"-redis-mode", "standalone", "-redis", "redis://" + redistest.Single(t).Addr()}
	d, other := startDemo(t, redis...), startDemo(t, redis...)
	const ignored = `{"type":"m.ignored_user_list","content":{"ignored_users":{"@bob:localhost":{}}}}`
	const path = v3 + "/user/@alice:localhost/"
	next := d.sync("demo-alice", "").NextBatch
	waiting := other.startSync("demo-alice", "since="+next+longPoll)
	d.expect("PUT", path+"account_data/m.ignored_user_list", "demo-alice", `{"ignored_users":{"@bob:localhost":{}}}`, 200, "{}")
	if got := <-waiting; !strings.Contains(got.body, ignored) {
		t.Errorf("a waiting sync: got %s", got.body)
	}
	if got := d.do("GET", v3+"/sync", "demo-alice", ""); !strings.Contains(got.body, ignored) {
		t.Errorf("a first sync: got %s", got.body)
	}
	if got := d.do("GET", v3+`/sync?filter={"account_data":{"types":["m.push_rules"]}}`, "demo-alice", ""); strings.Contains(got.body, ignored) {
		t.Errorf("the filter excludes the list: got %s", got.body)
	}

	const marked = `{"type":"m.marked_unread","content":{"unread":true}}`
	inRoom := func(body string) string { // the account data of the room
		var b struct {
			Rooms struct {
				Join map[string]struct {
					Data json.RawMessage `json:"account_data"`
				}
			}
		}
		if err := json.Unmarshal([]byte(body), &b); err != nil {
			t.Fatal(body, err)
		}
		return string(b.Rooms.Join[teaRoom].Data)
	}
	d.expect("PUT", path+"rooms/!elsewhere:x/account_data/m.marked_unread", "demo-alice", `{"unread":true}`, 200, "{}")
	d.send("demo-bob", "$1", "")
	next = d.sync("demo-alice", "").NextBatch
	waiting = other.startSync("demo-alice", "since="+next+longPoll)
	d.expect("PUT", path+"rooms/"+teaRoom+"/account_data/m.marked_unread", "demo-alice", `{"unread":true}`, 200, "{}")
	for name, got := range map[string]answer{
		"a waiting sync": <-waiting, "a first sync": d.do("GET", v3+"/sync", "demo-alice", ""), "a later sync": d.do("GET", v3+"/sync?since="+next, "demo-alice", ""),
	} {
		if data := inRoom(got.body); data != `{"events":[`+marked+`]}` || strings.Contains(got.body, "elsewhere") {
			t.Errorf("%s: the room has %s in %s", name, data, got.body)
		}
	}
	if got := d.do("GET", v3+`/sync?filter={"room":{"account_data":{"not_types":["m.marked*"]}}}`, "demo-alice", ""); inRoom(got.body) != `{"events":[]}` {
		t.Errorf("the filter excludes the type: got %s", got.body)
	}
	d.expect("GET", path+"rooms/"+teaRoom+"/account_data/m.tag", "demo-alice", "", 404, `{"errcode":"M_NOT_FOUND","error":"Account data not found."}`)
	for _, kind := range []string{"", "rooms/" + teaRoom + "/"} {
		d.expect("PUT", path+kind+"account_data/m.fully_read", "demo-alice", `{"event_id":"$1"}`, 405,
			`{"errcode":"M_BAD_JSON","error":"Cannot set m.fully_read through this API. Use /read_markers."}`)
		d.expect("PUT", path+kind+"account_data/m.fully_read", "demo-bob", `{"event_id":"$1"}`, 403, "")
		d.expect("PUT", path+kind+"account_data/m.push_rules", "demo-alice", `{}`, 405, "")
		d.expect("PUT", path+kind+"account_data/m.push%5Frules", "demo-alice", `{}`, 405, "")
	}
}

func TestLogoutEndsWaitingSyncs(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(d *demo, token, other string){
		"logout":     func(d *demo, token, _ string) { d.expect("POST", v3+"/logout", token, "", 200, "") },
		"logout all": func(d *demo, _, other string) { d.expect("POST", v3+"/logout/all", other, "", 200, "") },
		"login":      func(d *demo, _, _ string) { d.login("alice", "demo", "PHONE") },
		"password": func(d *demo, _, other string) {
			if got := d.changePassword(other, "alice", "demo", "demo", ""); got.status != 200 {
				t.Errorf("got %d %s", got.status, got.body)
			}
		},
		"deactivation": func(d *demo, _, other string) {
			d.expect("POST", v3+"/account/deactivate", other, `{"auth":`+auth("alice", "demo")+`}`, 200, "")
		},
	} {
		d := startDemo(t)
		token, other := d.login("alice", "demo", "PHONE").AccessToken, d.login("alice", "demo", "TABLET").AccessToken
		query := "since=" + d.sync(token, "").NextBatch + longPoll
		waiting := d.startSync(token, query)
		end(d, token, other)
		began := time.Now()
		if got := <-waiting; got.status != 401 || got.body != unknownToken {
			t.Errorf("%s: got %d %s", name, got.status, got.body)
		}
		if took := time.Since(began); took > patience {
			t.Errorf("%s: took %v", name, took)
		}
	}
}

func TestTooManySyncsWait(t *testing.T) {
	t.Parallel()
	d := startDemo(t)
	path := v3 + "/sync?since=" + d.sync("demo-alice", "").NextBatch + longPoll
	answers := make(chan answer, maxWaiting+1)
	for range maxWaiting + 1 {
		go func() { answers <- <-d.start("GET", path, "demo-alice", "") }()
	}
	if got := <-answers; got.status != 429 || got.header.Get("Retry-After") != "1" || !strings.Contains(got.body, "M_LIMIT_EXCEEDED") {
		t.Errorf("got %d %s", got.status, got.body)
	}
	d.sync("demo-bob", "since="+d.sync("demo-bob", "").NextBatch+"&timeout=1") // of another user
	d.expect("PUT", rulesPath+"global/room/!r:x", "demo-alice", `{"actions":[]}`, 200, "{}")
	for range maxWaiting {
		woken(t, answers)
	}
}

type quiet struct{ module.SyncService }

func (quiet) Since(_ context.Context, _ mxid.UserID, since int64) (module.SyncUpdate, error) {
	return module.SyncUpdate{Token: since}, nil
}

type noUnread struct{ module.UnreadService }

func (noUnread) Retain(context.Context, mxid.UserID, ...string) error { return nil }

// The server's read and write timeouts do not end a sync.
func TestSyncWaitsLongerThanOtherRequestsMay(t *testing.T) {
	t.Parallel()
	db, waker := hosttest.OpenData(t), newWaker()
	users := sessions.New(db, "localhost", waker.wake)
	server := httptest.NewUnstartedServer(routerOf(&api{
		sessions: users, rooms: rooms.New(db), waker: waker, rules: quiet{}, unread: noUnread{}, log: zap.NewNop(),
	}))
	server.Config.ReadTimeout, server.Config.WriteTimeout = littleTime, littleTime
	server.Start()
	t.Cleanup(server.Close)
	for range 2 { // on one connection
		response, err := server.Client().Get(server.URL + v3 + "/sync?access_token=demo-alice&since=s7&timeout=" + fmt.Sprint(3*littleTime.Milliseconds()))
		if err != nil {
			t.Fatal(err)
		}
		var got batch
		if err := json.NewDecoder(response.Body).Decode(&got); err != nil || !strings.HasPrefix(got.NextBatch, "s7") {
			t.Errorf("got %+v, %v", got, err)
		}
		response.Body.Close()
	}
}
