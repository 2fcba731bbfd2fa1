// Package tracing traces what the module does, with OpenTelemetry; its API may change
// at any time.
package tracing

import (
	"context"
	"net/http"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/pushfx/pushfx/module/fault"
	"github.com/pushfx/pushfx/module/observe"
)

var _ observe.Observer = (*Tracing)(nil)

// Tracing is an [observe.Observer] with a span for each request and each call of
// delivery, one below it for each operation of a store, and one for each request to a
// push gateway whose notification was handed over in a sampled span. It continues the
// trace in the context, if there is one. Attributes follow the semantic conventions for
// HTTP servers and databases; none tells of a user, a rule, a pushkey or a key. All else
// goes to the observer in it. It is safe for concurrent use.
type Tracing struct {
	observe.Observer
	tracer trace.Tracer
}

// New returns tracing with a provider, which stays the caller's, that passes all on.
func New(provider trace.TracerProvider, next observe.Observer) *Tracing {
	return &Tracing{next, provider.Tracer("github.com/pushfx/pushfx")}
}

// Begin implements [observe.Observer].
func (t *Tracing) Begin(ctx context.Context, op *observe.Operation) (context.Context, func(observe.Outcome)) {
	name, options := describe(op)
	started, span := t.tracer.Start(ctx, name, options...)
	started, endNext := t.Observer.Begin(started, op)
	return started, func(o observe.Outcome) {
		endNext(o)
		defer span.End()
		if span.IsRecording() {
			endSpan(ctx, span, op, o)
		}
	}
}

func endSpan(ctx context.Context, span trace.Span, op *observe.Operation, o observe.Outcome) {
	if o.CallerGone(ctx) { // no status was sent, and nothing failed here
		span.SetAttributes(attribute.String("error.type", "gone"))
		return
	}
	if op.Kind == observe.Request {
		span.SetAttributes(attribute.Int("http.response.status_code", o.Status))
	}
	if failed(op, o) {
		kind := string(fault.KindOf(o.Err)) // its text may tell of a user
		span.SetAttributes(attribute.String("error.type", kind))
		span.SetStatus(codes.Error, kind)
	}
}

func describe(op *observe.Operation) (name string, options []trace.SpanStartOption) {
	switch {
	case op.Kind == observe.Call && op.Verb == "Notify":
		return op.Verb, []trace.SpanStartOption{trace.WithSpanKind(trace.SpanKindProducer)}
	case op.Kind == observe.Call:
		return op.Verb, []trace.SpanStartOption{trace.WithSpanKind(trace.SpanKindInternal)}
	case op.Kind == observe.Request:
		return op.Verb + " " + op.Name, []trace.SpanStartOption{
			trace.WithSpanKind(trace.SpanKindServer),
			trace.WithAttributes(attribute.String("http.request.method", op.Verb), attribute.String("http.route", op.Name)),
		}
	}
	return op.Verb + " " + op.Name, []trace.SpanStartOption{
		trace.WithSpanKind(trace.SpanKindClient),
		trace.WithAttributes(attribute.String("db.system.name", "redis"),
			attribute.String("db.operation.name", op.Verb), attribute.String("db.collection.name", op.Name)),
	}
}

// failed tells what is the server's fault from what is the client's.
func failed(op *observe.Operation, o observe.Outcome) bool {
	switch op.Kind {
	case observe.Request:
		return o.Status >= http.StatusInternalServerError
	case observe.Call:
		return o.Err != nil
	}
	kind := fault.KindOf(o.Err) // what else there is was refused
	return kind == fault.Unavailable || kind == fault.Database
}
