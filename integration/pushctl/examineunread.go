package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/pushfx/pushfx/module/stored"
	"github.com/pushfx/pushfx/module/unread"
	"github.com/pushfx/pushfx/module/unread/fold"
)

var (
	unreadableUnread = kind{"unreadable unread counts", byHand}
	longUnread       = kind{"unread counts not compacted", byHand}
)

// unreadList is what a list of unread counts holds.
type unreadList struct {
	bytes, ops    int
	rooms         int // with unread notifications
	notifications int
	err           error // from [fold.Fold]
}

func readUnread(items []string) (l unreadList) {
	for _, item := range items {
		l.bytes += len(item)
	}
	texts := stored.UnreadTexts(items)
	l.ops = len(texts)
	if l.ops > 0 && fold.IsRecord(texts[0]) {
		l.ops--
	}
	var record fold.Record
	if record, l.err = fold.Fold(texts); l.err != nil {
		return l
	}
	for _, room := range record.Rooms() {
		if n := room.Len(); n > 0 {
			l.rooms++
			l.notifications += n
		}
	}
	return l
}

func (b *backend) examineUnread(x *examination, v value) {
	l := readUnread(v.items)
	switch {
	case errors.Is(l.err, fold.ErrLaterForm):
		x.addOtherVersion(v, l.err)
		return
	case l.err != nil:
		x.problems = append(x.problems, problem{kind: unreadableUnread, subject: v.name, detail: l.err.Error()})
	case l.ops > unread.MaxOps:
		x.unconfirmed = append(x.unconfirmed, problem{
			kind: longUnread, subject: v.name, detail: fmt.Sprintf("%d operations", l.ops),
			recheck: func(ctx context.Context) (bool, error) {
				values, err := b.readValues(ctx, b.client, []string{v.name})
				return err == nil && readUnread(values[0].items).ops > unread.MaxOps, err
			},
		})
	}
	b.examineExpiry(x, v)
}
