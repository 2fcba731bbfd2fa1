package module

import (
	"context"
	"time"

	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/pushrule"
)

// This file has the interfaces of unread counts. A host with its own counts needs none of
// them.

// UnreadService counts unread notifications. As an [Unread], it gives delivery its counts.
// Package unread has the module's implementation; a host may wrap or replace it.
//
// All calls may be repeated, and come in any order, with the same result. See
// module/calls.md, "Unread counts", for when the host calls each.
//
// Errors: [fault.InvalidParam] for an invalid user, room, thread or position, before
// anything is stored; [fault.Database] for data that cannot be read; [Unavailable]. A
// room id begins with "!", the root of a thread with "$"; both have at most 255 bytes.
type UnreadService interface {
	Unread

	// Add counts an event for each decision that notifies, and marks its thread as read for
	// a local sender. Call it after Decide, before any /sync shows the event. Users whose
	// counts cannot be read are skipped. After a [LeftError], repeat it with the decisions
	// for its users, which may include the sender.
	Add(ctx context.Context, at Place, decisions Decisions) error

	// Read marks a user's notifications as read, up to and including a position: those of a
	// thread, of [MainThread] or of [AllThreads].
	Read(ctx context.Context, user mxid.UserID, room, thread string, position int64) error

	// Forget removes a redacted event from the counts of users, or returns a [LeftError]. States knows it as read
	// for as long as notifications wait (delivery.Config.MaxAge). Do not repeat [Add] for
	// the event later: it can count again.
	Forget(ctx context.Context, room string, position int64, users []mxid.UserID) error

	// Rooms returns the counts of the named rooms, or of all rooms with unread
	// notifications if none is named. They include every call that has returned, on any
	// host. A name that is not a room id is left out, and the other rooms have their
	// counts: Add counts no event there.
	Rooms(ctx context.Context, user mxid.UserID, rooms ...string) (map[string]RoomCounts, error)

	// Retain marks all other rooms as read, except rooms with calls in the last minute. It
	// repairs a missed leave.
	Retain(ctx context.Context, user mxid.UserID, joinedOrInvited ...string) error

	// List returns unread notifications, and the user's last 50 highlights after they were
	// read, the newest first.
	List(ctx context.Context, user mxid.UserID, q UnreadQuery) (UnreadPage, error)
}

// MainThread and AllThreads are the threads without a root (Matrix specification,
// "Receipts", "Threaded read receipts"). The root of a thread is in the main timeline.
const (
	MainThread = "main"
	AllThreads = ""
)

// Place is where an event is.
type Place struct {
	Room string

	// Position is above 0, and different for each event of the room. It grows in the order
	// in which the host compares receipts.
	Position int64

	Thread string      // the event id of the thread's root, or [MainThread]
	Sender mxid.UserID // empty for a user of another server
}

// RoomCounts are the counts of a room.
type RoomCounts struct {
	Main    ThreadCounts
	Threads map[string]ThreadCounts // by root; only threads with unread notifications
}

// ThreadCounts are numbers of unread notifications. If a room has more than 200, its counts
// mean "at least".
type ThreadCounts struct {
	Notifications int
	Highlights    int // a part of Notifications
}

// Sum returns the counts of the whole room, for a sync without
// unread_thread_notifications.
func (c RoomCounts) Sum() ThreadCounts {
	sum := c.Main
	for _, thread := range c.Threads {
		sum.Notifications += thread.Notifications
		sum.Highlights += thread.Highlights
	}
	return sum
}

// UnreadQuery selects a page of [UnreadService.List].
type UnreadQuery struct {
	Limit          int    // 0 means 50; at most 500 are returned
	From           string // the [UnreadPage.Next] of the page before, empty for the first
	OnlyHighlights bool
}

// UnreadPage is a page of notifications.
type UnreadPage struct {
	Notifications []UnreadNotification
	Next          string // the [UnreadQuery.From] of the next page; empty on the last page
}

// UnreadNotification is a notification that is unread, or a highlight.
type UnreadNotification struct {
	RoomPosition
	Thread    string // see [Place]
	Highlight bool
	IsRead    bool
	Actions   []pushrule.Action // of the push rule that notified
	Time      time.Time         // of Add
}

// RoomPosition names an event by its position in a room; see [Place].
type RoomPosition struct {
	Room     string
	Position int64
}

// NotifiedEvents gives GET /notifications the events of notifications. It is the host's.
type NotifiedEvents interface {
	// Events returns the JSON of each event as the user's client may see it. The text of an
	// event that is hidden, redacted, gone or cannot be read now is empty, and the list
	// leaves it out. After an error the request fails.
	Events(ctx context.Context, user mxid.UserID, places []RoomPosition) ([]string, error)
}

// UnreadStore stores a list of texts for each user. A SQL store has rows of user, sequence
// and text. Package storetest tests this contract.
//
// Errors: [Unavailable] if the store cannot be reached in time, after which the change may
// have been made; [fault.Database] for a list that cannot be read.
type UnreadStore interface {
	// Append appends texts to the lists of users, as durably as configured, and returns
	// the new lengths, which may include an item that the store adds for itself. It may
	// append a text twice, and the texts of one call in any order.
	Append(ctx context.Context, texts []UserText) []Result[int]

	// Load returns the lists. Each has the texts of all calls of Append that have
	// returned.
	Load(ctx context.Context, users []mxid.UserID) map[mxid.UserID]Result[[]string]

	// Replace replaces a list's first texts by one text, if they are still the same.
	// Otherwise done is false.
	Replace(ctx context.Context, all []UnreadReplacement) (done []Result[bool])

	// Delete removes a user's list, readable or not.
	Delete(ctx context.Context, user mxid.UserID) error

	// Partition returns the users of each partition; see [DeliveryQueue]. A store whose users are all
	// stored together returns one.
	Partition(ctx context.Context, users []mxid.UserID) [][]mxid.UserID
}

// UserText is a text for a user's list.
type UserText struct {
	User mxid.UserID
	Text string
}

// UnreadReplacement is a change by [UnreadStore.Replace].
type UnreadReplacement struct {
	User  mxid.UserID
	First []string // at least one
	By    string
}
