package handlers

import (
	"context"

	"github.com/pushfx/pushfx/module/mxid"
)

// Requester is the user and device of a request.
type Requester struct {
	User   mxid.UserID
	Device string // the access token's device; empty for an application service
}

type requesterKey struct{}

// WithRequester returns a context with the requester. The host's auth middleware puts it
// into the request:
//
//	c.SetRequest(c.Request().WithContext(handlers.WithRequester(ctx, requester)))
//
// A request without a requester gets 401 M_MISSING_TOKEN.
func WithRequester(ctx context.Context, who Requester) context.Context {
	return context.WithValue(ctx, requesterKey{}, who)
}

// RequesterFrom returns the requester from [WithRequester], if it has a user.
func RequesterFrom(ctx context.Context) (who Requester, found bool) {
	who, found = ctx.Value(requesterKey{}).(Requester)
	return who, found && who.User != ""
}
