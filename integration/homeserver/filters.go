package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"net/http"
	"regexp"
	"slices"
	"strings"

	"github.com/labstack/echo/v4"

	"github.com/pushfx/pushfx/handlers"
	"github.com/pushfx/pushfx/integration/homeserver/sessions"
	"github.com/pushfx/pushfx/module/mxid"
)

const (
	maxFilterBytes = 16 << 10
	filterIDBytes  = 12 // bytes of the hash in an id
)

// filter has the members of a filter that this host obeys (Matrix specification, "Filtering").
type filter struct {
	AccountData struct {
		Types    *[]string `json:"types"`
		NotTypes []string  `json:"not_types"`
	} `json:"account_data"`
	Room struct {
		Timeline struct {
			Limit   int  `json:"limit"`
			Threads bool `json:"unread_thread_notifications"`
		} `json:"timeline"`
	} `json:"room"`
}

func (f filter) timelineLimit() int {
	if limit := f.Room.Timeline.Limit; limit > 0 && limit < timelineLimit {
		return limit
	}
	return timelineLimit
}

func (f filter) allows(eventType string) bool {
	matches := func(pattern string) bool { return matchesType(pattern, eventType) }
	types := f.AccountData.Types
	return (types == nil || slices.ContainsFunc(*types, matches)) && !slices.ContainsFunc(f.AccountData.NotTypes, matches)
}

// matchesType compares a type with a pattern, in which "*" matches any characters.
func matchesType(pattern, eventType string) bool {
	expression := "(?s)^" + strings.ReplaceAll(regexp.QuoteMeta(pattern), `\*`, ".*") + "$"
	return regexp.MustCompile(expression).MatchString(eventType)
}

type filters struct{ store *sessions.Store }

func newFilters(store *sessions.Store) *filters { return &filters{store} }

// Register implements [handlers.RouteGroup].
func (f *filters) Register(g *echo.Group, _ handlers.Dialect, auth ...echo.MiddlewareFunc) {
	g.Any("/user/:userId/filter", methods{http.MethodPost: f.post}.serve, auth...)
	g.Any("/user/:userId/filter/:filterId", methods{http.MethodGet: f.get}.serve, auth...)
}

// post serves POST /user/{userId}/filter. Equal filters have equal ids.
func (f *filters) post(c echo.Context) error {
	user, err := owner(c)
	if err != nil {
		return err
	}
	body, err := readObject(c, maxFilterBytes, new(filter))
	if err != nil {
		return err
	}
	var text bytes.Buffer
	if err := json.Compact(&text, body); err != nil {
		return err
	}
	sum := sha256.Sum256(text.Bytes())
	id := base64.RawURLEncoding.EncodeToString(sum[:filterIDBytes])
	if err := f.store.AddFilter(c.Request().Context(), user, id, text.Bytes()); err != nil {
		return err
	}
	return c.JSON(http.StatusOK, map[string]string{"filter_id": id})
}

func (f *filters) get(c echo.Context) error {
	user, err := owner(c)
	if err != nil {
		return err
	}
	id, err := pathParam(c, "filterId")
	if err != nil {
		return err
	}
	text, found, err := f.store.Filter(c.Request().Context(), user, id)
	switch {
	case err != nil:
		return err
	case !found:
		return notFound("Filter not found.")
	}
	return c.JSONBlob(http.StatusOK, text)
}

// named returns the filter of a sync, which the client names by id or gives as JSON. The default allows all types.
func (f *filters) named(ctx context.Context, user mxid.UserID, name string) (named filter, err error) {
	if name == "" {
		return filter{}, nil
	}
	text := []byte(name)
	if !strings.HasPrefix(name, "{") {
		var found bool
		text, found, err = f.store.Filter(ctx, user, name)
		switch {
		case err != nil:
			return filter{}, err
		case !found:
			return filter{}, badRequest("M_INVALID_PARAM", "There is no such filter.")
		}
	}
	return named, parseObject(text, &named)
}
