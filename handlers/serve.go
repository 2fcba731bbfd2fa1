package handlers

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"github.com/labstack/echo/v4"
	"go.uber.org/zap"
)

// endpoint answers one request with a 200, or an error.
type endpoint func(ctx context.Context, r request) (answer, error)

// request is what an endpoint answers.
type request struct {
	echo.Context
	who  Requester
	body string // of a PUT or POST: within its limits, not yet parsed
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
	return server{cfg, log}, nil
}

// emptyObject is the answer of every successful change.
var emptyObject = answer{json: "{}"}

// serve makes an endpoint a handler. The deadline runs from when the body has
// arrived. Errors are answered here, in the Matrix form, so that the host's
// error handler has no part in them.
func (s *server) serve(do endpoint) echo.HandlerFunc {
	return func(c echo.Context) error {
		who, found := RequesterFrom(c.Request().Context())
		if !found {
			return s.refuse(c, who, errMissingToken)
		}
		text, err := s.readBody(c)
		if err != nil {
			return s.refuse(c, who, err)
		}
		ctx, cancel := context.WithTimeout(c.Request().Context(), s.cfg.OperationTimeout)
		defer cancel()
		a, err := do(ctx, request{c, who, text})
		if err != nil {
			return s.refuse(c, who, err)
		}
		return a.write(c)
	}
}

// refuse answers an error, and logs it once where it is the server's.
func (s *server) refuse(c echo.Context, who Requester, err error) error {
	status, body := ErrorReply(err)
	gone := errors.Is(c.Request().Context().Err(), context.Canceled)
	if status >= http.StatusInternalServerError && !gone {
		s.log.Error("request failed",
			zap.String("user_id", string(who.User)),
			zap.String("method", c.Request().Method),
			zap.String("route", c.Path()),
			zap.Int("status", status),
			zap.Error(err))
	}
	return c.JSONBlob(status, body)
}
