// Package kinds has the channels of all kinds of pushers; its API may change at any time.
package kinds

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/delivery/channel"
	"github.com/pushfx/pushfx/module/delivery/channel/httppush"
	"github.com/pushfx/pushfx/module/delivery/channel/mail"
	"github.com/pushfx/pushfx/module/delivery/channel/webpush"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/pusher"
)

// Options are what the channels need.
type Options struct {
	Gateway  module.Gateway
	MaxBytes int // of a notification
	NoCounts []string

	Mail Mail

	WebPush webpush.Config
	Now     func() time.Time // the clock of the queue

	Own []module.Channel // of the host
}

// Mail is what mails need. Without a Mailer, this host sends none.
type Mail struct {
	Mailer         module.Mailer
	Composer       module.MailComposer
	ConfirmAddress func(ctx context.Context, user mxid.UserID, address string) (bool, error)
	Delay, Repeat  time.Duration
	MaxEvents      int
	HasContent     bool
}

// taken are names of kinds that a host's own channel may not have, and of schemes of gateways.
var taken = []pusher.Kind{pusher.HTTP, pusher.Email, "https", "mail"}

// New returns the channels. It refuses a channel of the host whose kind is taken or no plain name.
func New(o Options) (channel.Set, error) {
	set := channel.Set{NoCounts: o.NoCounts, Channels: map[pusher.Kind]channel.Channel{}}
	add := func(c channel.Channel) { set.Channels[c.Kind()] = c }
	add(&httppush.Channel{Gateway: o.Gateway, MaxBytes: o.MaxBytes})
	add(&mail.Channel{
		Mailer: o.Mail.Mailer, Composer: o.Mail.Composer, ConfirmAddress: o.Mail.ConfirmAddress,
		Wait: o.Mail.Delay, Repeat: o.Mail.Repeat, MaxEvents: o.Mail.MaxEvents, HasContent: o.Mail.HasContent,
	})
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
