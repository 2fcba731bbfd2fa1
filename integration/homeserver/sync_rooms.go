package main

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	"github.com/pushfx/pushfx/integration/homeserver/rooms"
	"github.com/pushfx/pushfx/integration/homeserver/sessions"
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

	global []accountDataEvent // the user's global account data that changed
}

func newRoomsBatch() roomsBatch {
	return roomsBatch{Join: map[string]*roomBatch{}, Leave: map[string]*roomBatch{}}
}

func (b *roomsBatch) isEmpty() bool { return len(b.Join)+len(b.Leave)+len(b.global) == 0 }

type roomBatch struct {
	Timeline  timeline                 `json:"timeline"`
	Ephemeral *events[receiptEvent]    `json:"ephemeral,omitempty"` // the user's own receipts
	Data      events[accountDataEvent] `json:"account_data"`
	State     events[stateEvent]       `json:"state"`
	Summary   *roomSummary             `json:"summary,omitempty"`
	Unread    *threadUnread            `json:"unread_notifications,omitempty"`
	Threads   map[string]threadUnread  `json:"unread_thread_notifications,omitempty"` // by the event id of the root
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
	Joined  int           `json:"m.joined_member_count"`
	Invited int           `json:"m.invited_member_count"`
	Heroes  []mxid.UserID `json:"m.heroes"`
}

// readRooms returns the user's rooms that changed since a token, with their new events, and the next token. For an
// empty token, or one that is too old, it returns all rooms with their newest events.
func (a *api) readRooms(ctx context.Context, user mxid.UserID, r syncRequest) (batch roomsBatch, token string, err error) {
	batch = newRoomsBatch()
	changes, err := a.rooms.Since(ctx, user, r.stream)
	if err != nil {
		return batch, r.stream, err
	}
	for room := range changes.AccountData {
		if _, found := changes.Rooms[room]; !found && room != "" {
			changes.Rooms[room] = nil
		}
	}
	var stays []string
	for room, news := range changes.Rooms {
		now, err := a.rooms.Room(ctx, room, "")
		if err != nil {
			return newRoomsBatch(), r.stream, err
		}
		is := now.Members[user]
		if is == rooms.Joined || is == rooms.Invited {
			stays = append(stays, room)
		}
		if is == rooms.Invited || is != rooms.Joined && len(news) == 0 {
			continue
		}
		one, err := a.readRoom(ctx, user, room, now.Members, r.filter.timelineLimit(), changes.All, news)
		if err != nil {
			return newRoomsBatch(), r.stream, err
		}
		if is == rooms.Joined {
			batch.Join[room] = one
			if len(one.Timeline.Events) > 0 {
				one.State.Events = stateFor(user, room, now.Members, now.Name)
			}
		} else {
			batch.Leave[room] = one
		}
	}
	if r.stream == "" { // a first sync
		logFailed(a.log, "sync", user, a.unread.Retain(ctx, user, stays...))
	}
	if err := a.addReceipts(ctx, user, batch.Join); err != nil {
		return newRoomsBatch(), r.stream, err
	}
	if err := a.addAccountData(ctx, user, r.filter, changes, &batch); err != nil {
		return newRoomsBatch(), r.stream, err
	}
	a.addCounts(ctx, user, r.filter.Room.Timeline.Threads, batch.Join)
	return batch, changes.Token, nil
}

// addAccountData adds the changed account data that the filter allows.
func (a *api) addAccountData(ctx context.Context, user mxid.UserID, f filter, changes rooms.Changes, batch *roomsBatch) error {
	if !changes.All && len(changes.AccountData) == 0 {
		return nil
	}
	all, err := a.sessions.AccountData(ctx, user)
	if err != nil {
		return err
	}
	for _, data := range all {
		event, one := accountDataEvent{data.Type, data.Content}, batch.Join[data.Room]
		switch {
		case !changes.All && !slices.Contains(changes.AccountData[data.Room], data.Type):
		case data.Room == "" && f.AccountData.allows(data.Type):
			batch.global = append(batch.global, event)
		case one != nil && f.Room.AccountData.allows(data.Type):
			one.Data.Events = append(one.Data.Events, event)
		}
	}
	return nil
}

// stateEvent is a state event that the host makes from what it knows of a room: it stores no state events.
type stateEvent struct {
	ID       string            `json:"event_id"`
	Type     string            `json:"type"`
	StateKey string            `json:"state_key"`
	Sender   mxid.UserID       `json:"sender"`
	Time     int64             `json:"origin_server_ts"`
	Content  map[string]string `json:"content"`
}

// stateFor returns the state by which a user's client names a room and finds the user in it: the memberships of the user
// and of the heroes, and the name.
func stateFor(user mxid.UserID, room string, members rooms.Members, name string) []stateEvent {
	var all []stateEvent
	add := func(kind, key string, sender mxid.UserID, content map[string]string) {
		sum := sha256.Sum256(fmt.Appendf(nil, "%q %q %q %q", room, kind, key, content))
		id := "$" + base64.RawURLEncoding.EncodeToString(sum[:])
		all = append(all, stateEvent{id, kind, key, sender, 0, content})
	}
	for _, member := range append(heroes(members, user), user) {
		content := map[string]string{"membership": string(members[member]), "displayname": sessions.Localpart(member)}
		add("m.room.member", string(member), member, content)
	}
	if name != "" {
		add("m.room.name", "", user, map[string]string{"name": name})
	}
	return all
}

// maxHeroes is how many members name a room without a name (Matrix specification, "Syncing", "m.heroes").
const maxHeroes = 5

func heroes(members rooms.Members, user mxid.UserID) []mxid.UserID {
	others := slices.DeleteFunc(members.Users(), func(member mxid.UserID) bool { return member == user })
	return others[:min(len(others), maxHeroes)]
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
func (a *api) addReceipts(ctx context.Context, user mxid.UserID, joined map[string]*roomBatch) error {
	if len(joined) == 0 {
		return nil
	}
	all, err := a.rooms.Receipts(ctx, user)
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
func (a *api) addCounts(ctx context.Context, user mxid.UserID, byThread bool, joined map[string]*roomBatch) {
	if len(joined) == 0 {
		return
	}
	counts, err := a.unread.Rooms(ctx, user, slices.Collect(maps.Keys(joined))...)
	if err != nil {
		logFailed(a.log, "sync", user, err)
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

func (a *api) readRoom(
	ctx context.Context, user mxid.UserID, room string, members rooms.Members, limit int, newest bool, news []int64,
) (*roomBatch, error) {
	one := &roomBatch{
		Timeline: timeline{Events: []json.RawMessage{}}, State: events[stateEvent]{[]stateEvent{}},
		Data:    events[accountDataEvent]{[]accountDataEvent{}},
		Summary: &roomSummary{len(members.Users(rooms.Joined)), len(members.Users(rooms.Invited)), heroes(members, user)},
	}
	if !newest && len(news) == 0 {
		return one, nil // only counts changed
	}
	list, limited, err := a.rooms.Timeline(ctx, room, limit, news...)
	if err != nil {
		return nil, fmt.Errorf("room %s: %w", room, err)
	}
	one.Timeline.Limited = limited
	for _, e := range list {
		one.Timeline.Events = append(one.Timeline.Events, json.RawMessage(e.JSON))
	}
	return one, nil
}
