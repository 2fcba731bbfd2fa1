package unread

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/fault"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/observe"
	"github.com/pushfx/pushfx/module/unread/fold"
)

// Rooms implements [module.UnreadService].
func (s *Service) Rooms(ctx context.Context, user mxid.UserID, rooms ...string) (counts map[string]module.RoomCounts, err error) {
	ctx, end := s.observer.Begin(ctx, s.rooms)
	defer func() { end(observe.Outcome{Err: err}) }()
	record, err := s.load(ctx, user, rooms...)
	if err != nil {
		return nil, err
	}
	counts = make(map[string]module.RoomCounts, len(rooms))
	for _, room := range rooms {
		if isID(room, "!") {
			counts[room] = module.RoomCounts{}
		}
	}
	for id, room := range record.Rooms() {
		if room.Len() > 0 {
			counts[id] = countsOf(room)
		}
	}
	return counts, nil
}

func countsOf(room *fold.Room) module.RoomCounts {
	main, byRoot := room.Counts()
	counts := module.RoomCounts{Main: module.ThreadCounts(main)}
	if len(byRoot) > 0 {
		counts.Threads = make(map[string]module.ThreadCounts, len(byRoot))
	}
	for root, thread := range byRoot {
		counts.Threads[root] = module.ThreadCounts(thread)
	}
	return counts
}

// maxStates bounds the time for which [Service.States] waits for lists. A user whose list
// does not come in time must not delay the notifications of other users.
const maxStates = 200 * time.Millisecond

// States implements [module.Unread]. An event without a position is unread.
func (s *Service) States(ctx context.Context, events []module.UserEvent) []module.Result[module.UnreadState] {
	ctx, end := s.observer.Begin(ctx, s.states)
	byUser := map[mxid.UserID][]int{}
	for i, e := range events {
		byUser[e.User] = append(byUser[e.User], i)
	}
	states := make([]module.Result[module.UnreadState], len(events))
	var failed error
	fill := func(user mxid.UserID, record *fold.Record, err error) {
		failed = firstOf(failed, err)
		counts := s.badge(record)
		for _, i := range byUser[user] {
			if states[i].Err = err; err == nil {
				states[i].Value = module.UnreadState{IsRead: isRead(record, events[i]), Counts: &counts}
			}
		}
	}
	for users := range slices.Chunk(slices.Collect(maps.Keys(byUser)), maxLoaded) {
		bound, cancel := context.WithTimeout(ctx, maxStates)
		s.foldAll(bound, users, nil, fill)
		cancel()
	}
	end(observe.Outcome{Err: failed})
	return states
}

func isRead(record *fold.Record, e module.UserEvent) bool {
	return e.Position > 0 && record.Rooms()[e.RoomID].IsRead(e.Thread, e.Position)
}

func (s *Service) badge(record *fold.Record) (counts module.Counts) {
	for _, room := range record.Rooms() {
		switch n := room.Len(); {
		case n > 0 && s.cfg.CountNotifications:
			counts.Unread += n
		case n > 0:
			counts.Unread++
		}
	}
	return counts
}

// recentTime is how long after its newest operation a room is kept by [Service.Retain]: the
// user may have joined it after the host has made the list of rooms. An operation of a
// later time has none: it is from a clock that was wrong.
const recentTime = time.Minute

// Retain implements [module.UnreadService].
func (s *Service) Retain(ctx context.Context, user mxid.UserID, joinedOrInvited ...string) (err error) {
	ctx, end := s.observer.Begin(ctx, s.retain)
	defer func() { end(observe.Outcome{Err: err}) }()
	record, err := s.load(ctx, user)
	if err != nil {
		return err
	}
	stays := make(map[string]bool, len(joinedOrInvited))
	for _, room := range joinedOrInvited {
		stays[room] = true
	}
	now := s.now()
	isRecent := func(at int64) bool { return now.Sub(time.UnixMilli(at)).Abs() < recentTime }
	var texts []module.UserText
	for id, room := range record.Rooms() {
		if stays[id] || room.Len() == 0 || isRecent(room.Touched()) {
			continue
		}
		op := fold.Op{Kind: fold.Read, Room: id, Thread: fold.All, Position: room.Newest(), Time: now.UnixMilli()}
		texts = append(texts, module.UserText{User: user, Text: op.Text()})
	}
	return firstOf(s.append(ctx, texts)...)
}

// load folds a user's list, or only its operations in some rooms.
func (s *Service) load(ctx context.Context, user mxid.UserID, rooms ...string) (record *fold.Record, err error) {
	if err := checkUser(user); err != nil {
		return nil, err
	}
	s.foldAll(ctx, []mxid.UserID{user}, map[mxid.UserID][]string{user: rooms}, func(_ mxid.UserID, r *fold.Record, e error) {
		record, err = r, e
	})
	return record, err
}

// foldAll calls do for each user once, and compacts long lists. Rooms has the needed
// rooms of each user; no rooms means all.
func (s *Service) foldAll(ctx context.Context, users []mxid.UserID, rooms map[mxid.UserID][]string, do func(mxid.UserID, *fold.Record, error)) {
	for some := range slices.Chunk(users, maxLoaded) {
		long, unreadable := map[mxid.UserID][]string{}, 0
		for user, list := range s.store.Load(ctx, some) {
			record, err := foldList(list, rooms[user])
			do(user, record, err)
			switch {
			case isUnreadable(err):
				unreadable++
			case countOps(list.Value) > fewOps:
				long[user] = list.Value
			}
		}
		s.observer.Count(observe.UnreadUnreadable, "", unreadable)
		s.compact(ctx, long)
	}
}

func foldList(list module.Result[[]string], rooms []string) (*fold.Record, error) {
	if list.Err != nil {
		return nil, list.Err
	}
	record, err := fold.Fold(list.Value, rooms...)
	if err != nil {
		err = fault.Wrap(fault.Database, "The stored unread counts cannot be read.", err)
	}
	return record, err
}
