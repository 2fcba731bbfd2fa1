package handlers

import (
	"errors"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/labstack/echo/v4"
	"go.uber.org/zap"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/fault"
)

// Auth is a host's authentication: it returns the user and device of a request. Its error
// is answered as by [ErrorReply]; see [ErrMissingToken] and [ErrUnknownToken].
type Auth func(*http.Request) (Requester, error)

var prefixes = []string{V3: "/_matrix/client/v3", R0: "/_matrix/client/r0"}

const unstablePrefix = "/_matrix/client/unstable"

// Handler serves the route groups below "/_matrix/client/v3" and "/_matrix/client/r0", and
// what [RegisterUnstable] adds, for hosts with another router than echo. All other paths are 404 M_UNRECOGNIZED; see
// [Owns]. Without auth, each request is 500 M_UNKNOWN, and the log says so. A nil log means
// no logs.
func Handler(auth Auth, log *zap.Logger, groups ...RouteGroup) http.Handler {
	if auth == nil {
		auth = func(*http.Request) (Requester, error) { return Requester{}, errNoAuth }
	}
	if log == nil {
		log = zap.NewNop()
	}
	e := echo.New()
	e.HTTPErrorHandler = func(_ error, c echo.Context) {
		status, body := ErrorReply(errUnrecognized)
		_ = c.JSONBlob(status, body) // the client is gone
	}
	for d, prefix := range prefixes {
		for _, group := range groups {
			group.Register(e.Group(prefix), Dialect(d), auth.middleware(log))
		}
	}
	RegisterUnstable(e.Group(unstablePrefix), groups, auth.middleware(log))
	return e
}

// Owns reports whether a request is for the module's route groups, by its path:
// /pushrules, /pushers, the paths below them, the one of [RegisterUnstable], and a user's
// m.push_rules account data, global or of a room. It compares the decoded path, so that no encoding of m.push_rules
// reaches the host's own account data.
func Owns(r *http.Request) bool {
	if r.URL.EscapedPath() == unstablePrefix+"/org.matrix.msc4174/pushers/ack" {
		return true
	}
	for _, prefix := range prefixes {
		path, found := strings.CutPrefix(r.URL.EscapedPath(), prefix+"/")
		if !found {
			continue
		}
		segments := strings.Split(path, "/")
		for i, segment := range segments {
			if decoded, err := url.PathUnescape(segment); err == nil {
				segments[i] = decoded
			}
		}
		switch segments[0] {
		case "pushrules", "pushers":
			return true
		case "user":
			if len(segments) == 6 && segments[2] == "rooms" {
				segments = slices.Delete(segments, 2, 4)
			}
			return len(segments) == 4 && segments[2] == "account_data" && segments[3] == module.AccountDataType
		}
	}
	return false
}

var errNoAuth = errors.New("handlers: the Auth is nil: pass a function that returns the user of a request")

func (auth Auth) middleware(log *zap.Logger) echo.MiddlewareFunc {
	return func(next echo.HandlerFunc) echo.HandlerFunc {
		return func(c echo.Context) error {
			who, err := auth(c.Request())
			if err != nil {
				status, body := ErrorReply(err)
				if status >= http.StatusInternalServerError {
					log.Error("the host could not authenticate a request", zap.String("route", c.Path()), zap.String("error", fault.Details(err)))
				}
				return c.JSONBlob(status, body)
			}
			c.SetRequest(c.Request().WithContext(WithRequester(c.Request().Context(), who)))
			return next(c)
		}
	}
}
