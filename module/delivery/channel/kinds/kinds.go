// Package kinds has the channels of all kinds of pushers; its API may change at any time.
package kinds

import (
	"fmt"
	"slices"
	"time"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/delivery/channel"
	"github.com/pushfx/pushfx/module/delivery/channel/httppush"
	"github.com/pushfx/pushfx/module/delivery/channel/mail"
	"github.com/pushfx/pushfx/module/delivery/channel/webpush"
	"github.com/pushfx/pushfx/module/pusher"
)

// Options are what the channels need.
type Options struct {
	Gateway  module.Gateway
	MaxBytes int // of a notification
	NoCounts []string

	Mail    mail.Channel
	WebPush webpush.Config
	Now     func() time.Time // the clock of the queue

	Own []module.Channel // of the host
}

// taken are names of kinds that a host's own channel may not have, and of schemes of gateways.
var taken = []pusher.Kind{pusher.HTTP, pusher.Email, "https", "mail"}

// New returns the channels. It refuses a channel of the host whose kind is taken or no plain name.
func New(o Options) (channel.Set, error) {
	set := channel.Set{NoCounts: o.NoCounts, Channels: map[pusher.Kind]channel.Channel{}}
	add := func(c channel.Channel) { set.Channels[c.Kind()] = c }
	add(&httppush.Channel{Gateway: o.Gateway, MaxBytes: o.MaxBytes})
	add(&o.Mail)
	push := webpush.New(o.WebPush, o.Gateway, o.Now)
	add(push)
	set.Channels[pusher.UnstableWebPush] = push
	for _, own := range o.Own {
		kind := own.Kind()
		if set.Channels[kind] != nil || slices.Contains(taken, kind) || !channel.IsPlain(kind) {
			return set, fmt.Errorf("a Channel has the kind %q: want small letters, digits and . _ -, and each kind once, other than %q", kind, taken)
		}
		add(&httppush.Own{Channel: own, MaxBytes: o.MaxBytes})
	}
	return set, nil
}

// Names are the channels that name the gateways of all kinds, and send nothing.
func Names() channel.Set {
	set, _ := New(Options{})
	return set
}
