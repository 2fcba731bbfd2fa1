package main

import (
	"context"
	"encoding/json"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/pushfx/pushfx/handlers"
	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/fault"
	"github.com/pushfx/pushfx/module/mxid"
)

// maxWait is how long a sync waits at most.
const maxWait = 30 * time.Second

// sync serves GET /sync. There are only push rules to deliver, so its token is
// their version; a real host puts the version into its own token.
func (h *endpoints) sync(c echo.Context) error {
	since, err := strconv.ParseInt(strings.TrimPrefix(c.QueryParam("since"), "s"), 10, 64)
	if err != nil && c.QueryParam("since") != "" {
		return fault.New(fault.InvalidParam, "Invalid since token.")
	}
	millis, _ := strconv.ParseInt(c.QueryParam("timeout"), 10, 64)
	wait := min(time.Duration(max(0, millis))*time.Millisecond, maxWait)
	who, _ := handlers.RequesterFrom(c.Request().Context())
	events, next, err := h.rulesSince(c.Request().Context(), who.User, since, wait)
	if err != nil {
		return err
	}
	return c.JSON(http.StatusOK, map[string]any{
		"next_batch":   "s" + strconv.FormatInt(next, 10),
		"account_data": map[string]any{"events": events},
	})
}

// rulesSince returns the user's rules as soon as their version is another than
// since, or nothing when the wait is over.
func (h *endpoints) rulesSince(ctx context.Context, user mxid.UserID, since int64, wait time.Duration) (events []any, next int64, err error) {
	timeout := time.NewTimer(wait)
	defer timeout.Stop()
	for {
		changed := h.waker.changed(user) // before the store is asked, so that no change is missed
		content, found, err := h.push.Sync.ContentSince(ctx, user, since)
		if err != nil {
			return nil, 0, err
		}
		if found {
			event := map[string]any{"type": module.AccountDataType, "content": json.RawMessage(content.AppendJSON(nil))}
			return []any{event}, content.Version, nil
		}
		select {
		case <-changed:
		case <-timeout.C:
			return []any{}, since, nil
		case <-h.waker.stopped:
			return []any{}, since, nil
		case <-ctx.Done(): // nobody reads the answer
			return []any{}, since, nil
		}
	}
}

var _ module.ChangeListener = (*waker)(nil)

// waker wakes the syncs that wait. It is a [module.ChangeListener].
type waker struct {
	mu      sync.Mutex
	waiting map[mxid.UserID]chan struct{} // closed at the user's next change
	stopped chan struct{}
	stop    func()
}

func newWaker() *waker {
	stopped := make(chan struct{})
	return &waker{
		waiting: map[mxid.UserID]chan struct{}{}, stopped: stopped,
		stop: sync.OnceFunc(func() { close(stopped) }),
	}
}

// changed is closed at the user's next change.
func (w *waker) changed(user mxid.UserID) <-chan struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.waiting[user] == nil {
		w.waiting[user] = make(chan struct{})
	}
	return w.waiting[user]
}

// PushRulesChanged implements [module.ChangeListener].
func (w *waker) PushRulesChanged(_ context.Context, user mxid.UserID, _ int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if changed := w.waiting[user]; changed != nil {
		close(changed)
		delete(w.waiting, user)
	}
}
