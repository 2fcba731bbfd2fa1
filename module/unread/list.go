package unread

import (
	"cmp"
	"context"
	"encoding/base64"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/fault"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/observe"
	"github.com/pushfx/pushfx/module/pushrule"
	"github.com/pushfx/pushfx/module/strictjson"
	"github.com/pushfx/pushfx/module/unread/fold"
)

const (
	defaultLimit = 50
	maxLimit     = 500
)

var (
	errLimit = fault.New(fault.InvalidParam, "The limit must be above 0.")
	errFrom  = fault.New(fault.InvalidParam, "The from token is not valid.")
)

// listed is a notification with its room.
type listed struct {
	room string
	fold.Notification
	isRead bool

	// sortTime is the earliest time of the room's notifications from this one on: the hosts
	// measure the clock of the stores, so their times differ by some milliseconds.
	sortTime int64
}

// newestFirst orders by time, and those of a room by position.
func newestFirst(a, b listed) int {
	if a.room == b.room {
		return cmp.Compare(b.Position, a.Position)
	}
	return cmp.Or(cmp.Compare(b.sortTime, a.sortTime), cmp.Compare(a.room, b.room))
}

// entries returns the unread notifications of a room, and the highlights that have been
// read, the newest first.
func entries(id string, room *fold.Room) []listed {
	all := make([]listed, 0, len(room.Unread())+len(room.Seen()))
	for _, n := range room.Unread() {
		all = append(all, listed{room: id, Notification: n})
	}
	for _, n := range room.Seen() {
		all = append(all, listed{room: id, Notification: n, isRead: true})
	}
	slices.SortFunc(all, newestFirst)
	for i := range all {
		if all[i].sortTime = all[i].Time; i > 0 {
			all[i].sortTime = min(all[i].Time, all[i-1].sortTime)
		}
	}
	return all
}

// List implements [module.UnreadService].
func (s *Service) List(ctx context.Context, user mxid.UserID, q module.UnreadQuery) (page module.UnreadPage, err error) {
	ctx, end := s.observer.Begin(ctx, s.list)
	defer func() { end(observe.Outcome{Err: err}) }()
	if q.Limit < 0 {
		return page, errLimit
	}
	last, err := readToken(q.From)
	if err != nil {
		return page, err
	}
	record, err := s.load(ctx, user)
	if err != nil {
		return page, err
	}
	var all []listed
	for id, room := range record.Rooms() {
		for _, e := range entries(id, room) {
			if (e.Highlight || !q.OnlyHighlights) && (last == nil || newestFirst(*last, e) < 0) {
				all = append(all, e)
			}
		}
	}
	slices.SortFunc(all, newestFirst)
	limit := min(cmp.Or(q.Limit, defaultLimit), maxLimit)
	if len(all) > limit {
		all = all[:limit]
		page.Next = all[limit-1].token()
	}
	page.Notifications = make([]module.UnreadNotification, len(all))
	for i, e := range all {
		page.Notifications[i] = e.notification()
	}
	return page, nil
}

func (e listed) notification() module.UnreadNotification {
	n := module.UnreadNotification{
		RoomPosition: module.RoomPosition{Room: e.room, Position: e.Position},
		Thread:       e.Thread, Highlight: e.Highlight, IsRead: e.isRead, Time: time.UnixMilli(e.Time),
	}
	w := strictjson.Walk(e.Actions)
	if w.Next() == '[' {
		for range w.Array() {
			n.Actions = append(n.Actions, pushrule.Action(w.Skip()))
		}
	}
	return n
}

// token returns the token of the page after e.
func (e listed) token() string {
	return base64.RawURLEncoding.EncodeToString(fmt.Appendf(nil, "1 %d %d %s", e.sortTime, e.Position, e.room))
}

// readToken returns the last entry before the page, or nil for the first page.
func readToken(token string) (*listed, error) {
	if token == "" {
		return nil, nil
	}
	text, err := base64.RawURLEncoding.DecodeString(token)
	fields := strings.SplitN(string(text), " ", 4)
	if err != nil || len(fields) != 4 || fields[0] != "1" || !isID(fields[3], "!") {
		return nil, errFrom
	}
	e := &listed{room: fields[3]}
	var errs [2]error
	e.sortTime, errs[0] = strconv.ParseInt(fields[1], 10, 64)
	e.Position, errs[1] = strconv.ParseInt(fields[2], 10, 64)
	if firstOf(errs[:]...) != nil {
		return nil, errFrom
	}
	return e, nil
}
