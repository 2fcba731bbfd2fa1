package main

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/pushfx/pushfx/integration/homeserver/rooms"
	"github.com/pushfx/pushfx/integration/homeserver/sessions"
	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/mxid"
)

const maxSyncWait = 30 * time.Second

// sync serves GET /sync (Matrix specification, "Syncing"): push rules, account data and rooms. A first sync gets all rules and rooms at once. A later sync
// waits until the rules differ from the version in its token, a room changes, or the timeout ends. The host has no
// presence.
func (a *api) sync(c echo.Context) error {
	ctx := c.Request().Context()
	who := sessions.CallerFrom(ctx)
	request, err := a.parseSync(ctx, who.User, c.QueryParams())
	if err != nil {
		return err
	}
	if err := allowWaiting(c, request.wait); err != nil {
		return err
	}
	batch, err := a.answerSync(ctx, who, request)
	if err != nil {
		return err
	}
	return c.JSON(http.StatusOK, batch)
}

type syncRequest struct {
	since  int64         // the module's token; 0 is a first sync
	stream string        // the token of the user's stream, empty at a first sync
	wait   time.Duration // longest wait for a change
	filter filter
}

func (a *api) parseSync(ctx context.Context, user mxid.UserID, query url.Values) (r syncRequest, err error) {
	token := query.Get("since")
	if r.since, r.stream, err = tokenIn(token); err != nil {
		return r, err
	}
	if r.wait, err = parseTimeout(query.Get("timeout")); err != nil {
		return r, err
	}
	full := query.Get("full_state") == "true"
	if full {
		r.since, r.stream = 0, ""
	}
	if full || token == "" {
		r.wait = 0
	}
	r.filter, err = readFilter(ctx, a.sessions, user, query.Get("filter"))
	return r, err
}

func parseTimeout(text string) (time.Duration, error) {
	if text == "" {
		return 0, nil
	}
	millis, err := strconv.ParseInt(text, 10, 64)
	if err != nil || millis < 0 {
		return 0, badRequest("M_INVALID_PARAM", "The timeout must be milliseconds.")
	}
	return time.Duration(min(millis, maxSyncWait.Milliseconds())) * time.Millisecond, nil
}

const syncTokenPrefix = "s"

// tokenIn returns the parts of a sync token, and zero values for an empty token.
func tokenIn(token string) (since int64, stream string, err error) {
	if token == "" {
		return 0, "", nil
	}
	rest, found := strings.CutPrefix(token, syncTokenPrefix)
	digits, stream, _ := strings.Cut(rest, "_")
	since, err = strconv.ParseInt(digits, 10, 64)
	if !found || err != nil || since < 0 || stream != "" && !rooms.ValidToken(stream) || syncToken(since, stream) != token {
		return 0, "", badRequest("M_INVALID_PARAM", "Invalid since token.")
	}
	return since, stream, nil
}

// syncToken joins the parts of a sync token. If the host could not read the rooms, the token may have no stream.
func syncToken(since int64, stream string) string {
	if stream != "" {
		stream = "_" + stream
	}
	return syncTokenPrefix + strconv.FormatInt(since, 10) + stream
}

// allowWaiting extends the write deadline by the time that a sync waits. The response recorder of tests has no
// deadline.
func allowWaiting(c echo.Context, wait time.Duration) error {
	err := http.NewResponseController(c.Response()).SetWriteDeadline(time.Now().Add(wait + writeTimeout))
	if errors.Is(err, http.ErrNotSupported) {
		return nil
	}
	return err
}

// recheck is how often a waiting sync looks for changes of rooms by other hosts.
const recheck = time.Second

// answerSync returns a batch as soon as there is anything new, or an empty batch after the timeout.
func (a *api) answerSync(ctx context.Context, who sessions.Caller, r syncRequest) (*syncBatch, error) {
	if r.wait == 0 {
		batch, _, _ := a.pollSync(ctx, who, r)
		return batch, nil
	}
	woken, leave, err := a.waker.wait(who.User)
	if err != nil {
		return nil, err
	}
	defer leave()
	timeout := time.NewTimer(r.wait)
	defer timeout.Stop()
	again := time.NewTicker(recheck)
	defer again.Stop()
	for timeIsUp := false; ; {
		batch, found, changed := a.pollSync(ctx, who, r)
		if found || timeIsUp {
			return batch, nil
		}
		select {
		case <-changed:
		case <-woken:
		case <-again.C:
		case <-timeout.C:
			timeIsUp = true
		case <-a.waker.stopped:
			timeIsUp = true
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		if err := a.sessions.Check(ctx, who); err != nil {
			return nil, err
		}
	}
}

// pollSync returns what is new. If nothing is new, it returns a channel that closes when the rules change. It leaves out
// data that it cannot read; the old token stays valid for this data, so that a later sync delivers it.
func (a *api) pollSync(ctx context.Context, who sessions.Caller, r syncRequest) (batch *syncBatch, found bool, changed <-chan struct{}) {
	update, err := a.rules.Since(ctx, who.User, r.since)
	if ctx.Err() == nil {
		logFailed(a.log, "sync", who.User, err)
	}
	rooms, stream, err := a.readRooms(ctx, who.User, r)
	if ctx.Err() == nil {
		logFailed(a.log, "sync", who.User, err)
	}
	batch, found = newSyncBatch(update.Token, stream), update.New && r.filter.AccountData.allows(module.AccountDataType)
	batch.Rooms = rooms
	if found {
		batch.AccountData.Events = append(batch.AccountData.Events,
			accountDataEvent{module.AccountDataType, update.Content.AppendJSON(nil)})
	}
	batch.AccountData.Events = append(batch.AccountData.Events, rooms.global...)
	return batch, found || !rooms.isEmpty(), update.Changed
}

// syncBatch is the answer to a sync. Only its rooms and account data have content; the other members are there because
// clients expect them.
type syncBatch struct {
	NextBatch   string                   `json:"next_batch"`
	AccountData events[accountDataEvent] `json:"account_data"`
	Presence    events[struct{}]         `json:"presence"`
	Rooms       roomsBatch               `json:"rooms"`
	ToDevice    events[struct{}]         `json:"to_device"`
	DeviceLists struct {
		Changed []string `json:"changed"`
		Left    []string `json:"left"`
	} `json:"device_lists"`
	OneTimeKeys struct{} `json:"device_one_time_keys_count"`
}

type events[E any] struct {
	Events []E `json:"events"`
}

type accountDataEvent struct {
	Type    string          `json:"type"`
	Content json.RawMessage `json:"content"`
}

func newSyncBatch(token int64, stream string) *syncBatch {
	batch := &syncBatch{NextBatch: syncToken(token, stream)}
	batch.AccountData.Events = []accountDataEvent{}
	batch.Presence.Events = []struct{}{}
	batch.ToDevice.Events = []struct{}{}
	batch.DeviceLists.Changed, batch.DeviceLists.Left = []string{}, []string{}
	return batch
}
