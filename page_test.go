package pushfx_test

import (
	"context"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/labstack/echo/v4"
	"github.com/redis/go-redis/v9"
	"go.uber.org/fx"
	"go.uber.org/fx/fxtest"

	"github.com/pushfx/pushfx"
	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/handover"
	"github.com/pushfx/pushfx/module/match"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/redisclient"
)

// The host of the README serves as soon as it runs, and does not start on a port in use.
func TestTheHostOfThePageListensAtTheStart(t *testing.T) {
	t.Parallel()
	e := echo.New()
	e.HideBanner, e.HidePort = true, true
	host := func() *fxtest.App {
		return fxtest.New(t, fx.NopLogger, fx.Supply(e), fx.Invoke(func(lc fx.Lifecycle, e *echo.Echo) { serve(lc, e, nil) }))
	}
	if first := host(); first.Start(t.Context()) == nil {
		response, err := http.Get("http://" + e.Listener.Addr().String() + "/_matrix/client/versions")
		if err != nil {
			t.Fatal(err)
		}
		response.Body.Close()
		first.RequireStop()
	} // else another process has the port
	taken, err := net.Listen("tcp", "127.0.0.1:8010")
	if err == nil {
		defer taken.Close()
	}
	e = echo.New()
	if host().Start(t.Context()) == nil {
		t.Error("the host starts on a port in use")
	}
}

type awayNotifier struct{ module.Notifier }

func (awayNotifier) Decide(_ context.Context, _ module.Event, members []match.Member) (module.Decisions, error) {
	return nil, &module.LeftError{Users: []mxid.UserID{members[0].User}, Reasons: []error{module.Unavailable(nil)}}
}

func (awayNotifier) UpdateBadges(context.Context, ...mxid.UserID) error { return nil }

// The first call of the README returns the rest, and its error names the users.
func TestTheCallOfThePageReturnsWhatIsLeft(t *testing.T) {
	t.Parallel()
	push := &pushfx.Push{Events: handover.New(awayNotifier{}, nil)}
	e := module.NewEvent{Event: module.Event{JSON: `{"event_id":"$e","room_id":"!r:x","type":"m.room.message"}`, Room: match.Room{MemberCount: 1}}}
	e.Members = []match.Member{{User: "@left:x"}}
	rest, err := newEvent(t.Context(), push, e, "")
	if left, all := module.Left(err); all || !slices.Equal(left, []mxid.UserID{"@left:x"}) || !strings.Contains(string(rest), "@left:x") {
		t.Errorf("left are %v, all: %t, rest %s", left, all, rest)
	}
}

func TestTheClientsOfThePagesGetNoAdvice(t *testing.T) {
	t.Parallel()
	for page, client := range map[string]redis.UniversalClient{"README.md": newRedis(), "module/README.md": newCluster()} {
		defer client.Close()
		if advice := redisclient.Advise(client); len(advice) != 0 {
			t.Errorf("%s: %v", page, advice)
		}
	}
}
