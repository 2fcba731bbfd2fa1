package redisclient

import (
	"context"
	"errors"

	"github.com/redis/go-redis/v9"
)

// Rider is a read that travels in the pipelines of other commands, directly behind them,
// which saves a round trip. It is not safe for concurrent use.
type Rider struct {
	client  redis.UniversalClient
	newRead func() *Command
	read    *Command // nil until a command carries it

	replied bool
	err     error
	lost    bool // a pipeline with the rider may still be on its way
}

type riderKey struct{}

// WithRider returns a context for commands that are sent one after the other by the
// same client. Each of them carries the rider. NewRead makes the rider's command, and
// is called for the first of them.
func (p *Pipelines) WithRider(ctx context.Context, newRead func() *Command) (context.Context, *Rider) {
	r := &Rider{client: p.client, newRead: newRead}
	return context.WithValue(ctx, riderKey{}, r), r
}

// Replied reports whether Redis has executed the rider after the latest command that
// carried it, and that command succeeded. It also returns the rider's error.
func (r *Rider) Replied() (replied bool, err error) {
	if r.lost {
		return false, nil
	}
	return r.replied, r.err
}

// carryRider puts the rider of a context, if any, behind a single command, and returns
// the rider. On a cluster it does nothing, because the rider's key may be on another
// node.
func (p *Pipelines) carryRider(ctx context.Context, commands []*Command) *Rider {
	r, found := ctx.Value(riderKey{}).(*Rider)
	if !found || len(commands) != 1 || r.client != p.client || p.isCluster() {
		return nil
	}
	if r.read == nil {
		r.read = r.newRead()
	}
	c := commands[0]
	c.Queue, c.IsSingle = r.behind(c.Queue), false
	return r
}

func (r *Rider) behind(queue func(context.Context, Sender) func() error) func(context.Context, Sender) func() error {
	return func(ctx context.Context, to Sender) func() error {
		r.replied = false
		check, checkRead := queue(ctx, to), r.read.Queue(ctx, to)
		return func() error {
			err := check()
			r.err = checkRead()
			r.replied = err == nil || errors.Is(err, redis.Nil)
			return err
		}
	}
}
