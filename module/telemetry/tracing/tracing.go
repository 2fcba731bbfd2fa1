// Package tracing provides the module's OpenTelemetry traces; its API may change at any
// time.
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

// Tracing is an [observe.Observer] that creates spans: one for each request of a client
// and each call of delivery, and below it one for each operation of a store. A request to
// a push gateway has a span if the span of Notify was sampled. All spans belong to the
// trace in the context.
//
// Attributes follow the semantic conventions for HTTP servers and databases, and contain
// no user, rule, pushkey or key. Other reports go to the embedded observer. Tracing is
// safe for concurrent use.
type Tracing struct {
	observe.Observer
	tracer trace.Tracer
}

// New returns tracing with a provider, which the caller shuts down.
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
		kind := string(fault.KindOf(o.Err)) // the text may contain a user
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

// failed reports whether the server failed, not the client.
func failed(op *observe.Operation, o observe.Outcome) bool {
	switch op.Kind {
	case observe.Request:
		return o.Status >= http.StatusInternalServerError
	case observe.Call:
		return o.Err != nil
	}
	kind := fault.KindOf(o.Err) // other kinds are refusals
	return kind == fault.Unavailable || kind == fault.Database
}
