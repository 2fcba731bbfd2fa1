package pushfx_test

import (
	"net"
	"net/http"
	"testing"

	"github.com/labstack/echo/v4"
	"github.com/redis/go-redis/v9"
	"go.uber.org/fx"
	"go.uber.org/fx/fxtest"

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

func TestTheClientsOfThePagesGetNoAdvice(t *testing.T) {
	t.Parallel()
	for page, client := range map[string]redis.UniversalClient{"README.md": newRedis(), "module/README.md": newCluster()} {
		defer client.Close()
		if advice := redisclient.Advise(client); len(advice) != 0 {
			t.Errorf("%s: %v", page, advice)
		}
	}
}
