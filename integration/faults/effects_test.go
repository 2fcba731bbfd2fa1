package faults

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"go.uber.org/fx"

	"github.com/pushfx/pushfx"
	"github.com/pushfx/pushfx/integration/hosttest"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/redistest"
)

// mutation is a request that changes a user's stored data.
type mutation struct {
	name    string
	planted string   // the event at the start, or empty
	earlier []string // earlier requests, "PUT /path body" each
	request string   // the mutation
	other   string   // another change of the same user
}

func (m mutation) hasListeners() bool { return strings.Contains(m.request, "/pushrules/") }

var mutations = func() []mutation {
	const (
		room      = "PUT /pushrules/global/room/"
		otherRule = `PUT /pushrules/global/sender/@other:example.org {"actions":["notify"]}`
		legacy    = `{"type":"m.push_rules","content":{"global":{"override":[` +
			`{"rule_id":".m.rule.roomnotif","default":true,"enabled":true,"actions":["notify"]}]}}}`
	)
	set := "POST /pushers/set "
	otherPusher := set + hosttest.HTTPPusher("other", "key of "+hosttest.Alice)
	threeRules := []string{"GET /pushrules/", room + `a {"actions":[]}`, room + `b {"actions":[]}`, room + `c {"actions":[]}`}
	twoPushers := []string{set + hosttest.HTTPPusher("app", "a of "+hosttest.Alice), set + hosttest.HTTPPusher("app", "b of "+hosttest.Alice)}
	return []mutation{
		{"new rule", "", threeRules, room + `new {"actions":["notify"]}`, otherRule},
		{"moved rule", "", threeRules, room + `c?after=a {"actions":["notify"]}`, otherRule},
		{"rule disabled", "", threeRules, room + `b/enabled {"enabled":false}`, otherRule},
		{"actions of a rule", "", threeRules, room + `b/actions {"actions":["notify"]}`, otherRule},
		{"deleted rule", "", threeRules, "DELETE /pushrules/global/room/b", otherRule},
		{"first read", "", nil, "GET /pushrules/", otherRule},
		{"read with a repair", legacy, nil, "GET /pushrules/", otherRule},
		{"new pusher", "", twoPushers, set + hosttest.HTTPPusher("app", "new of "+hosttest.Alice), otherPusher},
		{"changed pusher", "", twoPushers, set + strings.Replace(hosttest.HTTPPusher("app", "a of "+hosttest.Alice), "Phone", "Watch", 1), otherPusher},
		{"larger pusher", "", twoPushers, set + strings.Replace(hosttest.HTTPPusher("app", "a of "+hosttest.Alice), "Phone", "Tablet", 1), otherPusher},
		{"deleted pusher", "", twoPushers, set + `{"kind":null,"app_id":"app","pushkey":"a of ` + hosttest.Alice + `"}`, otherPusher},
	}
}()

func (m mutation) prepare(t *testing.T, h *hosttest.Host, client redis.UniversalClient, user string) {
	t.Helper()
	if m.planted != "" {
		if err := client.Set(t.Context(), hosttest.EventKey(user), m.planted, 0).Err(); err != nil {
			t.Fatal(err)
		}
	}
	for _, request := range m.earlier {
		if a := h.Ask(t, user, request); a.Status != http.StatusOK {
			t.Fatalf("%s: %s", request, a)
		}
	}
}

var numbers = regexp.MustCompile(`"(created|number|removes|set_at)":\d+`)

// ofAlice replaces the user by alice and removes times.
func ofAlice(user, text string) string {
	return numbers.ReplaceAllString(strings.ReplaceAll(text, user, hosttest.Alice), `"$1":0`)
}

// trace is the stored data of a user, written as alice's.
type trace struct {
	data    string // the event and the pushers, without their revisions
	changes int64  // of both
}

