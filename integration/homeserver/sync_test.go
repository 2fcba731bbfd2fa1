package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/pushfx/pushfx/handlers"
	"github.com/pushfx/pushfx/integration/homeserver/sessions"
	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/redistest"
)

const (
	// longPoll is a timeout that no test waits for.
	longPoll = "&timeout=30000"

	// settling is time for a request to wait on the server. A test that has
	// less is weaker, and passes all the same.
	settling = 50 * time.Millisecond

	// littleTime is enough for a request that does not wait.
	littleTime = 300 * time.Millisecond
)

// batch is what clients read of a sync.
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

// rules returns the push rules of a kind; delivered is false where there are
// none in the batch.
func (b batch) rules(kind string) (rules []rule, delivered bool) {
	for _, event := range b.AccountData.Events {
		if event.Type == "m.push_rules" {
			return event.Content.Global[kind], true
		}
	}
	return nil, false
}

// sync makes a sync, with a query, that must succeed.
func (d *demo) sync(token, query string) (b batch) {
	d.t.Helper()
	d.object("GET", v3+"/sync?"+query, token, "", &b)
	return b
}

// startSync starts a sync that waits.
func (d *demo) startSync(token, query string) <-chan answer {
	answers := make(chan answer, 1)
	go func() { answers <- d.try("GET", v3+"/sync?"+query, token, "") }()
	time.Sleep(settling)
	return answers
}

