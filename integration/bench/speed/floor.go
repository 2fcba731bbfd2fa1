package speed

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

// serveFloor is the process of the floor: a bare echo with one handler for each
// kind of access to Redis that an endpoint cannot do without. It knows no users
// and checks nothing. It serves until ctx ends.
//
// The query names the key, and for how many bytes of what was read are
// answered: as many as the endpoint would.
func serveFloor(ctx context.Context, redisAddress string) error {
	f := &floor{redis.NewClient(&redis.Options{Addr: redisAddress, ContextTimeoutEnabled: true})}
	defer f.client.Close()
	e := echo.New()
	e.GET("/get", f.get)
	e.PUT("/getset", f.getSet)
	e.GET("/hgetall", f.hashGetAll)
	e.POST("/hgethset", f.hashGetSet)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	fmt.Println(greeting + listener.Addr().String())
	server := &http.Server{Handler: e}
	defer context.AfterFunc(ctx, func() { server.Close() })()
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// greeting comes before the address where the floor listens.
const greeting = "floor listens on "

type floor struct{ client *redis.Client }

// get is one GET.
func (f *floor) get(c echo.Context) error {
	text, err := f.client.Get(c.Request().Context(), c.QueryParam("key")).Bytes()
	if err != nil {
		return err
	}
	return answer(c, text)
}

// getSet is a GET and then a SET of the same bytes.
func (f *floor) getSet(c echo.Context) error {
	ctx, key := c.Request().Context(), c.QueryParam("key")
	if _, err := io.ReadAll(c.Request().Body); err != nil {
		return err
	}
	text, err := f.client.Get(ctx, key).Bytes()
	if err != nil {
		return err
	}
	if err := f.client.Set(ctx, key, text, 0).Err(); err != nil {
		return err
	}
	return c.Blob(http.StatusOK, echo.MIMEApplicationJSON, []byte("{}"))
}

// hashGetAll is one HGETALL.
func (f *floor) hashGetAll(c echo.Context) error {
	fields, err := f.client.HGetAll(c.Request().Context(), c.QueryParam("key")).Result()
	if err != nil {
		return err
	}
	var text []byte
	for _, value := range fields {
		text = append(text, value...)
	}
	return answer(c, text)
}

// hashGetSet is a HGET and then a HSET of the same field, of what was sent if there
// was none.
func (f *floor) hashGetSet(c echo.Context) error {
	ctx, key, field := c.Request().Context(), c.QueryParam("key"), c.QueryParam("field")
	body, err := io.ReadAll(c.Request().Body)
	if err != nil {
		return err
	}
	value, err := f.client.HGet(ctx, key, field).Result()
	if errors.Is(err, redis.Nil) {
		value, err = string(body), nil
	}
	if err != nil {
		return err
	}
	if err := f.client.HSet(ctx, key, field, value).Err(); err != nil {
		return err
	}
	return c.Blob(http.StatusOK, echo.MIMEApplicationJSON, []byte("{}"))
}

// answer sends as many bytes as the query wants, at most all.
func answer(c echo.Context, text []byte) error {
	if n, err := strconv.Atoi(c.QueryParam("bytes")); err == nil && n < len(text) {
		text = text[:n]
	}
	return c.Blob(http.StatusOK, echo.MIMEApplicationJSON, text)
}