func traceOf(t *testing.T, client redis.UniversalClient, user string) trace {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), hosttest.Never)
	defer cancel()
	event, err := client.Get(ctx, hosttest.EventKey(user)).Result()
	if err != nil && err != redis.Nil {
		t.Errorf("cannot read the stored data: %v", err)
	}
	fields, err := client.HGetAll(ctx, hosttest.PushersKey(user)).Result()
	if err != nil {
		t.Errorf("cannot read the stored data: %v", err)
	}
	event, revision := hosttest.WithoutRevision(event)
	changes := revision.Changes + hosttest.WithoutRevisionFields(fields).Changes
	lines := append(slices.Sorted(maps.Values(fields)), event)
	return trace{ofAlice(user, strings.Join(lines, "\n")), changes}
}

type faultless struct {
	answer         string
	before, after  trace
	thenOther      trace // with the other change after the mutation
	otherFirst     trace // with the other change before the mutation
	otherIsRefused bool  // when it comes before the mutation
}

// undisturbed records the effect of every mutation without faults, on an embedded Redis.
var undisturbed = func() func(t *testing.T) []faultless {
	var courses []faultless
	var once sync.Once
	return func(t *testing.T) []faultless {
		once.Do(func() {
			_, client := hosttest.Embedded(t)
			h := hosttest.StartHost(t, client)
			for _, m := range mutations {
				courses = append(courses, m.faultless(t, h, client))
			}
		})
		return courses
	}
}()

func (m mutation) faultless(t *testing.T, h *hosttest.Host, client redis.UniversalClient) faultless {
	t.Helper()
	var c faultless
	user := hosttest.NewUser()
	m.prepare(t, h, client, user)
	c.before = traceOf(t, client, user)
	c.answer = ofAlice(user, h.Ask(t, user, m.request).String())
	c.after = traceOf(t, client, user)
	h.Ask(t, user, m.other)
	c.thenOther = traceOf(t, client, user)
	if !strings.HasPrefix(c.answer, "200 ") || c.after.data == c.before.data || c.after.changes != c.before.changes+1 {
		t.Fatalf("%s is no mutation: %s", m.name, c.answer)
	}
	user = hosttest.NewUser()
	m.prepare(t, h, client, user)
	c.otherIsRefused = h.Ask(t, user, m.other).Status != http.StatusOK
	h.Ask(t, user, m.request)
	c.otherFirst = traceOf(t, client, user)
	return c
}

// mutationServer is a server with a host that has a direct connection.
type mutationServer struct {
	server *redistest.Server
	client redis.UniversalClient
	host   *hosttest.Host
}

func newMutationServer(t *testing.T) *mutationServer {
	t.Helper()
	redistest.Require(t)
	server := redistest.Single(t)
	client := server.Client(t)
	s := &mutationServer{server, client, hosttest.StartHost(t, client)}
	user := hosttest.NewUser()
	s.host.Ask(t, user, "GET /pushrules/")
	s.host.Ask(t, user, "POST /pushers/set "+hosttest.HTTPPusher("app", "key"))
	return s
}

type setting struct {
	retries          int // as in redis.Options
	readTimeout      time.Duration
	operationTimeout time.Duration
}

func (s setting) String() string {
	if s.retries < 0 {
		return "client that does not retry"
	}
	return "client that retries"
}

// eachClient returns settings in which the client or the store repeats commands.
func eachClient(readTimeout, operationTimeout time.Duration) []setting {
	return []setting{{0, readTimeout, operationTimeout}, {-1, readTimeout, operationTimeout}}
}

// mutationTest is a mutation of a user, sent by a host behind a proxy.
type mutationTest struct {
	mutation
	faultless
	t              *testing.T
	mutationServer *mutationServer
	user           string
	proxy          *redistest.Proxy
	host           *hosttest.Host
	received       chan string
}

