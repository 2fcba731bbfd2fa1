package delivery

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"

	"github.com/redis/go-redis/v9"

	"github.com/pushfx/pushfx"
	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/delivery/dialguard"
)

// greeting comes before the address where a host listens.
const greeting = "host listens on "

// loopback are the addresses of the gateways here.
var loopback = netip.MustParsePrefix("127.0.0.0/8")

// config is that of all hosts.
func config() pushfx.Config {
	c := pushfx.DefaultConfig()
	c.PusherPolicy.AllowHTTP = true
	c.PusherPolicy.AllowedPrefixes = []netip.Prefix{loopback}
	c.Delivery.MaxHeldBytes, c.Changes.MaxUsers = 1<<30, 1<<20 // as many as there are here
	return c
}

// newPush returns the module with delivery. It sends only where it is run.
func newPush(ctx context.Context, client redis.UniversalClient) (*pushfx.Push, error) {
	push, err := pushfx.New(client, config(), pushfx.Options{Delivery: &pushfx.DeliveryOptions{}})
	if err != nil {
		return nil, err
	}
	return push, push.Check(ctx)
}

// serveHost is the process of a host, which begins to send when it is asked to, and
// which can be a bare client instead. It runs until ctx ends.
func serveHost(ctx context.Context, redisAddress string) error {
	client := redis.NewClient(&redis.Options{Addr: redisAddress, ContextTimeoutEnabled: true})
	defer client.Close()
	push, err := newPush(ctx, client)
	if err != nil {
		return err
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	var running sync.WaitGroup
	defer running.Wait()
	mux := http.NewServeMux()
	mux.HandleFunc("POST /run", func(http.ResponseWriter, *http.Request) {
		running.Go(func() { push.Run(ctx) })
	})
	mux.HandleFunc("POST /bare", func(w http.ResponseWriter, r *http.Request) {
		if err := serveBare(r); err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
		}
	})
	mux.HandleFunc("POST /decide", func(w http.ResponseWriter, r *http.Request) {
		if err := decideForAll(r, push.Notifier); err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
		}
	})
	mux.HandleFunc("GET /heap", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, heap()) })
	server := &http.Server{Handler: mux}
	defer context.AfterFunc(ctx, func() { server.Close() })()
	fmt.Println(greeting + listener.Addr().String())
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// decideForAll decides for as many users as the query says.
func decideForAll(r *http.Request, notifier module.Notifier) error {
	const some = 10_000
	n, err := strconv.Atoi(r.FormValue("users"))
	for first := 0; first < n && err == nil; first += some {
		_, err = notifier.Decide(r.Context(), message(0), members(first, min(some, n-first)))
	}
	return err
}

// heap is what is in use after a collection.
func heap() int64 {
	runtime.GC()
	runtime.GC() // what had a finalizer
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// bareWorkers is how many requests the bare client has under way: as many as
// delivery has to one gateway.
const bareWorkers = 64

// serveBare posts the body of the request as often, and to where, as its query
// says.
func serveBare(r *http.Request) error {
	n, err := strconv.Atoi(r.FormValue("n"))
	if err != nil {
		return err
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return err
	}
	return postBare(r.FormValue("url"), body, n)
}

// postBare does what sending cannot do without: it posts over connections that
// are kept, and reads the answers to their end.
func postBare(url string, body []byte, n int) error {
	client := dialguard.New(loopback).Client(bareWorkers)
	defer client.CloseIdleConnections()
	var left atomic.Int64
	left.Store(int64(n))
	errs := make([]error, bareWorkers)
	var working sync.WaitGroup
	for i := range errs {
		working.Go(func() {
			for left.Add(-1) >= 0 && errs[i] == nil {
				errs[i] = postOne(client, url, body)
			}
		})
	}
	working.Wait()
	return errors.Join(errs...)
}

func postOne(client *http.Client, url string, body []byte) error {
	reply, err := client.Post(url, "application/json", bytes.NewReader(body))
	if err != nil {
		return err
	}
	defer reply.Body.Close()
	_, err = io.Copy(io.Discard, reply.Body)
	return err
}
