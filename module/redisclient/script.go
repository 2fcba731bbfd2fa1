package redisclient

import (
	"context"
	"errors"
	"strings"

	"github.com/redis/go-redis/v9"
)

// Script is a Lua script. A server that lacks it gets its source. It is safe for
// concurrent use.
type Script struct{ script *redis.Script }

// NewScript returns a script from its source.
func NewScript(source string) *Script { return &Script{redis.NewScript(source)} }

// Call returns a call of the script. It needs at least one key, and all keys in one slot.
func (s *Script) Call(keys []string, args ...any) *Call {
	return &Call{script: s.script, keys: keys, args: args}
}

// Call is a call of a script. It is not safe for concurrent use.
type Call struct {
	Reply *redis.Cmd // to the latest sending

	script    *redis.Script
	keys      []string
	args      []any
	isUnknown bool // a server lacks the script
}

// Keys returns the keys of the call.
func (c *Call) Keys() []string { return c.keys }

// Command returns the command that makes the call.
func (c *Call) Command() *Command { return &Command{Key: c.keys[0], Queue: c.Queue, IsSingle: true} }

// Queue is a [Command.Queue].
func (c *Call) Queue(ctx context.Context, to Sender) (check func() error) {
	send := c.script.EvalSha
	if c.isUnknown {
		send = c.script.Eval
	}
	c.Reply = send(ctx, to, c.keys, c.args...)
	return func() error {
		err := c.Reply.Err()
		c.isUnknown = c.isUnknown || redis.HasErrorPrefix(err, "NOSCRIPT")
		return err
	}
}

// IsWrongType reports whether a server has refused a command because its key has another type
// of value. Before Redis 7, a script's error has the word within its text.
func IsWrongType(err error) bool {
	var refusal redis.Error
	return errors.As(err, &refusal) && strings.Contains(refusal.Error(), "WRONGTYPE")
}
