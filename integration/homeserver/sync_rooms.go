package main

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	"github.com/pushfx/pushfx/integration/homeserver/rooms"
	"github.com/pushfx/pushfx/module/mxid"
)

// timelineLimit is how many events of a room a sync delivers at most.
const timelineLimit = 20

// roomsBatch is the part of a sync about rooms. Invitations are not delivered.
type roomsBatch struct {
	Join   map[string]*roomBatch `json:"join"`
	Invite struct{}              `json:"invite"`
	Knock  struct{}              `json:"knock"`
	Leave  map[string]*roomBatch `json:"leave"`

	ignored string // the user's list of ignored users, if it may have changed
}

func newRoomsBatch() roomsBatch {
	return roomsBatch{Join: map[string]*roomBatch{}, Leave: map[string]*roomBatch{}}
}

func (b *roomsBatch) isEmpty() bool { return len(b.Join)+len(b.Leave) == 0 && b.ignored == "" }

type roomBatch struct {
	Timeline  timeline                `json:"timeline"`
	Ephemeral *events[receiptEvent]   `json:"ephemeral,omitempty"` // the user's own receipts
	State     events[json.RawMessage] `json:"state"`
	Summary   *roomSummary            `json:"summary,omitempty"`
	Unread    *threadUnread           `json:"unread_notifications,omitempty"`
	Threads   map[string]threadUnread `json:"unread_thread_notifications,omitempty"` // by the event id of the root
}

type threadUnread struct {
	Notifications int `json:"notification_count"`
	Highlights    int `json:"highlight_count"`
}

type timeline struct {
	Events  []json.RawMessage `json:"events"`
	Limited bool              `json:"limited"`
}

type roomSummary struct {
	Joined  int `json:"m.joined_member_count"`
	Invited int `json:"m.invited_member_count"`
}

// readRooms returns the user's rooms that changed since a token, with their new events, and the next token. For an
// empty token, or one that is too old, it returns all rooms with their newest events.
func (s *syncs) readRooms(ctx context.Context, user mxid.UserID, r syncRequest) (batch roomsBatch, token string, err error) {
	batch = newRoomsBatch()
	changes, err := s.rooms.Since(ctx, user, r.stream)
	if err != nil {
		return batch, r.stream, err
	}
	if changes.AccountData && r.ignored {
		lists, err := s.sessions.Ignored(ctx, user)
		if err != nil {
			return batch, r.stream, err
		}
		batch.ignored = lists[user]
	}
	var stays []string
	for room, news := range changes.Rooms {
		members, err := s.rooms.Members(ctx, room)
		if err != nil {
			return newRoomsBatch(), r.stream, err
		}
		is := members[user]
		if is == rooms.Joined || is == rooms.Invited {
			stays = append(stays, room)
		}
		if is == rooms.Invited || changes.All && is != rooms.Joined {
			continue
		}
		one, err := s.readRoom(ctx, room, members, r.limit, changes.All, news)
		if err != nil {
			return newRoomsBatch(), r.stream, err
		}
		if is == rooms.Joined {
			batch.Join[room] = one
		} else {
			batch.Leave[room] = one
		}
	}
	if r.stream == "" { // a first sync
		logFailed(s.log, "sync", user, s.unread.Retain(ctx, user, stays...))
	}
	if err := s.addReceipts(ctx, user, batch.Join); err != nil {
		return newRoomsBatch(), r.stream, err
	}
	s.addCounts(ctx, user, r.threads, batch.Join)
	return batch, changes.Token, nil
}

// receiptEvent has the times of receipts, by event, kind and user (Matrix specification,
// "Receipts").
type receiptEvent struct {
	Type    string                                               `json:"type"`
	Content map[string]map[string]map[mxid.UserID]receiptContent `json:"content"`
}

type receiptContent struct {
	Time   int64  `json:"ts"`
	Thread string `json:"thread_id,omitempty"`
}

// addReceipts adds the user's own receipts to the rooms. The host does not deliver other users' receipts.
func (s *syncs) addReceipts(ctx context.Context, user mxid.UserID, joined map[string]*roomBatch) error {
	if len(joined) == 0 {
		return nil
	}
	all, err := s.rooms.Receipts(ctx, user)
	if err != nil {
		return err
	}
	for room, one := range joined {
		one.Ephemeral = &events[receiptEvent]{[]receiptEvent{}}
		for _, r := range all[room] {
			one.Ephemeral.Events = append(one.Ephemeral.Events, receiptEvent{"m.receipt", map[string]map[string]map[mxid.UserID]receiptContent{
				r.Event: {r.Kind: {user: {r.Time.UnixMilli(), r.Thread}}},
			}})
		}
	}
	return nil
}

// addCounts adds the unread counts to the rooms, after their events were chosen. If it cannot read the counts, it
// leaves them out, and clients keep the last counts.
func (s *syncs) addCounts(ctx context.Context, user mxid.UserID, byThread bool, joined map[string]*roomBatch) {
	if len(joined) == 0 {
		return
	}
	counts, err := s.unread.Rooms(ctx, user, slices.Collect(maps.Keys(joined))...)
	if err != nil {
		logFailed(s.log, "sync", user, err)
		return
	}
	for room, one := range joined {
		of := counts[room]
		if !byThread {
			sum := threadUnread(of.Sum())
			one.Unread = &sum
			continue
		}
		main := threadUnread(of.Main)
		one.Unread = &main
		one.Threads = map[string]threadUnread{}
		for root, thread := range of.Threads {
			one.Threads[root] = threadUnread(thread)
		}
	}
}

func (s *syncs) readRoom(
	ctx context.Context, room string, members rooms.Members, limit int, newest bool, news []string,
) (*roomBatch, error) {
	one := &roomBatch{
		Timeline: timeline{Events: []json.RawMessage{}}, State: events[json.RawMessage]{[]json.RawMessage{}},
		Summary: &roomSummary{len(members.Users(rooms.Joined)), len(members.Users(rooms.Invited))},
	}
	if !newest && len(news) == 0 {
		return one, nil // only counts changed
	}
	list, limited, err := s.rooms.Timeline(ctx, room, limit, news...)
	if err != nil {
		return nil, fmt.Errorf("room %s: %w", room, err)
	}
	one.Timeline.Limited = limited
	for _, e := range list {
		one.Timeline.Events = append(one.Timeline.Events, json.RawMessage(e.JSON))
	}
	return one, nil
}
