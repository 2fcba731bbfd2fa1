// Package httppush sends notifications to push gateways (Matrix specification, Push Gateway API), and
// to channels of a host's own, which get the same bodies; its API may change at any time.
package httppush

import (
	"context"
	"time"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/delivery/channel"
	"github.com/pushfx/pushfx/module/pusher"
	"github.com/pushfx/pushfx/module/strictjson"
)

// Channel sends to pushers of kind http.
type Channel struct {
	Gateway  module.Gateway
	MaxBytes int // of a body
}

var _ channel.Channel = (*Channel)(nil)

// Kind implements [channel.Channel].
func (c *Channel) Kind() pusher.Kind { return pusher.HTTP }

// Sends implements [channel.Channel].
func (c *Channel) Sends() bool { return true }

// Delay implements [channel.Channel].
func (c *Channel) Delay() time.Duration { return 0 }

// Read implements [channel.Channel].
func (c *Channel) Read(p pusher.Pusher, t *channel.Target) (ok bool) {
	d := readDevice(p.Data, t)
	t.Gateway, ok = channel.GatewayName(d.url)
	t.Poster = &poster{c, d}
	return ok && channel.KindOf(t.Gateway) == pusher.HTTP
}

// device is the part of a body that names the pusher.
type device struct {
	*channel.Target
	url  string
	data string // JSON object without url
}

// readDevice also tells the target what the data says about counts and format.
func readDevice(data string, t *channel.Target) (d *device) {
	d = &device{Target: t}
	rest := []byte{'{'}
	w := strictjson.Walk(data)
	if w.Next() == '{' {
		for name := range w.Object() {
			value := w.Skip()
			v := strictjson.Walk(value)
			switch {
			case name == "url":
				d.url = v.String()
				continue
			case name == "format":
				t.IsIDOnly = v.Next() == '"' && v.String() == "event_id_only"
			case channel.IsCountsOff(name):
				t.NoCounts = t.NoCounts || value == "true"
			}
			rest = append(strictjson.AppendMember(rest, name), value...)
		}
	}
	d.data = string(append(rest, '}'))
	return d
}

type poster struct {
	c *Channel
	d *device
}

// Post implements [channel.Poster].
func (p *poster) Post(ctx context.Context, n channel.Notification) channel.Answer {
	answer, err := p.c.Gateway.Post(ctx, module.GatewayRequest{URL: p.d.url, Header: header, Body: p.d.body(n, p.c.MaxBytes)})
	a := AnswerOf(answer, channel.ClassOf(err), p.d.Key.Pushkey)
	a.Err = channel.WithoutURL(err)
	return a
}
