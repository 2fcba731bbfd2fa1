package pushfx_test

import (
	"context"
	"net"
	"net/http"
	"slices"
	"testing"

	"github.com/labstack/echo/v4"
	"github.com/redis/go-redis/v9"
	"go.uber.org/fx"
	"go.uber.org/fx/fxtest"

	"github.com/pushfx/pushfx"
	"github.com/pushfx/pushfx/module"
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

type (
	stubNotifier struct{ module.Notifier }
	stubUnread   struct{ module.UnreadService }
)

func (stubNotifier) Decide(context.Context, module.Event, []match.Member) (module.Decisions, error) {
	return nil, &module.LeftError{Users: []mxid.UserID{"@undecided:x"}}
}

func (stubNotifier) Notify(context.Context, module.Event, module.Decisions) error {
	return &module.LeftError{Users: []mxid.UserID{"@unsent:x"}}
}

func (stubUnread) Add(context.Context, module.Place, module.Decisions) error {
	return &module.LeftError{Users: []mxid.UserID{"@uncounted:x"}}
}

// The first call of the README names all users to repeat it for.
func TestTheCallOfThePageNamesTheUsersThatAreLeft(t *testing.T) {
	t.Parallel()
	push := &pushfx.Push{Notifier: stubNotifier{}, Unread: stubUnread{}}
	left, all := module.Left(newEvent(t.Context(), push, module.Place{}, module.Event{}, nil))
	if slices.Sort(left); all || !slices.Equal(left, []mxid.UserID{"@uncounted:x", "@undecided:x", "@unsent:x"}) {
		t.Errorf("left are %v, all: %t", left, all)
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
