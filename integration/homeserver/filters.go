package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"strings"

	"github.com/labstack/echo/v4"
	"github.com/redis/go-redis/v9"

	"github.com/pushfx/pushfx/handlers"
	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/mxid"
)

// The limits of filters.
const (
	maxFilterBytes = 16 << 10
	maxFilters     = 100 // of one user
	filterIDBytes  = 12  // of the hash
)

// filter is what counts here of a filter (Matrix specification, "Filtering").
type filter struct {
	AccountData struct {
		Types    *[]string `json:"types"`
		NotTypes []string  `json:"not_types"`
	} `json:"account_data"`
}

// allows reports whether the filter lets account data of a type pass.
func (f filter) allows(eventType string) bool {
	matches := func(pattern string) bool { return matchesType(pattern, eventType) }
	types := f.AccountData.Types
	return (types == nil || slices.ContainsFunc(*types, matches)) && !slices.ContainsFunc(f.AccountData.NotTypes, matches)
}

// matchesType reports whether a type matches a pattern, where "*" stands for
// any characters.
func matchesType(pattern, eventType string) bool {
	parts := strings.Split(pattern, "*")
	first, last := parts[0], parts[len(parts)-1]
	if len(parts) == 1 {
		return pattern == eventType
	}
	rest, found := strings.CutPrefix(eventType, first)
	for _, part := range parts[1 : len(parts)-1] {
		if found {
			_, rest, found = strings.Cut(rest, part)
		}
	}
	return found && strings.HasSuffix(rest, last)
}

// filters keeps the users' filters.
type filters struct{ *store }

func newFilters(store *store) *filters { return &filters{store} }

// Register implements [handlers.RouteGroup].
func (f *filters) Register(g *echo.Group, _ handlers.Dialect, _ ...echo.MiddlewareFunc) {
	g.Any("/user/:userId/filter", methods{http.MethodPost: f.post}.serve)
	g.Any("/user/:userId/filter/:filterId", methods{http.MethodGet: f.get}.serve)
}

// post serves POST /user/{userId}/filter. The same filter always has the same
// id.
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
	if err := f.add(c.Request().Context(), user, id, text.Bytes()); err != nil {
		return err
	}
	return c.JSON(http.StatusOK, map[string]string{"filter_id": id})
}

// add stores a filter, unless the user was deactivated meanwhile.
func (f *filters) add(ctx context.Context, user mxid.UserID, id string, text []byte) error {
	key := f.filtersKey(user)
	return f.change(ctx, func(ctx context.Context, tx *redis.Tx) error {
		if gone, err := tx.HExists(ctx, f.accountKey(user), deactivatedField).Result(); err != nil {
			return err
		} else if gone {
			return module.ErrLoggedOut
		}
		if known, err := tx.HExists(ctx, key, id).Result(); known || err != nil {
			return err
		}
		if count, err := tx.HLen(ctx, key).Result(); err != nil {
			return err
		} else if count >= maxFilters {
			return badRequest("M_INVALID_PARAM", "Too many filters.")
		}
		_, err := tx.TxPipelined(ctx, func(pipe redis.Pipeliner) error {
			return pipe.HSet(ctx, key, id, text).Err()
		})
		return err
	}, key, f.accountKey(user))
}

// get serves GET /user/{userId}/filter/{filterId}.
func (f *filters) get(c echo.Context) error {
	user, err := owner(c)
	if err != nil {
		return err
	}
	id, err := pathParam(c, "filterId")
	if err != nil {
		return err
	}
	text, err := f.load(c.Request().Context(), user, id)
	if err != nil {
		return err
	}
	return c.JSONBlob(http.StatusOK, text)
}

var errNoFilter = notFound("Filter not found.")

// load returns a filter as it was stored.
func (f *filters) load(ctx context.Context, user mxid.UserID, id string) (text []byte, err error) {
	err = f.ask(ctx, func(ctx context.Context) (err error) {
		text, err = f.redis.HGet(ctx, f.filtersKey(user), id).Bytes()
		if errors.Is(err, redis.Nil) {
			return errNoFilter
		}
		return err
	})
	return text, err
}

// named returns the filter of a sync: the id of one that is stored, one in
// JSON, or none, which lets everything pass.
func (f *filters) named(ctx context.Context, user mxid.UserID, name string) (found filter, err error) {
	if name == "" {
		return filter{}, nil
	}
	text := []byte(name)
	if !strings.HasPrefix(name, "{") {
		text, err = f.load(ctx, user, name)
		if errors.Is(err, errNoFilter) {
			return filter{}, badRequest("M_INVALID_PARAM", "There is no such filter.")
		}
		if err != nil {
			return filter{}, err
		}
	}
	return found, parseObject(text, &found)
}
