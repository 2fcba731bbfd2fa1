package tracing

import (
	"context"
	"net/url"
	"strconv"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/pushfx/pushfx/module/delivery"
)

const traceparentField = "traceparent"

// Traceparent implements [observe.Observer].
func (t *Tracing) Traceparent(ctx context.Context) string {
	span := trace.SpanContextFromContext(ctx)
	if !span.IsValid() || !span.IsSampled() {
		return ""
	}
	carrier := propagation.MapCarrier{}
	propagation.TraceContext{}.Inject(ctx, carrier)
	return carrier[traceparentField]
}

// BeginPost implements [observe.Observer]. The span of the handover is also the parent,
// as in the semantic conventions for a single message, so both have the same sampling.
func (t *Tracing) BeginPost(ctx context.Context, gateway, traceparent string) (context.Context, func(string, int)) {
	ctx, endNext := t.Observer.BeginPost(ctx, gateway, traceparent)
	remote := propagation.TraceContext{}.Extract(context.Background(), propagation.MapCarrier{traceparentField: traceparent})
	from := trace.SpanContextFromContext(remote)
	if !from.IsValid() {
		return ctx, endNext
	}
	attributes := []attribute.KeyValue{attribute.String("http.request.method", "POST")}
	if u, err := url.Parse(gateway); err == nil {
		port, _ := strconv.Atoi(u.Port())
		attributes = append(attributes, attribute.String("server.address", u.Hostname()), attribute.Int("server.port", port))
	}
	started, span := t.tracer.Start(trace.ContextWithRemoteSpanContext(ctx, from), "POST",
		trace.WithSpanKind(trace.SpanKindClient), trace.WithLinks(trace.Link{SpanContext: from}), trace.WithAttributes(attributes...))
	return started, func(outcome string, status int) {
		endNext(outcome, status)
		defer span.End()
		if status != 0 {
			span.SetAttributes(attribute.Int("http.response.status_code", status))
		}
		if outcome != "" && outcome != string(delivery.PostDelivered) {
			span.SetAttributes(attribute.String("error.type", outcome))
			span.SetStatus(codes.Error, outcome)
		}
	}
}
