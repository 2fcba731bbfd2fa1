package main

import (
	"context"
	"encoding/json"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/pushfx/pushfx/handlers"
	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/fault"
	"github.com/pushfx/pushfx/module/mxid"
)

// maxWait is how long a sync waits at most.
const maxWait = 30 * time.Second

// sync serves GET /sync. There are only push rules to send, so its token is the
// module's; a real host puts that beside the others into its own token.
func (h *endpoints) sync(c echo.Context) error {
	since, err := strconv.ParseInt(strings.TrimPrefix(c.QueryParam("since"), "s"), 10, 64)
	if err != nil && c.QueryParam("since") != "" {
		return fault.New(fault.InvalidParam, "Invalid since token.")
	}
	millis, _ := strconv.ParseInt(c.QueryParam("timeout"), 10, 64)
	wait := min(time.Duration(max(0, millis))*time.Millisecond, maxWait)
	who, _ := handlers.RequesterFrom(c.Request().Context())
	events, next := h.rulesSince(c.Request().Context(), who.User, since, wait)
	return c.JSON(http.StatusOK, map[string]any{
		"next_batch":   "s" + strconv.FormatInt(next, 10),
		"account_data": map[string]any{"events": events},
	})
}

// rulesSince returns the user's rules as soon as there are newer ones than the token
// has, or nothing when the wait is over.
func (h *endpoints) rulesSince(ctx context.Context, user mxid.UserID, since int64, wait time.Duration) (events []any, next int64) {
	timeout := time.NewTimer(wait)
	defer timeout.Stop()
	for {
		update, err := h.push.Sync.Since(ctx, user, since)
		h.logFailed("sync", user, err) // the token stays, so that the client gets the rules later
		if update.New {
			event := map[string]any{"type": module.AccountDataType, "content": json.RawMessage(update.Content.AppendJSON(nil))}
			return []any{event}, update.Token
		}
		select {
		case <-update.Changed:
			continue
		case <-timeout.C:
		case <-h.stopping:
		case <-ctx.Done(): // nobody reads the answer
		}
		return []any{}, update.Token
	}
}
