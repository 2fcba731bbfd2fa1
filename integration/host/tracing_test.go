package host

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	oteltrace "go.opentelemetry.io/otel/trace"
	otelembedded "go.opentelemetry.io/otel/trace/embedded"
	"go.opentelemetry.io/otel/trace/noop"
	"go.uber.org/fx"

	"github.com/pushfx/pushfx"
	"github.com/pushfx/pushfx/integration/hosttest"
	"github.com/pushfx/pushfx/module/pusher"
	"github.com/pushfx/pushfx/module/redistest"
)

type tracer struct {
	otelembedded.TracerProvider

	flags oteltrace.TraceFlags
	mu    sync.Mutex
	spans []*span
}

func (r *tracer) Tracer(string, ...oteltrace.TracerOption) oteltrace.Tracer {
	return starter{tracer: r}
}

type starter struct {
	otelembedded.Tracer
	tracer *tracer
}

func (r starter) Start(ctx context.Context, name string, options ...oteltrace.SpanStartOption) (context.Context, oteltrace.Span) {
	parent, _ := oteltrace.SpanFromContext(ctx).(*span)
	cfg := oteltrace.NewSpanStartConfig(options...)
	s := &span{tracer: r.tracer, name: name, kind: cfg.SpanKind(), parent: parent, attributes: cfg.Attributes(), links: cfg.Links()}
	r.tracer.mu.Lock()
	defer r.tracer.mu.Unlock()
	r.tracer.spans = append(r.tracer.spans, s)
	s.id = oteltrace.NewSpanContext(oteltrace.SpanContextConfig{
		TraceID: oteltrace.TraceID{1}, SpanID: oteltrace.SpanID{7: byte(len(r.tracer.spans))}, TraceFlags: r.tracer.flags,
	})
	return oteltrace.ContextWithSpan(ctx, s), s
}

// take returns the spans of requests since the last call, after all have ended. Background spans have no parent.
func (r *tracer) take(t *testing.T) (spans []*span) {
	t.Helper()
	hosttest.Eventually(t, "all spans have ended", func() bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		return !slices.ContainsFunc(r.spans, func(s *span) bool { return !s.ended })
	})
	r.mu.Lock()
	defer r.mu.Unlock()
	spans = slices.DeleteFunc(r.spans, func(s *span) bool { return s.parent == nil && s.kind != oteltrace.SpanKindServer })
	r.spans = nil
	return spans
}

type span struct {
	noop.Span
	tracer *tracer // its lock also guards the next fields

	name       string
	kind       oteltrace.SpanKind
	parent     *span
	id         oteltrace.SpanContext
	links      []oteltrace.Link
	attributes []attribute.KeyValue
	status     codes.Code
	about      string
	ended      bool
}

func (s *span) IsRecording() bool { return true }

func (s *span) SpanContext() oteltrace.SpanContext { return s.id }

func (s *span) SetAttributes(some ...attribute.KeyValue) {
	s.tracer.mu.Lock()
	defer s.tracer.mu.Unlock()
	s.attributes = append(s.attributes, some...)
}

func (s *span) SetStatus(code codes.Code, about string) {
	s.tracer.mu.Lock()
	defer s.tracer.mu.Unlock()
	s.status, s.about = code, about
}

func (s *span) End(...oteltrace.SpanEndOption) {
	s.tracer.mu.Lock()
	defer s.tracer.mu.Unlock()
	s.ended = true
}

func (s *span) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s %v", s.name, s.kind)
	for _, a := range s.attributes {
		fmt.Fprintf(&b, " %s=%s", a.Key, a.Value.String())
	}
	if s.status != codes.Unset {
		fmt.Fprintf(&b, " %v %s", s.status, s.about)
	}
	return b.String()
}

func TestARequestsSpanContainsItsStoreOperations(t *testing.T) {
	t.Parallel()
	server, client := hosttest.Embedded(t)
	traces := &tracer{}
	h := hosttest.StartHost(t, client, fx.Supply(fx.Annotate(traces, fx.As(new(oteltrace.TracerProvider)))))
	traces.take(t)
	const store = "client db.system.name=redis db.operation.name=%[1]s db.collection.name=%[2]s"
	for _, test := range []struct {
		method, path, body string
		broken             bool
		spans              []string
	}{
		{"GET", "/pushrules/", "", false, []string{
			"GET " + hosttest.V3 + "/pushrules/ server http.request.method=GET http.route=" + hosttest.V3 + "/pushrules/ http.response.status_code=200",
			"load push_rules " + fmt.Sprintf(store, "load", "push_rules"),
			"update push_rules " + fmt.Sprintf(store, "update", "push_rules"),
		}},
		{"PUT", "/pushrules/global/room/!secret:b/enabled", `{"enabled":false}`, false, []string{
			"PUT " + hosttest.V3 + "/pushrules/global/:kind/:ruleId/enabled server http.request.method=PUT http.route=" + hosttest.V3 +
				"/pushrules/global/:kind/:ruleId/enabled http.response.status_code=404",
			"update push_rules " + fmt.Sprintf(store, "update", "push_rules"),
		}},
		{"GET", "/pushers", "", true, []string{
			"GET " + hosttest.V3 + "/pushers server http.request.method=GET http.route=" + hosttest.V3 +
				"/pushers http.response.status_code=503 error.type=unavailable Error unavailable",
			"load pushers " + fmt.Sprintf(store, "load", "pushers") + " error.type=unavailable Error unavailable",
		}},
	} {
		if test.broken {
			server.SetError("ERR secret")
		}
		h.Do(hosttest.Alice, test.method, hosttest.V3+test.path, test.body)
		spans := traces.take(t)
		if len(spans) != len(test.spans) {
			t.Errorf("%s %s: spans %v", test.method, test.path, spans)
			continue
		}
		for i, s := range spans {
			if got := s.String(); got != test.spans[i] {
				t.Errorf("span %d\n got %q\nwant %q", i, got, test.spans[i])
			}
			if i > 0 && s.parent != spans[0] {
				t.Errorf("%s is not below the request", s)
			}
		}
	}
}

