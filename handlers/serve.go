package handlers

import (
	"context"
	"fmt"
	"net/http"

	"github.com/labstack/echo/v4"
	"go.uber.org/zap"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/fault"
	"github.com/pushfx/pushfx/module/observe"
)

type endpoint func(ctx context.Context, r request) (answer, error)

type request struct {
	echo.Context
	who  Requester
	body body
}

// Server runs the endpoints of all route groups. It is safe for concurrent use.
type Server struct {
	cfg      Config
	observer observe.Observer
	log      *zap.Logger
}

// NewServer reports each request to observer, which may be nil. A nil log means no logs. It
// fails if cfg is invalid.
func NewServer(cfg Config, observer observe.Observer, log *zap.Logger) (*Server, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("handlers: %w", err)
	}
	if log == nil {
		log = zap.NewNop()
	}
	return &Server{cfg, observe.Or(observer), log}, nil
}

// PushRules returns the nine push rule endpoints.
func (s *Server) PushRules(rules module.RuleService) RouteGroup { return &pushRuleRoutes{s, rules} }

// Pushers returns the three pusher endpoints.
func (s *Server) Pushers(pushers module.PusherService) RouteGroup { return &pusherRoutes{s, pushers} }

// AccountData returns GET, PUT and DELETE of m.push_rules as account data, global and of
// a room. PUT and DELETE are refused, since push rules have their own API (Matrix
// specification, "Client Config", "Server Behaviour"). A room has none: GET is 404. The
// host serves all other types.
func (s *Server) AccountData(host module.HostService) RouteGroup { return &accountDataRoutes{s, host} }

// Notifications returns GET /notifications, for hosts with unread counts.
func (s *Server) Notifications(unread module.UnreadService, events module.NotifiedEvents) RouteGroup {
	return &notificationRoutes{s, unread, events}
}

// Unsubscribe returns the page that stops a user's mails, for hosts that send mail. Links lead to
// it, so it asks for no user: it ignores the host's auth.
func (s *Server) Unsubscribe(host module.HostService) RouteGroup { return &unsubscribeRoutes{s, host} }

var emptyObject = answer{json: "{}"}

// serve turns an endpoint into a handler. The deadline starts when the body has arrived.
// Errors are answered here, so they never reach the host's error handler.
func (s *Server) serve(op *observe.Operation, do endpoint) echo.HandlerFunc {
	return s.observe(op, func(ctx context.Context, c echo.Context) (refused, err error) {
		who, found := RequesterFrom(ctx)
		if !found {
			return s.refuse(c, who, ErrMissingToken)
		}
		sent := s.readBody(c)
		ctx, cancel := context.WithTimeout(ctx, s.cfg.RequestTimeout)
		defer cancel()
		a, err := do(ctx, request{c, who, sent})
		if err != nil {
			return s.refuse(c, who, err)
		}
		return nil, a.write(c)
	})
}

func (s *Server) observe(op *observe.Operation, handle func(context.Context, echo.Context) (refused, err error)) echo.HandlerFunc {
	return func(c echo.Context) error {
		ctx, end := s.observer.Begin(c.Request().Context(), op)
		refused, err := handle(ctx, c)
		end(observe.Outcome{Status: c.Response().Status, Err: refused})
		return err
	}
}

// refuse answers a request with an error. Failed is the error of writing the answer.
func (s *Server) refuse(c echo.Context, who Requester, err error) (refused, failed error) {
	_, body := ErrorReply(err)
	return err, c.JSONBlob(s.logRefused(c, who, err), body)
}

// logRefused logs the error of a refused request if it is the server's, unless the client has
// hung up. It returns the status.
func (s *Server) logRefused(c echo.Context, who Requester, err error) (status int) {
	status, _ = ErrorReply(err)
	gone := observe.Outcome{Err: err}.CallerGone(c.Request().Context())
	if status >= http.StatusInternalServerError && !gone {
		s.log.Error("request failed",
			zap.String("user_id", string(who.User)),
			zap.String("method", c.Request().Method),
			zap.String("route", c.Path()),
			zap.Int("status", status),
			zap.String("error", fault.Details(err)))
	}
	return status
}