// try makes a request on any goroutine.
func (d *demo) try(method, path, token, body string) answer {
	request, err := http.NewRequest(method, d.url+path, strings.NewReader(body))
	if err != nil {
		return answer{body: err.Error()}
	}
	request.Header.Set("Authorization", "Bearer "+token)
	response, err := d.client.Do(request)
	if err != nil {
		return answer{body: err.Error()}
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		return answer{body: err.Error()}
	}
	return answer{response.StatusCode, response.Header, strings.TrimSpace(string(text))}
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

func TestSyncShape(t *testing.T) {
	t.Parallel()
	d := startDemo(t)
	const nothing = `"presence":{"events":[]},"rooms":{"join":{},"invite":{},"knock":{},"leave":{}},"to_device":{"events":[]},` +
		`"device_lists":{"changed":[],"left":[]},"device_one_time_keys_count":{}}`
	for _, prefix := range []string{v3, "/_matrix/client/r0"} {
		first := d.sync("demo-alice", "timeout=10000") // does not wait
		rules := d.do("GET", rulesPath, "demo-alice", "").body
		d.expect("GET", prefix+"/sync", "demo-alice", "", 200, fmt.Sprintf(
			`{"next_batch":%q,"account_data":{"events":[{"type":"m.push_rules","content":%s}]},%s`, first.NextBatch, rules, nothing))
		for _, query := range []string{"", "&timeout=0", "&timeout=50", "&full_state=false&set_presence=offline&_cacheBuster=1"} {
			d.expect("GET", prefix+"/sync?since="+first.NextBatch+query, "demo-alice", "", 200,
				fmt.Sprintf(`{"next_batch":%q,"account_data":{"events":[]},%s`, first.NextBatch, nothing))
		}
		if _, delivered := d.sync("demo-alice", "full_state=true&since="+first.NextBatch+longPoll).rules("room"); !delivered {
			t.Error("no rules in the full state")
		}
		if _, delivered := d.sync("demo-alice", "since=s0"+longPoll).rules("room"); !delivered {
			t.Error("no rules for a token from before there were rules")
		}
	}
}

func TestRefusedSyncs(t *testing.T) {
	t.Parallel()
	d := startDemo(t)
	for _, query := range []string{
		"since=1", "since=s", "since=s-1", "since=s01", "since=s%2B1", "since=sx", "since=s1_2", "since=s99999999999999999999",
		"timeout=x", "timeout=-1", "timeout=1.5", "full_state=1", "filter=nope",
	} {
		got := d.do("GET", v3+"/sync?"+query, "demo-alice", "")
		if got.status != 400 || !strings.Contains(got.body, "M_INVALID_PARAM") {
			t.Errorf("%s: got %d %s", query, got.status, got.body)
		}
	}
	for filter, errcode := range map[string]string{`{`: "M_NOT_JSON", `{"account_data":1}`: "M_BAD_JSON"} {
		got := d.do("GET", v3+"/sync?filter="+url.QueryEscape(filter), "demo-alice", "")
		if got.status != 400 || !strings.Contains(got.body, errcode) {
			t.Errorf("%s: got %d %s", filter, got.status, got.body)
		}
	}
	d.expect("POST", v3+"/sync", "demo-alice", "{}", 405, `{"errcode":"M_UNRECOGNIZED","error":"Method not allowed."}`)
}

// change is a request that changes rules.
type change struct{ method, path, body string }

// changes are changes of every kind, in an order that makes sense.
func changes() []change {
	const room = rulesPath + "global/room/!r:x"
	return []change{
		{"PUT", room, `{"actions":["notify"]}`},
		{"PUT", room + "/enabled", `{"enabled":false}`},
		{"PUT", room + "/enabled", `{"enabled":true}`},
		{"PUT", room + "/actions", `{"actions":[]}`},
		{"PUT", rulesPath + "global/override/.m.rule.master/enabled", `{"enabled":true}`},
		{"PUT", rulesPath + "global/content/a", `{"pattern":"a","actions":[]}`},
		{"POST", v3 + "/rooms/!r:x/upgrade", `{"new_version":"12"}`},
		{"DELETE", room, ""},
	}
}

func TestEveryChangeWakesSyncs(t *testing.T) {
	t.Parallel()
	d := startDemo(t)
	token := d.login("alice", "demo", "").AccessToken
	next := d.sync(token, "").NextBatch
	for _, change := range changes() {
		mine, others := d.startSync(token, "since="+next+longPoll), d.startSync("demo-alice/TABLET", "since="+next+longPoll)
		strangers := d.startSync("demo-bob", "since="+d.sync("demo-bob", "").NextBatch+"&timeout=1")
		d.expect(change.method, change.path, token, change.body, 200, "")
		first, second := woken(t, mine), woken(t, others)
		if first.NextBatch == next || first.NextBatch != second.NextBatch {
			t.Errorf("%+v: from %s to %s and %s", change, next, first.NextBatch, second.NextBatch)
		}
		if got := <-strangers; got.status != 200 || strings.Contains(got.body, "m.push_rules") {
			t.Errorf("somebody else's sync: %d %s", got.status, got.body)
		}
		next = first.NextBatch
	}
}

// TestSyncAcrossInstances: what one host changes wakes the syncs of another.
func TestSyncAcrossInstances(t *testing.T) {
	t.Parallel()
	flags := []string{"-redis-mode", "standalone", "-redis", redistest.Single(t).Addr()}
	here, there := startDemo(t, flags...), startDemo(t, flags...)
	token := here.login("alice", "demo", "").AccessToken
	next := there.sync(token, "").NextBatch
	for i := range 20 {
		waiting := there.startSync(token, "since="+next+longPoll)
		id := fmt.Sprintf("!%d:x", i)
		here.expect("PUT", rulesPath+"global/room/"+id, token, `{"actions":[]}`, 200, "{}")
		got := woken(t, waiting)
		if rules, _ := got.rules("room"); len(rules) == 0 || rules[0].ID != id {
			t.Fatalf("got %+v, want %s first", rules, id)
		}
		next = got.NextBatch
	}
	waiting := there.startSync(token, "since="+next+"&timeout=1000")
	here.expect("POST", v3+"/logout", token, "", 200, "{}")
	if got := <-waiting; got.status != 401 || got.body != unknownToken {
		t.Errorf("after the logout: %d %s", got.status, got.body)
	}
	there.expect("GET", v3+"/sync", token, "", 401, unknownToken)
}

// TestNoWakeUpIsLost: each of many changes reaches a sync that may or may not
// wait already.
func TestNoWakeUpIsLost(t *testing.T) {
	t.Parallel()
	d := startDemo(t)
	next := d.sync("demo-alice", "").NextBatch
	for i := range 200 {
		id := fmt.Sprintf("!%d:x", i)
		answers := make(chan answer, 1)
		go func() { answers <- d.try("GET", v3+"/sync?since="+next+longPoll, "demo-alice", "") }()
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
	d.expect("GET", v3+"/sync?filter="+stored.FilterID, "demo-bob", "", 400, "")
	for room, name := range map[string]string{"!a:x": stored.FilterID, "!b:x": url.QueryEscape(excluding)} {
		first := d.sync("demo-alice", "filter="+name+longPoll)
		if _, delivered := first.rules("room"); delivered {
			t.Error("the first sync delivers what is excluded")
		}
		began := time.Now()
		waiting := d.startSync("demo-alice", "filter="+name+"&since="+first.NextBatch+"&timeout=500")
		d.expect("PUT", rulesPath+"global/room/"+room, "demo-alice", `{"actions":[]}`, 200, "{}")
		var second batch
		if got := <-waiting; json.Unmarshal([]byte(got.body), &second) != nil || got.status != 200 {
			t.Fatalf("got %d %s", got.status, got.body)
		}
		if took := time.Since(began); took < 500*time.Millisecond {
			t.Errorf("woken after %v by what is excluded", took)
		}
		if _, delivered := second.rules("room"); delivered || second.NextBatch == first.NextBatch {
			t.Errorf("got %+v after %s", second, first.NextBatch)
		}
		if _, delivered := d.sync("demo-alice", "since="+second.NextBatch).rules("room"); delivered {
			t.Error("the change is delivered later")
		}
	}
	if _, delivered := d.sync("demo-alice", "filter="+url.QueryEscape(`{"account_data":{"types":["m.*"]}}`)).rules("room"); !delivered {
		t.Error("a filter that allows them keeps the rules back")
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

func TestStopEndsWaitingSyncs(t *testing.T) {
	t.Parallel()
	d := startDemo(t)
	first := d.sync("demo-alice", "")
	var waiting []<-chan answer
	for range 10 {
		waiting = append(waiting, d.startSync("demo-alice", "since="+first.NextBatch+longPoll))
	}
	began := time.Now()
	if status := d.stop(); status != exitOK {
		t.Errorf("status %d: %s", status, d.stderr)
	}
	took := time.Since(began)
	t.Logf("the stop took %v", took)
	if took >= graceLimit {
		t.Error("the stop waited for syncs")
	}
	for _, answers := range waiting {
		if got := <-answers; got.status != 200 || !strings.HasPrefix(got.body, `{"next_batch":"`+first.NextBatch+`"`) {
			t.Errorf("got %d %s", got.status, got.body)
		}
	}
}

func TestTooManySyncsWait(t *testing.T) {
	t.Parallel()
	d := startDemo(t)
	query := "since=" + d.sync("demo-alice", "").NextBatch + longPoll
	answers := make(chan answer, maxWaiting+1)
	for range maxWaiting + 1 {
		go func() { answers <- d.try("GET", v3+"/sync?"+query, "demo-alice", "") }()
	}
	got := <-answers
	if got.status != 429 || got.header.Get("Retry-After") != "1" ||
		got.body != `{"errcode":"M_LIMIT_EXCEEDED","error":"Too many syncs of this user are waiting."}` {
		t.Errorf("got %d %s", got.status, got.body)
	}
	d.sync("demo-bob", "since="+d.sync("demo-bob", "").NextBatch+"&timeout=1") // somebody else's
	d.expect("PUT", rulesPath+"global/room/!r:x", "demo-alice", `{"actions":[]}`, 200, "{}")
	for range maxWaiting {
		woken(t, answers)
	}
}

// quiet is a service of rules that never change.
type quiet struct{ module.SyncService }

func (quiet) Since(_ context.Context, _ mxid.UserID, since int64) (module.SyncUpdate, error) {
	return module.SyncUpdate{Token: since}, nil
}

// startQuiet serves syncs that find nothing, with little time to read and
// write.
func startQuiet(t *testing.T) (*syncs, *httptest.Server, *observer.ObservedLogs) {
	t.Helper()
	store, waker := startStore(t), newWaker()
	users := sessions.New(store, "localhost", waker.wake)
	core, logs := observer.New(zap.DebugLevel)
	s := newSyncs(quiet{}, users, newFilters(store), waker, zap.New(core))
	router := routerOf([]handlers.RouteGroup{s}, users, zap.New(core))
	server := httptest.NewUnstartedServer(router)
	server.Config.ReadTimeout, server.Config.WriteTimeout = littleTime, littleTime
	server.Start()
	t.Cleanup(server.Close)
	return s, server, logs
}

// TestSyncWaitsLongerThanOtherRequestsMay: the server's limits on reading and
// writing end no sync.
func TestSyncWaitsLongerThanOtherRequestsMay(t *testing.T) {
	t.Parallel()
	_, server, _ := startQuiet(t)
	for range 2 { // on one connection
		response, err := server.Client().Get(server.URL + v3 + "/sync?access_token=demo-alice&since=s7&timeout=" + fmt.Sprint(3*littleTime.Milliseconds()))
		if err != nil {
			t.Fatal(err)
		}
		var got batch
		if err := json.NewDecoder(response.Body).Decode(&got); err != nil || got.NextBatch != "s7" {
			t.Errorf("got %+v, %v", got, err)
		}
		response.Body.Close()
	}
}

func TestClientsThatGoAwayDoNotWait(t *testing.T) {
	t.Parallel()
	s, server, logs := startQuiet(t)
	ctx, cancel := context.WithCancel(t.Context())
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, server.URL+v3+"/sync?access_token=demo-alice&since=s7&timeout=30000", nil)
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() {
		_, err := server.Client().Do(request)
		ended <- err
	}()
	count := func() int {
		s.waker.mu.Lock()
		defer s.waker.mu.Unlock()
		return len(s.waker.waiting)
	}
	poll(t, "the sync waits", func() bool { return count() == 1 })
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	poll(t, "the sync has ended", func() bool { return count() == 0 && logs.Len() > 0 })
	for _, entry := range logs.All() {
		if entry.Level != zap.DebugLevel || entry.ContextMap()["status"] != int64(statusGone) {
			t.Errorf("logged %v %v", entry, entry.ContextMap())
		}
	}
}

func TestTimeouts(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]time.Duration{
		"": 0, "0": 0, "1": time.Millisecond, "30000": 30 * time.Second, "30001": 30 * time.Second,
		"9223372036854775807": 30 * time.Second,
	} {
		if got, err := parseTimeout(text); got != want || err != nil {
			t.Errorf("%q: got %v, %v", text, got, err)
		}
	}
}