func TestATraceContainsNoUserData(t *testing.T) {
	t.Parallel()
	_, client := hosttest.Embedded(t)
	traces := &tracer{}
	h := hosttest.StartHost(t, client, fx.Supply(fx.Annotate(traces, fx.As(new(oteltrace.TracerProvider)))))
	h.Do(hosttest.Alice, http.MethodGet, hosttest.V3+"/pushrules/", "")
	for _, r := range secretive {
		for _, body := range append(spoil(r.body)[:40], r.body) {
			h.Do(hosttest.Alice, r.method, hosttest.V3+r.path, body)
		}
	}
	for _, s := range traces.take(t) {
		for _, secret := range []string{"alice", "example.org", "word", hush.pushkey, hush.data, hush.pattern} {
			if strings.Contains(s.String(), secret) {
				t.Fatalf("%q is in a trace: %s", secret, s)
			}
		}
	}
}

// The POST of another host links to the call of Notify, if that is sampled.
func TestTheSpanOfAPostLinksToNotify(t *testing.T) {
	t.Parallel()
	redistest.Require(t)
	for flags, want := range map[oteltrace.TraceFlags][]string{
		oteltrace.FlagsSampled: {
			"Decide internal", "Notify producer",
			"POST client http.request.method=POST server.address=127.0.0.1 server.port=PORT http.response.status_code=200",
			"POST client http.request.method=POST server.address=127.0.0.1 server.port=PORT http.response.status_code=503 error.type=failed Error failed",
		},
		0: {"Decide internal", "Notify producer"},
	} {
		var posts atomic.Int32
		gateway := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			if posts.Add(1) == 1 {
				w.WriteHeader(http.StatusServiceUnavailable)
				return
			}
			io.WriteString(w, `{"rejected":[]}`)
		}))
		t.Cleanup(gateway.Close)
		server, traces := redistest.Single(t), &tracer{flags: flags}
		first, second := newTracedPush(t, server, traces), newTracedPush(t, server, traces)
		if err := first.Pushers.Set(t.Context(), hosttest.Alice, hosttest.PusherAt(gateway.URL+pusher.NotifyPath, "secret"), pusher.KeepOthers); err != nil {
			t.Fatal(err)
		}
		if err := hosttest.SendEvent(t.Context(), first.Notifier, hosttest.Message(1), hosttest.Alice); err != nil {
			t.Fatal(err)
		}
		hosttest.RunPush(t, second)
		hosttest.Eventually(t, "the second POST is answered", func() bool { return posts.Load() == 2 })
		spans := traces.ofDelivery(t, len(want))
		for i, s := range spans {
			got := strings.ReplaceAll(s.String(), gateway.URL[strings.LastIndex(gateway.URL, ":")+1:], "PORT")
			if !slices.Contains(want, got) {
				t.Errorf("flags %v: got %q, want one of %q", flags, got, want)
			}
			if i >= 2 && (len(s.links) != 1 || s.links[0].SpanContext.SpanID() != spans[1].id.SpanID()) {
				t.Errorf("%s is not linked with %s", s, spans[1])
			}
		}
	}
}

func newTracedPush(t *testing.T, server *redistest.Server, traces *tracer) *pushfx.Push {
	t.Helper()
	push, err := pushfx.New(server.Client(t), hosttest.AllowLoopback(pushfx.DefaultConfig()),
		pushfx.Options{Delivery: &pushfx.DeliveryOptions{}, Tracers: traces})
	if err != nil {
		t.Fatal(err)
	}
	if err := push.Check(t.Context()); err != nil {
		t.Fatal(err)
	}
	return push
}

func (r *tracer) ofDelivery(t *testing.T, n int) (spans []*span) {
	t.Helper()
	hosttest.Eventually(t, "all spans have ended", func() bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		spans = slices.DeleteFunc(slices.Clone(r.spans), func(s *span) bool {
			return !s.ended || !slices.Contains([]string{"Decide", "Notify", "POST"}, s.name)
		})
		return len(spans) == n
	})
	return spans
}
