package handlers

import (
	"context"

	"github.com/pushfx/pushfx/module/mxid"
)

// Requester is who makes a request, as the host's auth middleware found out.
type Requester struct {
	User   mxid.UserID
	Device string // the access token's device; empty for an application service
}

// requesterKey is the context key; no other package can have the same.
type requesterKey struct{}

// WithRequester returns a context that carries the requester. The host's auth
// middleware puts it into the request:
//
//	c.SetRequest(c.Request().WithContext(handlers.WithRequester(ctx, who)))
//
// A request without a requester is answered 401 M_MISSING_TOKEN.
func WithRequester(ctx context.Context, who Requester) context.Context {
	return context.WithValue(ctx, requesterKey{}, who)
}

// RequesterFrom returns the requester that [WithRequester] put into ctx; found
// is false if there is none, or one without a user.
func RequesterFrom(ctx context.Context) (who Requester, found bool) {
	who, found = ctx.Value(requesterKey{}).(Requester)
	return who, found && who.User != ""
}
