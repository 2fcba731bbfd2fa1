package rulestore

import (
	"context"
	"errors"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/pushfx/pushfx/module/commit/rediscommit"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/stored"
)

// userOf returns the user of a key. No prefix has a brace.
func userOf(key string) string {
	return key[strings.IndexByte(key, '{')+1 : strings.LastIndexByte(key, '}')]
}

// swapScript replaces the event and publishes that it did. A server that does
// not let the host publish does not keep it from changing anything.
//
// ARGV: the new event, the channel and the message, which is empty for what is
// no change, and the end of the event as it was read, or the whole of it, which are
// left out if there was none.
var swapScript = `
if ARGV[5] then
	if not (` + rediscommit.HasEnd(4) + `) then return 0 end
elseif redis.call('GET', KEYS[1]) ~= (ARGV[4] or false) then
	return 0
end
redis.call('SET', KEYS[1], ARGV[1])
if ARGV[3] ~= '' then redis.pcall('PUBLISH', ARGV[2], ARGV[3]) end
return 1`

// layout is how the event of each user is kept.
type layout struct {
	largeBytes int
	channel    string
}

// storedEvent is a user's event and the text it was read from, nil for none.
type storedEvent struct {
	stored.Event
	text   *string
	end    rediscommit.End // tells it from others
	hasEnd bool            // false for one without a revision
	user   string
	layout layout
}

// with returns the event as it was read from a text, or written.
func (s storedEvent) with(e stored.Event, text string) storedEvent {
	s.Event, s.text = e, &text
	s.end, s.hasEnd = rediscommit.EndOf(text, e.Revision)
	return s
}

func (l layout) read(ctx context.Context, client redis.Cmdable, key string) func() (rediscommit.Stored[stored.Event], error) {
	answer := client.Get(ctx, key)
	return func() (rediscommit.Stored[stored.Event], error) {
		s := storedEvent{user: userOf(key), layout: l}
		text, err := answer.Result()
		if errors.Is(err, redis.Nil) {
			return s, nil
		}
		if err != nil {
			return nil, err
		}
		e, err := stored.ReadEvent(text)
		if err != nil {
			return nil, err
		}
		return s.with(e, text), nil
	}
}

func (s storedEvent) Exists() bool { return s.text != nil }

func (s storedEvent) Value() stored.Event { return s.Event }

func (s storedEvent) Revision() stored.Revision { return s.Event.Revision }

func (s storedEvent) IsCurrent(ctx context.Context, client redis.Cmdable, key string) func() (bool, error) {
	return s.end.IsAt(ctx, client, key)
}

func (s storedEvent) Bytes() int {
	if !s.hasEnd {
		return 0
	}
	return len(*s.text)
}

// Change never refuses: the service limits the size of rules.
func (s storedEvent) Change(next stored.Event) rediscommit.Change[stored.Event] {
	return &change{old: s, next: next, isEmpty: s.Found && s.Rules.Equal(next.Rules)}
}

// change replaces an event by another.
type change struct {
	old     storedEvent
	next    stored.Event
	isEmpty bool   // the rules are the same; an edit changes nothing else in an event
	text    string // the event with the revision that it was asked for with last
}

func (c *change) IsEmpty() bool { return c.isEmpty }

func (c *change) Args(revision stored.Revision) []any {
	args := []any{c.with(revision), c.old.layout.channel, c.message(revision)}
	if c.old.hasEnd {
		return append(args, c.old.end.Args()...)
	}
	if c.old.text != nil {
		args = append(args, *c.old.text)
	}
	return args
}

// StagedSwap is for events that are large, before or after the change.
func (c *change) StagedSwap(revision stored.Revision) (swap rediscommit.StagedSwap, staged bool) {
	if !c.old.hasEnd || max(c.next.Size(), len(*c.old.text)) < c.old.layout.largeBytes {
		return rediscommit.StagedSwap{}, false
	}
	return rediscommit.StagedSwap{
		Old: c.old.end, New: c.with(revision), Channel: c.old.layout.channel, Message: c.message(revision),
	}, true
}

func (c *change) Stored(revision stored.Revision) rediscommit.Stored[stored.Event] {
	e := c.next
	e.Revision = revision
	e.Share(c.text)
	return storedEvent{user: c.old.user, layout: c.old.layout}.with(e, c.text)
}

// with returns the event with a revision.
func (c *change) with(revision stored.Revision) string {
	c.text = c.next.Text(revision)
	return c.text
}

// message is what is published of the change, empty if nothing changes.
func (c *change) message(revision stored.Revision) string {
	if revision.Version == c.old.Event.Revision.Version {
		return ""
	}
	return stored.Message(mxid.UserID(c.old.user), revision.Version)
}
