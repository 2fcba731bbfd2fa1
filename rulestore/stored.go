package rulestore

import (
	"context"
	"errors"
	"fmt"

	"github.com/redis/go-redis/v9"

	"github.com/pushfx/pushfx/module/commit"
	"github.com/pushfx/pushfx/module/commit/rediscommit"
	"github.com/pushfx/pushfx/module/fault"
	"github.com/pushfx/pushfx/module/mxid"
)

// key is the string that holds the user's event. The user id is the hash tag,
// so that in a cluster all of a user's keys share one slot, those of the pusher
// store included. It starts with "@": the tag is never empty.
func key(user mxid.UserID) string {
	return "account_data:{" + string(user) + "}:m.push_rules"
}

// swapScript replaces the event.
//
// ARGV: the new event, and the event as it was read, which is left out where
// there was none.
const swapScript = `
if redis.call('GET', KEYS[1]) ~= (ARGV[2] or false) then return 0 end
redis.call('SET', KEYS[1], ARGV[1])
return 1`

// stored is an event and the text it was read from, nil for none.
type stored struct {
	event
	text *string
	cfg  Config
}

func (c Config) read(ctx context.Context, client redis.Cmdable, key string) (rediscommit.Stored[event], error) {
	text, err := client.Get(ctx, key).Result()
	if errors.Is(err, redis.Nil) {
		return stored{cfg: c}, nil
	}
	if err != nil {
		return nil, err
	}
	e, err := readEvent(text)
	return stored{e, &text, c}, err
}

func (s stored) Value() event        { return s.event }
func (s stored) Stamp() commit.Stamp { return commit.ReadStamp(s.stamp) }

// Change refuses an event that is too large, unless it is one that shrinks.
func (s stored) Change(next event) (rediscommit.Change, error) {
	c := change{s, next.appendOpen(s.buffer())}
	if size := len(c.open) + 1; size > s.cfg.MaxEventBytes && (s.text == nil || size > s.size()) {
		return nil, fault.New(fault.TooLarge, fmt.Sprintf("Push rules larger than %d bytes.", s.cfg.MaxEventBytes))
	}
	return c, nil
}

// buffer has room for the event after a change of a usual size.
func (s stored) buffer() []byte {
	if s.text == nil {
		return nil
	}
	return make([]byte, 0, len(*s.text)+512)
}

// size is that of the event without its stamp.
func (s stored) size() int { return len(s.appendOpen(nil)) + 1 }

// change is an event to be stored in the place of another.
type change struct {
	old  stored
	open []byte // the event without its stamp and its end
}

func (c change) IsEmpty() bool {
	return c.old.text != nil && *c.old.text == string(appendEnd(c.open, c.old.stamp))
}

func (c change) Args(stamp commit.Stamp) []any {
	text := appendEnd(c.open, stamp.AppendJSON(nil))
	if c.old.text == nil {
		return []any{text}
	}
	return []any{text, *c.old.text}
}
