package pushfx_test

import (
	"context"
	"log"
	"net/http"
	"time"

	"github.com/redis/go-redis/v9"
	"go.uber.org/zap"

	"github.com/pushfx/pushfx"
	"github.com/pushfx/pushfx/handlers"
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
