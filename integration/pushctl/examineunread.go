package main

import (
	"fmt"

	"github.com/pushfx/pushfx/module/fault"
	"github.com/pushfx/pushfx/module/stored"
	"github.com/pushfx/pushfx/module/unread"
	"github.com/pushfx/pushfx/module/unread/fold"
)

var (
	unreadableUnread = kind{"unreadable unread counts", byHand}
	longUnread       = kind{"unread counts not compacted", byHand}
	shortenedUnread  = kind{"unread counts shortened", byHand}
)

// unreadList describes the list of a user's unread counts.
type unreadList struct {
	Key           string `json:"key"`
	Bytes         int    `json:"bytes"` // 0 without a stored value
	Operations    int    `json:"operations"`
	Rooms         int    `json:"rooms"` // with unread notifications
	Notifications int    `json:"notifications"`

	isShortened bool  // the list had no place for all notifications
	err         error // from [fold.Fold]
}

func readUnread(v value) unreadList {
	l := unreadList{Key: v.name}
	for _, item := range v.items {
		l.Bytes += len(item)
	}
	texts := stored.UnreadTexts(v.items) // may change the items
	l.Operations = len(texts)
	if len(texts) > 0 && fold.IsRecord(texts[0]) {
		l.Operations--
	}
	record, err := fold.Fold(texts)
	if err != nil {
		l.err = err
		return l
	}
	l.isShortened = record.IsShortened()
	for _, room := range record.Rooms() {
		if n := room.Len(); n > 0 {
			l.Rooms++
			l.Notifications += n
		}
	}
	return l
}

func (b *backend) examineUnread(x *examination, v value) {
	l := readUnread(v)
	switch {
	case fault.IsOtherVersion(l.err):
		x.addOtherVersion(v.name, l.err)
		return
	case l.err != nil:
		x.add(unreadableUnread, v.name, l.err.Error())
	case l.Operations > unread.MaxOps: // a host may be about to compact the list
		x.suspect(v.name, problem{kind: longUnread, subject: v.name, detail: fmt.Sprintf("%d operations", l.Operations)})
	}
	if l.isShortened {
		x.add(shortenedUnread, v.name, fmt.Sprintf("%d bytes, %d rooms with unread notifications", l.Bytes, l.Rooms))
	}
	b.examineExpiry(x, v)
}
