package rediscommit

import (
	"context"
	"errors"

	"github.com/redis/go-redis/v9"
)

// Call is a call of a Lua script that is sent in a [Write]. It is for one goroutine.
type Call struct {
	Script *redis.Script
	Keys   []string // at least one, all of one slot
	Args   []any

	Reply *redis.Cmd // to the last sending

	isUnknown bool // a server does not have the script
}

// Write returns the write that sends the call.
func (c *Call) Write() Write { return Write{Key: c.Keys[0], Queue: c.queue} }

// queue is the call's [Write.Queue]. A server that does not have the script gets its
// source when the call is sent again.
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

// errAnswered0 is for a script that has changed nothing, so that there is nothing to
// wait for.
var errAnswered0 = errors.New("the script has answered 0")

// run runs a script with one key that answers 1 or 0. Done is true if it answered 1
// and its effect has come as far as the durability asks.
func (w *Writer) run(ctx context.Context, script *redis.Script, key string, args []any) (done bool, err error) {
	keys := []string{key}
	if !w.cfg.Durability.isAsked() {
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
				err = errAnswered0
			}
			return err
		}
	}
	err = w.sendAll(ctx, w.sendDurably, []Write{{key, queue}})[0]
	if errors.Is(err, errAnswered0) {
		return false, nil
	}
	return err == nil, err
}
