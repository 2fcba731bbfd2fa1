package httppush

import (
	"cmp"
	"context"
	"time"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/delivery/channel"
	"github.com/pushfx/pushfx/module/pusher"
)

// Own sends to pushers of a kind of the host's own.
type Own struct {
	Channel  module.Channel
	MaxBytes int // of a body
}

var _ channel.Channel = (*Own)(nil)

// Kind implements [channel.Channel].
func (c *Own) Kind() pusher.Kind { return c.Channel.Kind() }

// Sends implements [channel.Channel].
func (c *Own) Sends() bool { return true }

// Delay implements [channel.Channel].
func (c *Own) Delay() time.Duration { return 0 }

// Read implements [channel.Channel].
func (c *Own) Read(p pusher.Pusher, t *channel.Target) (ok bool) {
	d := readDevice(p.Data, t)
	t.Gateway, t.Poster = channel.OwnGateway(p.Kind), &ownPoster{c, d, p}
	return true
}

type ownPoster struct {
	c  *Own
	d  *device
	to pusher.Pusher
}

// Post implements [channel.Poster].
func (p *ownPoster) Post(ctx context.Context, n channel.Notification) channel.Answer {
	answer := p.c.Channel.Send(ctx, p.d.User, p.to, p.d.body(n, p.c.MaxBytes))
	a := channel.Answer{Outcome: cmp.Or(answer.Outcome, module.Failed), Class: channel.ClassStatus, Status: answer.Status, RetryAfter: answer.RetryAfter, Err: answer.Err}
	if ctx.Err() == context.Canceled && a.Outcome == module.Failed { // by this host
		a.Outcome, a.Class = "", channel.ClassUnsent
	}
	return a
}