func (s *mutationServer) newScene(t *testing.T, n int, with setting) *mutationTest {
	t.Helper()
	proxy := redistest.NewProxy(t, s.server)
	client := proxy.Client(t, func(o *redis.Options) { o.MaxRetries, o.ReadTimeout = with.retries, with.readTimeout })
	var start patientStart
	client.AddHook(&start)
	received, user := make(chan string, 10), hosttest.NewUser()
	h := hosttest.StartHost(t, client,
		fx.Decorate(func(c pushfx.Config) pushfx.Config {
			hosttest.SetTimeouts(&c, with.operationTimeout)
			return c
		}),
		fx.Provide(pushfx.AsChangeListener(func() versionRecorder { return versionRecorder{hosttest.Recorder(received), s.client, user} })),
	)
	start.isOver.Store(true)
	c := &mutationTest{mutations[n], undisturbed(t)[n], t, s, user, proxy, h, received}
	c.prepare(t, s.host, s.client, c.user)
	return c
}

// patientStart repeats commands that a busy server answers too late, until the host has started.
type patientStart struct{ isOver atomic.Bool }

func (p *patientStart) DialHook(next redis.DialHook) redis.DialHook { return next }

func (p *patientStart) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		return p.repeat(ctx, func() error { return next(ctx, cmd) })
	}
}

func (p *patientStart) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		return p.repeat(ctx, func() error { return next(ctx, cmds) })
	}
}

func (p *patientStart) repeat(ctx context.Context, do func() error) error {
	for {
		err := do()
		var late net.Error
		if p.isOver.Load() || ctx.Err() != nil || !errors.As(err, &late) || !late.Timeout() {
			return err
		}
	}
}

// versionRecorder sends the version that is stored when its listener is called.
type versionRecorder struct {
	hosttest.Recorder
	client redis.UniversalClient
	user   string
}

func (r versionRecorder) PushRulesChanged(ctx context.Context, user mxid.UserID) {
	if string(user) == r.user {
		r.PushRulesMissed(ctx)
	}
}

func (r versionRecorder) PushRulesMissed(ctx context.Context) {
	r.Send(ctx, versionText(r.client.Get(ctx, hosttest.EventKey(r.user)).Val()))
}

func versionText(event string) string {
	_, revision := hosttest.WithoutRevision(event)
	return fmt.Sprint(revision.Version)
}

// playMutations plays the mutations of a turn.
func (s *mutationServer) playMutations(t *testing.T, with setting, turn, turns int, play func(*mutationTest)) {
	t.Helper()
	var scenes []*mutationTest
	for n := range mutations {
		if isPlayed(n, turn, turns) {
			scenes = append(scenes, s.newScene(t, n, with))
		}
	}
	var group sync.WaitGroup
	for _, c := range scenes {
		group.Go(func() { play(c) })
	}
	group.Wait()
}

func (c *mutationTest) errorf(format string, args ...any) {
	c.t.Helper()
	c.t.Errorf(c.name+": "+format, args...)
}

func (c *mutationTest) begin() <-chan hosttest.Answer {
	got := make(chan hosttest.Answer, 1)
	go func() { got <- c.host.Ask(c.t, c.user, c.request) }()
	return got
}

func (c *mutationTest) wantFault(f *redistest.Fault) {
	c.t.Helper()
	select {
	case <-f.Struck():
	case <-time.After(hosttest.Never):
		c.errorf("the fault has not struck")
	}
}

// wantSuccess compares the answer with the answer without faults, and waits until the listeners have received the
// stored state or a later one.
func (c *mutationTest) wantSuccess(got hosttest.Answer, state trace, later ...trace) {
	c.t.Helper()
	if text := ofAlice(c.user, got.String()); got.Status != http.StatusOK || state == c.after && text != c.answer {
		c.errorf("got %s, want %s", text, c.answer)
	}
	if !c.hasListeners() {
		return
	}
	last := ""
	for {
		select {
		case last = <-c.received:
		case <-time.After(hosttest.Never):
			c.errorf("listeners received last of %q, stored was\n%s", last, state.data)
			return
		}
		if last == versionText(c.mutationServer.client.Get(c.t.Context(), hosttest.EventKey(c.user)).Val()) && slices.Contains(append(later, state), traceOf(c.t, c.mutationServer.client, c.user)) {
			return
		}
	}
}

func (c *mutationTest) wantStored(want trace) {
	c.t.Helper()
	if got := traceOf(c.t, c.mutationServer.client, c.user); got != want {
		c.errorf("stored is\n%+v\nwant\n%+v", got, want)
	}
}

