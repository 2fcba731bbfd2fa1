package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"

	"github.com/labstack/echo/v4"
	"github.com/redis/go-redis/v9"
)

// floorGreeting precedes the address of the floor.
const floorGreeting = "floor listens on "

// serveFloor is the process of the floor: a bare echo server with one handler for each kind of access to Redis that an
// endpoint needs at least. It knows no users and checks nothing. It serves until ctx ends. The argument is the address
// of the Redis.
func serveFloor(ctx context.Context, args []string) error {
	f := &floor{redis.NewClient(&redis.Options{Addr: args[0], ContextTimeoutEnabled: true})}
	defer f.client.Close()
	e := echo.New()
	e.GET("/get", serve(f.get))
	e.PUT("/getset", serve(f.getSet))
	e.GET("/hgetall", serve(f.hashGetAll))
	e.POST("/hgethset", serve(f.hashGetSet))
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	fmt.Println(floorGreeting + listener.Addr().String())
	server := &http.Server{Handler: e}
	defer context.AfterFunc(ctx, func() { server.Close() })()
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// access reads or changes a key. Body is the body of the request.
type access func(ctx context.Context, key, field string, body []byte) (read []byte, err error)

// serve returns a handler that takes the key, the field and the length of its answer from the query. The length is that
// of the endpoint's answer.
func serve(do access) echo.HandlerFunc {
	return func(c echo.Context) error {
		body, err := io.ReadAll(c.Request().Body)
		if err != nil {
			return err
		}
		text, err := do(c.Request().Context(), c.QueryParam("key"), c.QueryParam("field"), body)
		if err != nil {
			return err
		}
		n, err := strconv.Atoi(c.QueryParam("bytes"))
		if err != nil {
			return err
		}
		return c.Blob(http.StatusOK, echo.MIMEApplicationJSON, text[:min(n, len(text))])
	}
}

type floor struct{ client *redis.Client }

func (f *floor) get(ctx context.Context, key, _ string, _ []byte) ([]byte, error) {
	return f.client.Get(ctx, key).Bytes()
}

func (f *floor) hashGetAll(ctx context.Context, key, _ string, _ []byte) (all []byte, err error) {
	fields, err := f.client.HGetAll(ctx, key).Result()
	for _, value := range fields {
		all = append(all, value...)
	}
	return all, err
}

// getSet sends a GET and then a SET of the same bytes.
func (f *floor) getSet(ctx context.Context, key, _ string, _ []byte) ([]byte, error) {
	text, err := f.client.Get(ctx, key).Bytes()
	if err != nil {
		return nil, err
	}
	return []byte("{}"), f.client.Set(ctx, key, text, 0).Err()
}

// hashGetSet sends an HGET and then an HSET of the same field. If the field is missing, it
// stores the body.
func (f *floor) hashGetSet(ctx context.Context, key, field string, body []byte) ([]byte, error) {
	value, err := f.client.HGet(ctx, key, field).Bytes()
	if errors.Is(err, redis.Nil) {
		value, err = body, nil
	}
	if err != nil {
		return nil, err
	}
	return []byte("{}"), f.client.HSet(ctx, key, field, value).Err()
}
