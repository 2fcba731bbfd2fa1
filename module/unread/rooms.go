package unread

import (
	"context"
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
	for _, room := range rooms {
		if !isID(room, "!") {
			return nil, errRoom
		}
	}
	record, err := s.load(ctx, user, rooms...)
	if err != nil {
		return nil, err
	}
	counts = make(map[string]module.RoomCounts, len(rooms))
	for _, room := range rooms {
		counts[room] = module.RoomCounts{}
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

// Counts implements [module.Unread].
func (s *Service) Counts(ctx context.Context, users []mxid.UserID) map[mxid.UserID]module.Result[module.Counts] {
	ctx, end := s.observer.Begin(ctx, s.counts)
	all := make(map[mxid.UserID]module.Result[module.Counts], len(users))
	var failed error
	s.foldAll(ctx, users, nil, func(user mxid.UserID, record fold.Record, err error) {
		all[user] = module.Result[module.Counts]{Value: s.badge(record), Err: err}
		failed = firstOf(failed, err)
	})
	end(observe.Outcome{Err: failed})
	return all
}

func (s *Service) badge(record fold.Record) (counts module.Counts) {
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

// AreRead implements [module.Unread]. An event without a place, or of a user whose list
// cannot be loaded, counts as unread.
func (s *Service) AreRead(ctx context.Context, events []module.UserEvent) []bool {
	ctx, end := s.observer.Begin(ctx, s.areRead)
	rooms, byUser := map[mxid.UserID][]string{}, map[mxid.UserID][]int{}
	var users []mxid.UserID
	for i, e := range events {
		if e.Position <= 0 {
			continue
		}
		if byUser[e.User] == nil {
			users = append(users, e.User)
		}
		rooms[e.User], byUser[e.User] = append(rooms[e.User], e.RoomID), append(byUser[e.User], i)
	}
	are := make([]bool, len(events))
	var failed error
	s.foldAll(ctx, users, rooms, func(user mxid.UserID, record fold.Record, err error) {
		for _, i := range byUser[user] {
			are[i] = record.Rooms()[events[i].RoomID].IsRead(events[i].Thread, events[i].Position)
		}
		failed = firstOf(failed, err)
	})
	end(observe.Outcome{Err: failed})
	return are
}

// recentTime is how long after its newest operation a room is kept by [Service.Retain]: the
// user may have joined it after the host has made the list of rooms.
const recentTime = time.Minute

// Retain implements [module.UnreadService].
func (s *Service) Retain(ctx context.Context, user mxid.UserID, joinedOrInvited []string) (err error) {
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
	var texts []module.UserText
	for id, room := range record.Rooms() {
		if stays[id] || room.Len() == 0 || room.Touched() > now.Add(-recentTime).UnixMilli() {
			continue
		}
		unread := room.Unread()
		op := fold.Op{Kind: fold.Read, Room: id, Thread: fold.All, Position: unread[len(unread)-1].Position, Time: now.UnixMilli()}
		texts = append(texts, module.UserText{User: user, Text: op.Text()})
	}
	return firstOf(s.append(ctx, texts)...)
}

// load folds a user's list, or only its operations in some rooms.
func (s *Service) load(ctx context.Context, user mxid.UserID, rooms ...string) (record fold.Record, err error) {
	if err := checkUser(user); err != nil {
		return fold.Record{}, err
	}
	s.foldAll(ctx, []mxid.UserID{user}, map[mxid.UserID][]string{user: rooms}, func(_ mxid.UserID, r fold.Record, e error) {
		record, err = r, e
	})
	return record, err
}

// foldAll calls do for each user once, and compacts long lists. Rooms has the needed
// rooms of each user; no rooms means all.
func (s *Service) foldAll(ctx context.Context, users []mxid.UserID, rooms map[mxid.UserID][]string, do func(mxid.UserID, fold.Record, error)) {
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

func foldList(list module.Result[[]string], rooms []string) (fold.Record, error) {
	if list.Err != nil {
		return fold.Record{}, list.Err
	}
	record, err := fold.Fold(list.Value, rooms...)
	if err != nil {
		err = fault.Wrap(fault.Database, "The stored unread counts cannot be read.", err)
	}
	return record, err
}
