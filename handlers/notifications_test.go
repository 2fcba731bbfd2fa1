package handlers

import (
	"context"
	"errors"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/fault"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/pushrule"
)

// listed is an UnreadService with a page, and the host's events.
type listed struct {
	module.UnreadService
	page   module.UnreadPage
	events []string
	err    error // of the events
	asked  *module.UnreadQuery
}

func (l listed) List(_ context.Context, user mxid.UserID, q module.UnreadQuery) (module.UnreadPage, error) {
	*l.asked = q
	if user != "@a:b" || q.From == "bad" {
		return module.UnreadPage{}, fault.New(fault.InvalidParam, "The from token is not valid.")
	}
	return l.page, nil
}

func (l listed) Events(_ context.Context, user mxid.UserID, places []module.RoomPosition) ([]string, error) {
	if user != "@a:b" || len(places) != len(l.page.Notifications) {
		return nil, errors.New("asked for others")
	}
	return l.events, l.err
}

func unreadAt(positions ...int64) (all []module.UnreadNotification) {
	for _, position := range positions {
		all = append(all, module.UnreadNotification{
			RoomPosition: module.RoomPosition{Room: "!r:b", Position: position}, Time: time.UnixMilli(1000 + position),
			Actions: []pushrule.Action{`"notify"`, `{"set_tweak":"sound","value":"<b>"}`},
		})
	}
	return all
}

func readAt(position int64) []module.UnreadNotification {
	all := unreadAt(position)
	all[0].IsRead = true
	return all
}

func one(position string) string {
	return `{"actions":["notify",{"set_tweak":"sound","value":"<b>"}],"event":{"event_id":"$` + position +
		`"},"profile_tag":"","read":false,"room_id":"!r:b","ts":100` + position + `}`
}

func TestNotifications(t *testing.T) {
	t.Parallel()
	two := []string{`{"event_id":"$7"}`, `{"event_id":"$3"}`}
	unknown := `{"errcode":"M_UNKNOWN","error":"Internal server error."}`
	for _, test := range []struct {
		name   string
		page   module.UnreadPage
		events []string
		err    error
		status int
		body   string
	}{
		{"none", module.UnreadPage{}, nil, errors.New("not asked"), 200, `{"notifications":[]}`},
		{"all", module.UnreadPage{Notifications: unreadAt(7, 3)}, two, nil, 200, `{"notifications":[` + one("7") + `,` + one("3") + `]}`},
		{"a page", module.UnreadPage{Notifications: unreadAt(7, 3), Next: "next"}, two, nil, 200, `{"notifications":[` + one("7") + `,` + one("3") + `],"next_token":"next"}`},
		{"the first is hidden", module.UnreadPage{Notifications: unreadAt(7, 3)}, []string{"", two[1]}, nil, 200, `{"notifications":[` + one("3") + `]}`},
		{"all are hidden", module.UnreadPage{Notifications: unreadAt(7), Next: "next"}, []string{""}, nil, 200, `{"notifications":[],"next_token":"next"}`},
		{"the host fails", module.UnreadPage{Notifications: unreadAt(7)}, nil, errors.New("no events"), 500, unknown},
		{"too few events", module.UnreadPage{Notifications: unreadAt(7)}, nil, nil, 500, unknown},
		{"an event that is not JSON", module.UnreadPage{Notifications: unreadAt(7)}, []string{"{"}, nil, 500, unknown},
		{"a read one", module.UnreadPage{Notifications: readAt(7)}, two[:1], nil, 200, `{"notifications":[` + strings.Replace(one("7"), `"read":false`, `"read":true`, 1) + `]}`},
	} {
		t.Run(test.name, func(t *testing.T) {
			host := listed{page: test.page, events: test.events, err: test.err, asked: new(module.UnreadQuery)}
			h := Handler(byHeader, zap.NewNop(), newServer(t, zap.NewNop()).Notifications(host, host))
			for _, version := range []string{"v3", "r0"} {
				a := answerTo(h, "GET /_matrix/client/"+version+"/notifications", "@a:b")
				if a.Code != test.status || a.Body.String() != test.body {
					t.Errorf("got %d %s\nwant %d %s", a.Code, a.Body, test.status, test.body)
				}
			}
		})
	}
}

func TestParametersOfNotifications(t *testing.T) {
	t.Parallel()
	for query, want := range map[string]module.UnreadQuery{
		"":                              {},
		"limit=1":                       {Limit: 1},
		"limit=7&from=abc":              {Limit: 7, From: "abc"},
		"only=highlight&x=y":            {OnlyHighlights: true},
		"only=&from=":                   {},
		"limit=99999999999999999999999": {Limit: 1<<63 - 1},
	} {
		host := listed{asked: new(module.UnreadQuery)}
		h := Handler(byHeader, zap.NewNop(), newServer(t, zap.NewNop()).Notifications(host, host))
		if a := answerTo(h, "GET /_matrix/client/v3/notifications?"+query, "@a:b"); a.Code != 200 || *host.asked != want {
			t.Errorf("%q: got %d %s, asked for %+v", query, a.Code, a.Body, *host.asked)
		}
	}
	for _, query := range []string{
		"limit=0", "limit=-1", "limit=", "limit=x", "limit=1.5", "limit=-99999999999999999999999", "from=bad", "only=other", "only=Highlight", "limit=%zz",
	} {
		host := listed{asked: new(module.UnreadQuery)}
		h := Handler(byHeader, zap.NewNop(), newServer(t, zap.NewNop()).Notifications(host, host))
		if a := answerTo(h, "GET /_matrix/client/v3/notifications?"+query, "@a:b"); a.Code != 400 || !strings.Contains(a.Body.String(), "M_INVALID_PARAM") {
			t.Errorf("%q: got %d %s", query, a.Code, a.Body)
		}
	}
}

func TestTheRestOfNotificationsIsNotServed(t *testing.T) {
	t.Parallel()
	host := listed{asked: new(module.UnreadQuery)}
	h := Handler(byHeader, zap.NewNop(), newServer(t, zap.NewNop()).Notifications(host, host))
	for request, want := range map[string]struct {
		status int
		owned  bool
	}{
		"GET /_matrix/client/v3/notifications":    {401, true},
		"POST /_matrix/client/v3/notifications":   {405, true},
		"GET /_matrix/client/v3/%6eotifications":  {404, true},
		"GET /_matrix/client/v3/notifications/":   {404, false},
		"GET /_matrix/client/v3/notifications/x":  {404, false},
		"GET /_matrix/client/v1/notifications":    {404, false},
		"GET /_matrix/client/r0/notifications?x=": {401, true},
	} {
		method, path, _ := strings.Cut(request, " ")
		r := httptest.NewRequest(method, path, nil)
		if a := answerTo(h, request, ""); a.Code != want.status || OwnsNotifications(r) != want.owned || Owns(r) {
			t.Errorf("%s: got %s, owned is %t", request, strconv.Itoa(a.Code), OwnsNotifications(r))
		}
	}
}
