package handlers

import (
	"context"
	"fmt"
	"net/http"

	"github.com/labstack/echo/v4"
	"go.uber.org/zap"

	"github.com/pushfx/pushfx/module/fault"
	"github.com/pushfx/pushfx/module/observe"
)

// endpoint answers one request with a 200, or an error.
type endpoint func(ctx context.Context, r request) (answer, error)

// request is what an endpoint answers.
type request struct {
	echo.Context
	who  Requester
	body body
}

// server runs endpoints: the one place that finds the requester, sets the
// deadline, replies and logs.
type server struct {
	cfg Config
	log *zap.Logger
}

func newServer(cfg Config, log *zap.Logger) (server, error) {
	if err := cfg.Validate(); err != nil {
		return server{}, fmt.Errorf("handlers: %w", err)
	}
	cfg.Observer = observe.Or(cfg.Observer)
	return server{cfg, log}, nil
}

// emptyObject is the answer of every successful change.
var emptyObject = answer{json: "{}"}

// serve makes an endpoint a handler. The deadline runs from when the body has
// arrived. Errors are answered here, in the Matrix form, so that the host's
// error handler has no part in them.
func (s *server) serve(op *observe.Operation, do endpoint) echo.HandlerFunc {
	return s.observe(op, func(ctx context.Context, c echo.Context) (refused, err error) {
		who, found := RequesterFrom(ctx)
		if !found {
			return s.refuse(c, who, ErrMissingToken)
		}
		sent := s.readBody(c)
		ctx, cancel := context.WithTimeout(ctx, s.cfg.OperationTimeout)
		defer cancel()
		a, err := do(ctx, request{c, who, sent})
		if err != nil {
			return s.refuse(c, who, err)
		}
		return nil, a.write(c)
	})
}

// observe tells the observer of each request. Handle also returns the error that
// it has answered.
func (s *server) observe(op *observe.Operation, handle func(context.Context, echo.Context) (refused, err error)) echo.HandlerFunc {
	return func(c echo.Context) error {
		ctx, end := s.cfg.Observer.Begin(c.Request().Context(), op)
		refused, err := handle(ctx, c)
		end(observe.Outcome{Status: c.Response().Status, Err: refused})
		return err
	}
}

// refuse answers an error, and logs it once if it is the server's and the client
// is still there. It returns the error, and what went wrong with the answer.
func (s *server) refuse(c echo.Context, who Requester, err error) (refused, failed error) {
	status, body := ErrorReply(err)
	gone := observe.Outcome{Err: err}.CallerGone(c.Request().Context())
	if status >= http.StatusInternalServerError && !gone {
		s.log.Error("request failed",
			zap.String("user_id", string(who.User)),
			zap.String("method", c.Request().Method),
			zap.String("route", c.Path()),
			zap.Int("status", status),
			zap.String("error", fault.Details(err)))
	}
	return err, c.JSONBlob(status, body)
}
