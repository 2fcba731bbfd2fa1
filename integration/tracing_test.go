package integration

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	oteltrace "go.opentelemetry.io/otel/trace"
	otelembedded "go.opentelemetry.io/otel/trace/embedded"
	"go.opentelemetry.io/otel/trace/noop"
	"go.uber.org/fx"
)

// tracer is a provider that keeps the spans.
type tracer struct {
	otelembedded.TracerProvider

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
	s := &span{tracer: r.tracer, name: name, kind: cfg.SpanKind(), parent: parent, attributes: cfg.Attributes()}
	r.tracer.mu.Lock()
	defer r.tracer.mu.Unlock()
	r.tracer.spans = append(r.tracer.spans, s)
	return oteltrace.ContextWithSpan(ctx, s), s
}

// take returns the spans of requests since the last time, when all have ended.
// What runs beside requests has no parent.
func (r *tracer) take(t *testing.T) (spans []*span) {
	t.Helper()
	eventually(t, "all spans have ended", func() bool {
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

// span is one that tells whether it has ended.
type span struct {
	noop.Span
	tracer *tracer // its lock is also that of what follows

	name       string
	kind       oteltrace.SpanKind
	parent     *span
	attributes []attribute.KeyValue
	status     codes.Code
	about      string
	ended      bool
}

func (s *span) IsRecording() bool { return true }

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

// String is all that the span tells, for a comparison.
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

func TestEachRequestIsASpanWithItsStoreOperationsBelowIt(t *testing.T) {
	t.Parallel()
	server, client := embedded(t)
	traces := &tracer{}
	h := startHost(t, client, fx.Supply(fx.Annotate(traces, fx.As(new(oteltrace.TracerProvider)))))
	traces.take(t)
	const store = "client db.system.name=redis db.operation.name=%[1]s db.collection.name=%[2]s"
	for _, test := range []struct {
		method, path, body string
		broken             bool
		spans              []string
	}{
		{"GET", "/pushrules/", "", false, []string{
			"GET " + v3 + "/pushrules/ server http.request.method=GET http.route=" + v3 + "/pushrules/ http.response.status_code=200",
			"load push_rules " + fmt.Sprintf(store, "load", "push_rules"),
			"update push_rules " + fmt.Sprintf(store, "update", "push_rules"),
		}},
		{"PUT", "/pushrules/global/room/!secret:b/enabled", `{"enabled":false}`, false, []string{
			"PUT " + v3 + "/pushrules/global/:kind/:ruleId/enabled server http.request.method=PUT http.route=" + v3 +
				"/pushrules/global/:kind/:ruleId/enabled http.response.status_code=404",
			"update push_rules " + fmt.Sprintf(store, "update", "push_rules"),
		}},
		{"GET", "/pushers", "", true, []string{
			"GET " + v3 + "/pushers server http.request.method=GET http.route=" + v3 +
				"/pushers http.response.status_code=503 error.type=unavailable Error unavailable",
			"load pushers " + fmt.Sprintf(store, "load", "pushers") + " error.type=unavailable Error unavailable",
		}},
	} {
		if test.broken {
			server.SetError("LOADING secret")
		}
		h.do(alice, test.method, v3+test.path, test.body)
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

func TestATraceTellsNothingOfAUser(t *testing.T) {
	t.Parallel()
	_, client := embedded(t)
	traces := &tracer{}
	h := startHost(t, client, fx.Supply(fx.Annotate(traces, fx.As(new(oteltrace.TracerProvider)))))
	h.do(alice, http.MethodGet, v3+"/pushrules/", "")
	for _, r := range secretive {
		for _, body := range append(spoil(r.body)[:40], r.body) {
			h.do(alice, r.method, v3+r.path, body)
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
