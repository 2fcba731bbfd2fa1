package rulestore

import (
	"context"
	"errors"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/pushfx/pushfx/module/commit"
	"github.com/pushfx/pushfx/module/commit/rediscommit"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/pushrule"
)

// userOf returns the user of a key. No prefix has a brace.
func userOf(key string) string {
	return key[strings.IndexByte(key, '{')+1 : strings.LastIndexByte(key, '}')]
}

// channel is where every change is published, as "VERSION USER": a change
// belongs to all nodes of a cluster, and so does what is published.
const channel = "push_rules_changed"

// swapScript replaces the event and publishes that it did. A server that does
// not let the host publish does not keep it from changing anything.
//
// ARGV: the new event, the channel and the message, which is empty for what is
// no change, and the event as it was read, or its likeness, which are left out
// where there was none.
const swapScript = rediscommit.IsLike + `
if ARGV[5] then
	if not isLike(ARGV[4], ARGV[5], ARGV[6]) then return 0 end
elseif redis.call('GET', KEYS[1]) ~= (ARGV[4] or false) then
	return 0
end
redis.call('SET', KEYS[1], ARGV[1])
if ARGV[3] ~= '' then redis.pcall('PUBLISH', ARGV[2], ARGV[3]) end
return 1`

// likeBytes is from how many bytes on an event is compared by its likeness.
const likeBytes = 1 << 10

// layout is how the event of each user is kept.
type layout struct {
	largeBytes int
	channel    string
	cache      *pushrule.ReadCache
}

// stored is a user's event and the text it was read from, nil for none.
type stored struct {
	event
	text   *string
	user   string
	layout layout
}

func (l layout) read(ctx context.Context, client redis.Cmdable, key string) func() (rediscommit.Stored[event], error) {
	answer := client.Get(ctx, key)
	return func() (rediscommit.Stored[event], error) {
		s := stored{user: userOf(key), layout: l}
		text, err := answer.Result()
		if errors.Is(err, redis.Nil) {
			return s, nil
		}
		if err != nil {
			return nil, err
		}
		s.text = &text
		s.event, err = readEvent(text, l.cache)
		return s, err
	}
}

func (s stored) Exists() bool { return s.text != nil }

func (s stored) Value() event { return s.event }

func (s stored) Stamp() commit.Stamp { return s.last }

// Change never refuses: how large rules may be, the service says.
func (s stored) Change(next event) (rediscommit.Change, error) {
	s.layout.cache.Add(next.rules)
	return &change{old: s, next: next}, nil
}

// change is an event to be stored in the place of another.
type change struct {
	old  stored
	next event
	text string // the event with the stamp that it was asked for with last
}

// IsEmpty reports whether the rules are stored already, in whatever form: an edit
// changes nothing else in an event.
func (c *change) IsEmpty() bool {
	return c.old.found && c.old.rules.Equal(c.next.rules)
}

func (c *change) Args(stamp commit.Stamp) []any {
	args := []any{c.with(stamp), c.old.layout.channel, c.message(stamp)}
	switch old := c.old.text; {
	case old == nil:
		return args
	case len(*old) < likeBytes:
		return append(args, *old)
	default:
		return append(args, rediscommit.Likeness(*old)...)
	}
}

// Exchange is for events that are large, before or after the change.
func (c *change) Exchange(stamp commit.Stamp) (e rediscommit.Exchange, possible bool) {
	if c.old.text == nil || max(c.next.size(), len(*c.old.text)) < c.old.layout.largeBytes {
		return rediscommit.Exchange{}, false
	}
	return rediscommit.Exchange{
		Old: *c.old.text, New: c.with(stamp), Channel: c.old.layout.channel, Message: c.message(stamp),
	}, true
}

// Successor is the event as it is stored then.
func (c *change) Successor(stamp commit.Stamp) (next rediscommit.Stored[event], bytes int) {
	text, e := c.text, c.next // a pointer into the change would keep what it replaced
	e.stamp, e.last, e.foreign = string(stamp.AppendJSON(nil)), stamp, 0
	return stored{event: e, text: &text, user: c.old.user, layout: c.old.layout}, len(text) + len(e.rules.JSON())
}

// with returns the event with a stamp.
func (c *change) with(stamp commit.Stamp) string {
	c.text = c.next.with(string(stamp.AppendJSON(nil)))
	return c.text
}

// message is what is published of the change, empty if nothing changes.
func (c *change) message(stamp commit.Stamp) string {
	if stamp.Version == c.old.last.Version {
		return ""
	}
	return message(mxid.UserID(c.old.user), stamp.Version)
}