var (
	writing = []string{"EVALSHA", "EVAL"}
	either  = append([]string{"GET", "HGETALL", "HMGET"}, writing...)
)

// lostMessage is a way to lose requests or replies.
type lostMessage struct {
	name        string
	readTimeout time.Duration
	plan        func(p *redistest.Proxy) []*redistest.Fault // each must occur
	other       order                                       // of another host's change, which is made after the first fault
}

type order int

const (
	noOther order = iota
	otherNext
	otherFirst
)

var losses = []lostMessage{
	{name: "reply lost", readTimeout: hosttest.Never, plan: func(p *redistest.Proxy) []*redistest.Fault {
		return []*redistest.Fault{p.CutReply(1, writing...)}
	}},
	{name: "two replies lost in a row", readTimeout: hosttest.Never, plan: func(p *redistest.Proxy) []*redistest.Fault {
		first := p.CutReply(1, writing...)
		return []*redistest.Fault{first, p.CutReply(1, either...).After(first)}
	}},
	{name: "reply late", readTimeout: hosttest.Soon, plan: lateReply},
	{name: "two replies late in a row", readTimeout: hosttest.Soon, plan: func(p *redistest.Proxy) []*redistest.Fault {
		first := p.StallReply(1, writing...)
		return []*redistest.Fault{first, p.StallReply(1, either...).After(first)}
	}},
	{name: "reply late and then one lost", readTimeout: hosttest.Soon, plan: func(p *redistest.Proxy) []*redistest.Fault {
		first := p.StallReply(1, writing...)
		return []*redistest.Fault{first, p.CutReply(1, either...).After(first)}
	}},
	{name: "request lost", readTimeout: hosttest.Never, plan: func(p *redistest.Proxy) []*redistest.Fault {
		return []*redistest.Fault{p.CutRequest(1, writing...)}
	}},
	{name: "two requests lost in a row", readTimeout: hosttest.Never, plan: func(p *redistest.Proxy) []*redistest.Fault {
		return []*redistest.Fault{p.CutRequest(1, writing...), p.CutRequest(2, writing...)}
	}},
	{name: "request lost and then a reply", readTimeout: hosttest.Never, plan: func(p *redistest.Proxy) []*redistest.Fault {
		return []*redistest.Fault{p.CutRequest(1, writing...), p.CutReply(1, writing...)}
	}},
	{name: "request arrives after its repetition", readTimeout: hosttest.Soon, plan: lateRequest},
	{name: "reply late, another change comes next", readTimeout: hosttest.Soon, plan: lateReply, other: otherNext},
	{name: "request late, another change comes first", readTimeout: 2 * hosttest.Soon, plan: lateRequest, other: otherFirst},
}

func lateReply(p *redistest.Proxy) []*redistest.Fault {
	return []*redistest.Fault{p.StallReply(1, writing...)}
}

func lateRequest(p *redistest.Proxy) []*redistest.Fault {
	return []*redistest.Fault{p.HoldRequest(1, writing...)}
}

// Each loss has a third of the mutations with each client.
func TestEffectOnceWithLostMessages(t *testing.T) {
	t.Parallel()
	mutationServer := newMutationServer(t)
	for n, m := range losses {
		for i, with := range eachClient(m.readTimeout, hosttest.Never) {
			t.Run(m.name+"/"+with.String(), func(t *testing.T) {
				t.Parallel()
				mutationServer.playMutations(t, with, n+i, 2, func(c *mutationTest) { c.wantOnce(m) })
			})
		}
	}
}

// wantOnce wants an effect once, and beside it that of another host's change.
func (c *mutationTest) wantOnce(m lostMessage) {
	answered, want := c.after, c.after
	switch {
	case m.other == otherNext:
		want = c.thenOther
	case m.other == otherFirst && c.otherIsRefused:
		return
	case m.other == otherFirst:
		answered, want = c.otherFirst, c.otherFirst
	}
	faults := m.plan(c.proxy)
	got := c.begin()
	if m.other != noOther {
		c.wantFault(faults[0])
		if a := c.mutationServer.host.Ask(c.t, c.user, c.other); a.Status != http.StatusOK {
			c.errorf("the other change: %s", a)
		}
	}
	c.wantSuccess(<-got, answered, want)
	c.wantStored(want)
	for _, f := range faults {
		c.wantFault(f)
		f.Release()
	}
	c.wantStored(want)
}

