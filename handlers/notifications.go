package handlers

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/labstack/echo/v4"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/fault"
	"github.com/pushfx/pushfx/module/pushrule"
	"github.com/pushfx/pushfx/module/strictjson"
)

var _ RouteGroup = (*notificationRoutes)(nil)

const notificationsPath = "/notifications"

type notificationRoutes struct {
	server *Server
	unread module.UnreadService
	events module.NotifiedEvents
}

func (n *notificationRoutes) Register(g *echo.Group, _ Dialect, auth ...echo.MiddlewareFunc) {
	routes := n.server.tree(g, notificationsPath, auth)
	routes.add(routes.root, methods{http.MethodGet: n.list})
}

// OwnsNotifications is [Owns] for [Server.Notifications], which not every host has.
func OwnsNotifications(r *http.Request) bool {
	return slices.ContainsFunc(prefixes, func(prefix string) bool { return r.URL.Path == prefix+notificationsPath })
}

// list serves GET /notifications (Matrix specification, "Listing Notifications"), with
// unread notifications, and the last highlights after they were read.
func (n *notificationRoutes) list(ctx context.Context, r request) (answer, error) {
	q, err := unreadQuery(r.Context)
	if err != nil {
		return answer{}, err
	}
	page, err := n.unread.List(ctx, r.who.User, q)
	if err != nil {
		return answer{}, err
	}
	events, err := n.eventsOf(ctx, r.who, page.Notifications)
	if err != nil {
		return answer{}, err
	}
	dst := append(strictjson.AppendMember([]byte{'{'}, "notifications"), '[')
	for i, event := range events {
		if event == "" {
			continue
		}
		if dst[len(dst)-1] != '[' {
			dst = append(dst, ',')
		}
		dst = appendNotification(dst, page.Notifications[i], event)
	}
	dst = append(dst, ']')
	if page.Next != "" {
		dst = strictjson.AppendString(strictjson.AppendMember(dst, "next_token"), page.Next)
	}
	return answer{json: string(append(dst, '}'))}, nil
}

var (
	errLimit = fault.New(fault.InvalidParam, "The limit must be a number above 0.")
	errOnly  = fault.New(fault.InvalidParam, `The only known value of only is "highlight".`)
)

func unreadQuery(c echo.Context) (q module.UnreadQuery, err error) {
	values, err := query(c)
	if err != nil {
		return q, err
	}
	q.From = values.Get("from")
	switch values.Get("only") {
	case "":
	case "highlight":
		q.OnlyHighlights = true
	default:
		return q, errOnly
	}
	if !values.Has("limit") {
		return q, nil
	}
	q.Limit, err = strconv.Atoi(values.Get("limit"))
	if errors.Is(err, strconv.ErrRange) && !strings.HasPrefix(values.Get("limit"), "-") {
		err = nil // Atoi returned the largest int, which means 500 like any greater number
	}
	if err != nil || q.Limit <= 0 {
		return q, errLimit
	}
	return q, nil
}

func (n *notificationRoutes) eventsOf(ctx context.Context, who Requester, all []module.UnreadNotification) ([]string, error) {
	if len(all) == 0 {
		return nil, nil
	}
	places := make([]module.RoomPosition, len(all))
	for i, one := range all {
		places[i] = one.RoomPosition
	}
	events, err := n.events.Events(ctx, who.User, places)
	if err == nil && len(events) != len(places) {
		err = fmt.Errorf("the host returned %d events for %d notifications", len(events), len(places))
	}
	for i, event := range events {
		if err == nil && event != "" && !strictjson.Valid(event) {
			err = fmt.Errorf("the host's event at position %d is not JSON", places[i].Position)
		}
	}
	return events, err
}

// appendNotification appends a notification with its members in the order of the
// specification. The profile tag is empty: it belongs to a pusher, and the notification
// to all pushers.
func appendNotification(dst []byte, n module.UnreadNotification, event string) []byte {
	dst = pushrule.AppendActions(strictjson.AppendMember(append(dst, '{'), "actions"), n.Actions)
	dst = append(strictjson.AppendMember(dst, "event"), event...)
	dst = strictjson.AppendString(strictjson.AppendMember(dst, "profile_tag"), "")
	dst = strconv.AppendBool(strictjson.AppendMember(dst, "read"), n.IsRead)
	dst = strictjson.AppendString(strictjson.AppendMember(dst, "room_id"), n.Room)
	dst = strconv.AppendInt(strictjson.AppendMember(dst, "ts"), n.Time.UnixMilli(), 10)
	return append(dst, '}')
}
