package pushfx_test

import (
	"context"
	"log"
	"net/http"
	"time"

	"github.com/redis/go-redis/v9"
	"go.uber.org/fx"
	"go.uber.org/zap"

	"github.com/pushfx/pushfx"
	"github.com/pushfx/pushfx/handlers"
	"github.com/pushfx/pushfx/module"
)

// A host without fx and echo.
func ExampleNew() {
	ctx := context.Background()
	push, err := pushfx.New(newCluster(), pushfx.DefaultConfig(), pushfx.Options{Log: zap.NewExample()})
	if err != nil {
		log.Fatal(err)
	}
	if err := push.Check(ctx); err != nil { // Redis answers, and can do what is asked of it
		log.Fatal(err)
	}
	go push.Run(ctx) // until the host stops

	matrix := push.Handler(authenticate)
	http.HandleFunc("/_matrix/client/", func(w http.ResponseWriter, r *http.Request) {
		if push.Owns(r) {
			matrix.ServeHTTP(w, r)
			return
		}
		serveOther(w, r) // login, sync and all the rest
	})
}

// The host's accounts and listeners are built of the module's services: the host gives
// a struct whose fields it sets later.
func ExampleOptions() {
	host := &seams{}
	push, err := pushfx.New(newCluster(), pushfx.DefaultConfig(), pushfx.Options{
		Accounts: host, Import: host, Listeners: []module.ChangeListener{host},
		Delivery: &pushfx.DeliveryOptions{Unread: host, Attention: host},
	})
	if err != nil {
		log.Fatal(err)
	}
	server := newServer(push.Host, push.Sync)
	host.Accounts, host.ChangeListener, host.ImportSource = server, server, server
	host.Unread, host.Attention = server, server

	go push.Run(context.Background()) // after that, as the first request
}

// With fx an invoke sets the fields: it runs before the start.
func ExampleModule() {
	host := &seams{}
	fx.New(
		pushfx.Module,
		fx.Provide(zap.NewProduction, newRedis),
		fx.Supply(fx.Annotate(host, fx.As(new(module.Accounts)))),
		fx.Invoke(func(p *pushfx.Push) { host.Accounts = newServer(p.Host, p.Sync) }),
	).Run()
}

// seams are the host's, empty until it has built them. They have no BulkAccounts unless
// the struct has it, too.
type seams struct {
	module.Accounts
	module.ImportSource
	module.ChangeListener
	module.Unread
	module.Attention
}

// newServer builds what the module asks, and what asks the module.
func newServer(module.HostService, module.SyncService) *server { return &server{} }

// server stands for the host.
type server struct{ seams }

// serveOther stands for the host's own endpoints.
func serveOther(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusTeapot) }

// authenticate is the host's own.
func authenticate(r *http.Request) (handlers.Requester, error) {
	if r.Header.Get("Authorization") != "Bearer token" {
		return handlers.Requester{}, handlers.ErrMissingToken
	}
	return handlers.Requester{User: "@alice:example.org", Device: "PHONE"}, nil
}

// newCluster returns the client of a cluster, with the settings that matter.
func newCluster() redis.UniversalClient {
	return redis.NewClusterClient(&redis.ClusterOptions{
		Addrs:                      []string{"10.0.0.1:6379", "10.0.0.2:6379", "10.0.0.3:6379"},
		ContextTimeoutEnabled:      true,                    // honour deadlines
		DialTimeout:                1200 * time.Millisecond, // leave time for a second try
		DialerRetries:              2,
		ReadTimeout:                time.Second,            // the same; less than DialTimeout
		PoolTimeout:                500 * time.Millisecond, // do not queue for a node that is silent
		ClusterStateReloadInterval: time.Second,            // notice a failover soon
	})
}