func (s *mutationServer) deletion(t *testing.T, with setting) *mutationTest {
	t.Helper()
	n := slices.IndexFunc(mutations, func(m mutation) bool { return strings.HasPrefix(m.request, http.MethodDelete) })
	return s.newScene(t, n, with)
}

// The host refused the deletion; then another host restored the value that the deletion had read.
func TestARefusedDeleteHasNoEffectLater(t *testing.T) {
	t.Parallel()
	mutationServer := newMutationServer(t)
	for _, with := range eachClient(2*hosttest.Soon, hosttest.Never) {
		t.Run(with.String(), func(t *testing.T) {
			t.Parallel()
			c := mutationServer.deletion(t, with)
			fault := c.proxy.HoldRequest(1, writing...)
			got := c.begin()
			c.wantFault(fault)
			mutationServer.host.Ask(t, c.user, c.request)
			if a := <-got; a.Status != http.StatusNotFound {
				t.Errorf("got %s", a)
			}
			again := `PUT /pushrules/global/room/b?after=c {"actions":[]}`
			mutationServer.host.Ask(t, c.user, again)
			remade := traceOf(t, mutationServer.client, c.user)
			if remade.data != c.before.data {
				t.Fatalf("stored is not as it was:\n%+v\n%+v", remade, c.before)
			}
			fault.Release()
			c.wantStored(remade)
		})
	}
}

// silences are losses without end.
var silences = []lostMessage{
	{name: "every reply late", plan: func(p *redistest.Proxy) []*redistest.Fault {
		return []*redistest.Fault{p.StallReplies(1)}
	}},
	{name: "every reply late from the first write on", plan: func(p *redistest.Proxy) []*redistest.Fault {
		first := p.StallReply(1, writing...)
		return []*redistest.Fault{first, p.StallReplies(1).After(first)}
	}},
	{name: "every write late", plan: func(p *redistest.Proxy) []*redistest.Fault {
		var faults []*redistest.Fault
		for n := range 20 {
			faults = append(faults, p.HoldRequest(n+1, writing...))
		}
		return faults
	}},
}

// Each silence has half of the mutations with each client.
func TestAnUnknownOutcomeGives503InTimeAndAtMostOneEffect(t *testing.T) {
	t.Parallel()
	const limit = time.Second
	mutationServer := newMutationServer(t)
	for n, m := range silences {
		for i, with := range append(eachClient(hosttest.Soon, limit), setting{0, hosttest.Never, limit}) {
			t.Run(fmt.Sprintf("%s/%s for %v", m.name, with, with.readTimeout), func(t *testing.T) {
				t.Parallel()
				mutationServer.playMutations(t, with, n+i, 2, func(c *mutationTest) { c.trySilence(m, limit) })
			})
		}
	}
}

// trySilence sends the mutation, gets no answer in time, and later releases the held command.
func (c *mutationTest) trySilence(m lostMessage, limit time.Duration) {
	faults := m.plan(c.proxy)
	began := time.Now()
	a := <-c.begin()
	if took := time.Since(began); a.Status != http.StatusServiceUnavailable || took > limit+hosttest.Slack {
		c.errorf("got %s after %v", a, took)
	}
	c.wantAtMostOnce()
	for _, f := range faults {
		f.Release()
	}
	c.wantAtMostOnce()
}

func (c *mutationTest) wantAtMostOnce() {
	c.t.Helper()
	if got := traceOf(c.t, c.mutationServer.client, c.user); got != c.before && got != c.after {
		c.errorf("stored is\n%+v\nwant\n%+v\nor\n%+v", got, c.before, c.after)
	}
}
