package api

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/alicebob/miniredis/v2"
	"go.uber.org/fx"

	"github.com/pushfx/pushfx/integration/hosttest"
	"github.com/pushfx/pushfx/module/feed"
)

type apiService struct {
	host  *hosttest.Host
	redis *miniredis.Miniredis
}

// newService starts a service. Remaining log entries fail the test, since a host logs neither successful requests
// nor clients' errors, but only pushers that their users lose. A test that expects entries takes them.
func newService(t *testing.T, options ...fx.Option) *apiService {
	t.Helper()
	redis, client := hosttest.Embedded(t)
	var changes *feed.Feed
	s := &apiService{hosttest.StartHost(t, client, append(options, fx.Populate(&changes))...), redis}
	hosttest.Eventually(t, "the host watches", func() bool { return changes.Stats().Watching }) // an error of Redis before would be logged
	t.Cleanup(func() {
		for _, entry := range s.host.Logs.All() {
			if !strings.HasPrefix(entry.Message, "pusher removed") {
				t.Errorf("logged: %s %v", entry.Message, entry.ContextMap())
			}
		}
	})
	return s
}

// caller is a user of a service whose requests all have one prefix.
type caller struct {
	t      *testing.T
	on     *apiService
	prefix string
	user   string
	exact  bool // the path is sent byte for byte
}

func (s *apiService) caller(t *testing.T, prefix string) *caller {
	return &caller{t: t, on: s, prefix: prefix, user: hosttest.NewUser()}
}

// owner returns a new user with a rule set.
func (s *apiService) owner(t *testing.T, prefix string) *caller {
	t.Helper()
	c := s.caller(t, prefix)
	if a := c.send("GET /pushrules/", ""); a.Status != 200 {
		t.Fatalf("first read of the rules: %s", a)
	}
	return c
}

// send sends a request like "GET /pushrules/", with a path below the prefix.
func (c *caller) send(request, body string) hosttest.Answer {
	c.t.Helper()
	if c.exact {
		return c.sendExact(request, body)
	}
	method, path, _ := strings.Cut(request, " ")
	a, err := c.on.host.Try(context.Background(), c.user, method, c.prefix+path, body)
	if err != nil {
		c.t.Fatalf("%s: %v", request, err)
	}
	return a
}

type step struct {
	request string // "PUT /pushrules/global/room/!a:x", the path below the prefix
	body    string
	want    string // "200 {}": the status and the whole body, or its beginning and …
}

// take sends the request and compares the answer. A refused request must leave the stored data unchanged.
func (c *caller) take(s step) {
	c.t.Helper()
	before := c.stored()
	got := c.send(s.request, s.body)
	if begins, open := strings.CutSuffix(s.want, `…"}`); got.String() != s.want && !(open && strings.HasPrefix(got.String(), begins)) {
		c.t.Errorf("%.200s %.200q\n got %s\nwant %s", s.request, s.body, got, s.want)
	}
	if kind := got.Header.Get("Content-Type"); kind != "application/json" {
		c.t.Errorf("%.200s: Content-Type %q", s.request, kind)
	}
	if after := c.stored(); got.Status != 200 && after != before {
		c.t.Errorf("%s was refused and changed the stored data\nfrom %s\n  to %s", s.request, before, after)
	}
}

func (c *caller) takeAll(steps ...step) {
	c.t.Helper()
	for _, s := range steps {
		c.take(s)
	}
}

// change sends requests that must succeed, "PUT /path body" each.
func (c *caller) change(requests ...string) {
	c.t.Helper()
	for _, request := range requests {
		method, rest, _ := strings.Cut(request, " ")
		path, body, _ := strings.Cut(rest, " ")
		c.take(step{method + " " + path, body, hosttest.Done})
	}
}

// event returns the user's stored push rules event without its revision, or "".
func (c *caller) event() string {
	text, _ := c.on.redis.Get(hosttest.EventKey(c.user))
	text, _ = hosttest.WithoutRevision(text)
	return text
}

// plant stores text as the user's push rules event.
func (c *caller) plant(text string) {
	c.t.Helper()
	if err := c.on.redis.Set(hosttest.EventKey(c.user), text); err != nil {
		c.t.Fatal(err)
	}
}

func (c *caller) ruleset() string {
	c.t.Helper()
	text, found := strings.CutPrefix(c.event(), `{"type":"m.push_rules","content":{"global":`)
	if !found {
		c.t.Fatalf("no stored rule set: %q", c.event())
	}
	return strings.TrimSuffix(text, "}}")
}

// stored returns all stored data of the user, without revisions.
func (c *caller) stored() string {
	key := hosttest.PushersKey(c.user)
	var b strings.Builder
	b.WriteString(c.event())
	fields, _ := c.on.redis.HKeys(key)
	for _, field := range fields {
		if field == "revision" {
			continue
		}
		fmt.Fprintf(&b, "\n%s %s", field, c.on.redis.HGet(key, field))
	}
	return b.String()
}

func (c *caller) ids(kind string) string {
	c.t.Helper()
	var body struct {
		Global map[string][]struct {
			ID string `json:"rule_id"`
		}
	}
	text := c.send("GET /pushrules/", "").Body
	if err := json.Unmarshal([]byte(text), &body); err != nil {
		c.t.Fatalf("%v in %s", err, text)
	}
	var ids []string
	for _, rule := range body.Global[kind] {
		if !strings.HasPrefix(rule.ID, ".") {
			ids = append(ids, rule.ID)
		}
	}
	return strings.Join(ids, " ")
}

func (c *caller) rule(json string) string {
	if c.prefix == hosttest.R0 {
		return `200 {"rule":` + json + `}`
	}
	return `200 ` + json
}

func onBothPrefixes(t *testing.T, test func(t *testing.T, prefix string)) {
	t.Helper()
	for _, prefix := range []string{hosttest.R0, hosttest.V3} {
		t.Run(prefix[len(prefix)-2:], func(t *testing.T) { test(t, prefix) })
	}
}

// ruleEndpoints are the nine push rule endpoints, in the document's order, for the override rule "mine".
var ruleEndpoints = []struct{ request, body string }{
	{"GET /pushrules/", ""},
	{"GET /pushrules/global/", ""},
	{"GET /pushrules/global/override/mine", ""},
	{"PUT /pushrules/global/override/mine", `{"rule":{"actions":[]}}`},
	{"GET /pushrules/global/override/mine/actions", ""},
	{"PUT /pushrules/global/override/mine/actions", `{"actions":[]}`},
	{"GET /pushrules/global/override/mine/enabled", ""},
	{"PUT /pushrules/global/override/mine/enabled", `{"enabled":true}`},
	{"DELETE /pushrules/global/override/mine", ""},
}
