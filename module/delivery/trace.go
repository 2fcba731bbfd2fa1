package delivery

import "context"

// Tracer traces delivery, with spans. None may tell of contents, pushkeys, or
// more of a URL than the gateway. Its methods must not block, must not panic, and
// must be safe for concurrent use.
type Tracer interface {
	// BeginCall begins the span of a call of the host, "Decide" or "Notify". The
	// context that it returns has the span; the function ends it.
	BeginCall(ctx context.Context, call string) (context.Context, func(err error))

	// Traceparent names the span that ctx has, as W3C Trace Context does, for
	// whoever sends what was handed over in it. It is empty if the span is not
	// sampled.
	Traceparent(ctx context.Context) string

	// BeginPost begins the span of a request to a gateway, a URL's scheme, host and
	// port, which is linked with the span that handed the notification over. That
	// may have been another host's, long ago. Without traceparent there is no span.
	BeginPost(ctx context.Context, gateway, traceparent string) (context.Context, func(outcome PostOutcome, status int))
}

// noTracer traces nothing.
type noTracer struct{}

func (noTracer) BeginCall(ctx context.Context, _ string) (context.Context, func(error)) {
	return ctx, func(error) {}
}

func (noTracer) Traceparent(context.Context) string { return "" }

func (noTracer) BeginPost(ctx context.Context, _, _ string) (context.Context, func(PostOutcome, int)) {
	return ctx, func(PostOutcome, int) {}
}
