// Package mail sends what waits for pushers of kind email as one mail; its API may change at any time,
// except for [Config].
package mail

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/delivery/channel"
	"github.com/pushfx/pushfx/module/delivery/content"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/observe"
	"github.com/pushfx/pushfx/module/pusher"
)

// Channel sends to pushers of kind email.
type Channel struct {
	Mailer   module.Mailer // nil if this host sends no mail
	Composer module.MailComposer

	// ConfirmAddress reports whether an address is the user's, as [pusher.Policy.Email]. Nil confirms
	// all addresses.
	ConfirmAddress func(ctx context.Context, user mxid.UserID, address string) (bool, error)

	Config Config
}

var _ channel.Channel = (*Channel)(nil)

// Kind implements [channel.Channel].
func (c *Channel) Kind() pusher.Kind { return pusher.Email }

// Sends implements [channel.Channel].
func (c *Channel) Sends() bool { return c.Mailer != nil }

// Delay implements [channel.Channel].
func (c *Channel) Delay() time.Duration { return c.Config.Delay }

// Read implements [channel.Channel]. A mail is the user's, not a device's.
func (c *Channel) Read(p pusher.Pusher, t *channel.Target) (ok bool) {
	t.Gateway, t.NoCounts, t.Device = channel.MailGateway, true, ""
	if c.Sends() {
		t.Collector = &collector{c, t, p.Lang}
	}
	at := strings.LastIndexByte(p.Pushkey, '@')
	_, isHost := channel.GatewayName("mail://" + p.Pushkey[at+1:])
	return isHost && at > 0
}

const (
	day = 24 * time.Hour // for so long [module.DeliveryQueue.Sent] has the last mail

	maxRooms = 20 // that a mail is remembered by

	// maxMails bounds the mails of a pusher in a day: a redacted event counts as read, so that a
	// sender could cause one mail after the other. Further ones come after Repeat.
	maxMails = 12
)

// collector makes the mails of a pusher.
type collector struct {
	c    *Channel
	to   *channel.Target
	lang string
}

var _ channel.Collector = (*collector)(nil)

// lastMail is the mail that a pusher got last.
type lastMail struct {
	At     int64          `json:"t"` // in milliseconds
	Events []content.Meta `json:"e"` // the newest of each room
	Day    int64          `json:"d"` // begin of the day in which N mails were sent
	N      int            `json:"n"`
	SetAt  int64          `json:"s"` // of the pusher
}

func readLastMail(note string) (last lastMail) {
	if json.Unmarshal([]byte(note), &last) != nil {
		return lastMail{}
	}
	return last
}

// Pause implements [channel.Collector]: one mail in Repeat, unless the user has read something of
// it, or has set the pusher again since: then the user wants mails.
func (c *collector) Pause(note string, now time.Time) (wait time.Duration, until []content.Meta) {
	last := readLastMail(note)
	wait = time.UnixMilli(last.At).Add(c.c.Config.Repeat).Sub(now)
	switch {
	case last.N >= maxMails:
		return wait, nil
	case last.SetAt != c.to.SetAt:
		return 0, nil
	}
	return wait, last.Events
}

// Note implements [channel.Collector].
func (c *collector) Note(note string, all []channel.Notification, now time.Time) string {
	last, seen := readLastMail(note), map[string]bool{}
	last.SetAt, last.At, last.Events, last.N = c.to.SetAt, now.UnixMilli(), nil, last.N+1
	if now.Sub(time.UnixMilli(last.Day)) >= day {
		last.Day, last.N = last.At, 1
	}
	for _, m := range slices.Backward(all) {
		if !seen[m.Meta.Room] && len(last.Events) < maxRooms {
			seen[m.Meta.Room], last.Events = true, append(last.Events, m.Meta)
		}
	}
	text, _ := json.Marshal(last) // strings and numbers
	return string(text)
}

// Confirm implements [channel.Collector].
func (c *collector) Confirm(ctx context.Context) (bool, error) {
	if c.c.ConfirmAddress == nil {
		return true, nil
	}
	return c.c.ConfirmAddress(ctx, c.to.User, c.to.Key.Pushkey)
}

// Compose implements [channel.Collector]. The mail goes to the address of the pusher, whatever the
// composer returns.
func (c *collector) Compose(id string, all []channel.Notification, short bool) (send func(context.Context) channel.Answer, err error) {
	digest := digestOf(c.to.User, all, c.c.Config.MaxEvents, c.c.Config.Content == content.FullContent && !short)
	digest.To, digest.Lang, digest.ID = c.to.Key.Pushkey, c.lang, id
	mail, err := c.c.Composer.ComposeMail(digest)
	mail.To, mail.ID = digest.To, digest.ID
	return func(ctx context.Context) channel.Answer { return answerOf(c.c.Mailer.SendMail(ctx, mail)) }, err
}

// Delayed implements [channel.Collector].
func (c *collector) Delayed() observe.Problem { return observe.MailsDelayed }

// patience is how many times longer a mail waits for its next try than a notification: nobody
// waits for it. If the server refuses this host, another one may send it at once.
const patience = 20

// answerOf returns what an error of a [module.Mailer] says. Without a code of a server and without
// an outcome, the network or a setting of this host has failed.
func answerOf(err error) (a channel.Answer) {
	a = channel.Answer{Outcome: module.Delivered, Class: channel.ClassStatus, Err: err}
	if err == nil {
		return a
	}
	defer func() {
		if a.Outcome != module.Blocked {
			a.Patience = patience
		}
	}()
	failed := new(module.MailError)
	errors.As(err, &failed)
	if a.Status, a.RetryAfter, a.Outcome = failed.Status, failed.RetryAfter, failed.Outcome; a.Outcome != "" || a.Status > 0 {
		a.Outcome = cmp.Or(a.Outcome, module.Failed)
		return a
	}
	switch a.Class, a.Outcome = channel.ClassOf(err), module.Failed; {
	case a.Class == channel.ClassUnsent:
		a.Outcome = ""
	case a.Class == channel.ClassRefused && !channel.IsNetwork(err):
		a.Class, a.Outcome = channel.ClassStatus, module.Blocked // for example a server without STARTTLS
	}
	return a
}
