package rediscommit

import (
	"context"
	"errors"

	"github.com/redis/go-redis/v9"
)

// Call is a call of a Lua script by a [Write]. It is not safe for concurrent use.
type Call struct {
	Script *redis.Script
	Keys   []string // at least one, all of one slot
	Args   []any

	Reply *redis.Cmd // to the latest sending

	isUnknown bool // a server lacks the script
}

// Write returns the write that sends the call.
func (c *Call) Write() Write { return Write{Key: c.Keys[0], Queue: c.queue} }

// queue is a [Write.Queue]. It sends the script's source to a server that lacks the
// script.
func (c *Call) queue(ctx context.Context, to redis.Pipeliner) (check func() error) {
	send := c.Script.EvalSha
	if c.isUnknown {
		send = c.Script.Eval
	}
	c.Reply = send(ctx, to, c.Keys, c.Args...)
	return func() error {
		err := c.Reply.Err()
		c.isUnknown = c.isUnknown || redis.HasErrorPrefix(err, "NOSCRIPT")
		return err
	}
}

var errNothingChanged = errors.New("the script replied 0")

// run runs a script with one key that replies 1 or 0. Done means that it replied 1 and
// the change has its durability.
func (w *Writer) run(ctx context.Context, script *redis.Script, key string, args []any) (done bool, err error) {
	keys := []string{key}
	if !w.cfg.Durability.isRequired() {
		return script.Run(ctx, w.nodes.client, keys, args...).Bool()
	}
	call := Call{Script: script, Keys: keys, Args: args}
	queue := func(ctx context.Context, to redis.Pipeliner) func() error {
		check := call.queue(ctx, to)
		return func() error {
			if err := check(); err != nil {
				return err
			}
			done, err := call.Reply.Bool()
			if err == nil && !done {
				err = errNothingChanged
			}
			return err
		}
	}
	err = w.sendAll(ctx, w.sendDurably, []Write{{key, queue}})[0]
	if errors.Is(err, errNothingChanged) {
		return false, nil
	}
	return err == nil, err
}
