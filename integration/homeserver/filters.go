package main

import (
	"context"
	"net/http"
	"regexp"
	"slices"
	"strings"

	"github.com/labstack/echo/v4"

	"github.com/pushfx/pushfx/integration/homeserver/sessions"
	"github.com/pushfx/pushfx/module/mxid"
)

// maxFilterBytes limits a filter.
const maxFilterBytes = 16 << 10

// filter has the members of a filter that this host obeys (Matrix specification, "Filtering").
type filter struct {
	AccountData typeFilter `json:"account_data"`
	Room        struct {
		AccountData typeFilter `json:"account_data"`
		Timeline    struct {
			Limit   int  `json:"limit"`
			Threads bool `json:"unread_thread_notifications"`
		} `json:"timeline"`
	} `json:"room"`
}

type typeFilter struct {
	Types    *[]string `json:"types"`
	NotTypes []string  `json:"not_types"`
}

func (f filter) timelineLimit() int {
	if limit := f.Room.Timeline.Limit; limit > 0 && limit < timelineLimit {
		return limit
	}
	return timelineLimit
}

func (f typeFilter) allows(eventType string) bool {
	matches := func(pattern string) bool { return matchesType(pattern, eventType) }
	return (f.Types == nil || slices.ContainsFunc(*f.Types, matches)) && !slices.ContainsFunc(f.NotTypes, matches)
}

// matchesType compares a type with a pattern, in which "*" matches any characters.
func matchesType(pattern, eventType string) bool {
	expression := "(?s)^" + strings.ReplaceAll(regexp.QuoteMeta(pattern), `\*`, ".*") + "$"
	return regexp.MustCompile(expression).MatchString(eventType)
}

func (a *api) addFilter(c echo.Context) error {
	user, err := owner(c)
	if err != nil {
		return err
	}
	body, err := readObject(c, new(filter))
	if err != nil {
		return err
	}
	if len(body) > maxFilterBytes {
		return tooLarge("The filter is too large.")
	}
	id, err := a.sessions.AddFilter(c.Request().Context(), user, string(body))
	if err != nil {
		return err
	}
	return c.JSON(http.StatusOK, map[string]string{"filter_id": id})
}

func (a *api) filter(c echo.Context) error {
	user, err := owner(c)
	if err != nil {
		return err
	}
	text, found, err := a.sessions.Filter(c.Request().Context(), user, c.Param("filterId"))
	if err != nil {
		return err
	}
	if !found {
		return notFound("Filter not found.")
	}
	return c.JSONBlob(http.StatusOK, []byte(text))
}

// readFilter returns the filter of a sync, which the client names by id or gives as JSON. The default allows all types.
func readFilter(ctx context.Context, store *sessions.Sessions, user mxid.UserID, name string) (f filter, err error) {
	if name == "" {
		return filter{}, nil
	}
	text := name
	if !strings.HasPrefix(name, "{") {
		var found bool
		if text, found, err = store.Filter(ctx, user, name); err != nil {
			return filter{}, err
		}
		if !found {
			return filter{}, badRequest("M_INVALID_PARAM", "There is no such filter.")
		}
	}
	return f, parseObject([]byte(text), &f)
}
