package delivery

import (
	"errors"
	"fmt"
	"time"

	"github.com/pushfx/pushfx/module/delivery/channel"
	"github.com/pushfx/pushfx/module/delivery/channel/kinds"
	"github.com/pushfx/pushfx/module/delivery/channel/mail"
	"github.com/pushfx/pushfx/module/delivery/content"
)

// ContentPolicy limits what notifications contain, in addition to a pusher's format.
type ContentPolicy = content.Policy

// The policies. A pusher of format "event_id_only" always gets what NoNames
// allows.
const (
	FullContent = content.FullContent // all members of the specification
	NamesOnly   = content.NamesOnly   // all but the event's content
	NoNames     = content.NoNames     // the ids of event and room, prio and counts
)

// Config configures delivery. All hosts of one queue should have the same Config.
type Config struct {
	// Shards is the number of parts of the queue's list of due users. The first host that
	// starts fixes it. 1 to 1,000; default 16.
	Shards int

	// MaxInFlight bounds the requests in flight of this host. Half of it is for slow
	// requests: without an answer for two seconds, or to gateways that answer nothing. When
	// this half is full, users without other requests may each begin one more slow request,
	// up to half of MaxInFlight. A TLS connection takes about 36 KB. At least 16; default
	// 2,048.
	MaxInFlight int

	// MaxPerGateway bounds the requests in flight to a gateway for one app. A request that takes
	// four times as long as the gateway's answers counts separately, as slow; the slow requests
	// have the same bound. At least 4; default 256.
	MaxPerGateway int

	// RequestTimeout bounds the wait for an answer. Sygnal retries for 30 s, and after
	// 70 s answers 200 for notifications that it did not deliver: hence 35 s to 65 s.
	// Default 60 s.
	RequestTimeout time.Duration

	// DrainTimeout is how long a stopping host waits for requests in flight. Then it
	// cancels them, and another host sends them again. Default 10 s.
	DrainTimeout time.Duration

	// MaxAge is the age at which a notification expires. Default 24 h.
	MaxAge time.Duration

	// CallAge is how long a call rings without a lifetime in its event. At most 2 minutes;
	// default 60 s.
	CallAge time.Duration

	// MaxBacklog bounds the notifications that wait for a pusher. If a fifth more wait, it loses
	// some: low priority first, then the oldest of the room with most. Default 100.
	MaxBacklog int

	// MaxUserBytes bounds the stored bodies of a user's notifications. Further
	// notifications are sent as event_id_only. Default 256 KiB.
	MaxUserBytes int

	// MaxNotificationBytes bounds the body of a request. A larger one is sent without
	// the event's content. Push providers accept about 4 KiB from gateways. Default 8 KiB.
	MaxNotificationBytes int

	// MaxEventBytes bounds an event. Default 64 KiB, as the specification.
	MaxEventBytes int

	// Content is by default FullContent.
	Content ContentPolicy

	// NoCounts has the app_ids of apps that get no counts, since they count themselves.
	// Default none.
	NoCounts []string

	// BadgeDelay is how long UpdateBadges waits for further changes. Default 3 s.
	BadgeDelay time.Duration
}

// DefaultConfig returns the defaults.
func DefaultConfig() Config {
	return Config{
		Shards: 16, MaxInFlight: 2048, MaxPerGateway: 256,
		RequestTimeout: time.Minute, DrainTimeout: 10 * time.Second,
		MaxAge: 24 * time.Hour, CallAge: time.Minute,
		MaxBacklog: 100, MaxUserBytes: 256 << 10,
		MaxNotificationBytes: 8 << 10, MaxEventBytes: 64 << 10,
		Content: FullContent, BadgeDelay: 3 * time.Second,
	}
}

// Validate returns an error for each invalid field, joined.
func (c Config) Validate() error {
	var faults []error
	for _, f := range []struct {
		name               string
		value, least, most int
	}{
		{"Shards", c.Shards, 1, 1000},
		{"MaxInFlight", c.MaxInFlight, 16, 1 << 16},
		{"MaxPerGateway", c.MaxPerGateway, 4, 1 << 16},
		{"MaxBacklog", c.MaxBacklog, 10, 1000},
		{"MaxUserBytes", c.MaxUserBytes, 1 << 10, 1 << 30},
		{"MaxNotificationBytes", c.MaxNotificationBytes, 1 << 10, 512 << 10},
		{"MaxEventBytes", c.MaxEventBytes, 1 << 10, 512 << 10},
	} {
		if f.value < f.least || f.value > f.most {
			faults = append(faults, fmt.Errorf("%s is %d, want %d to %d", f.name, f.value, f.least, f.most))
		}
	}
	for _, f := range []struct {
		name               string
		value, least, most time.Duration
	}{
		{"RequestTimeout", c.RequestTimeout, 35 * time.Second, 65 * time.Second},
		{"DrainTimeout", c.DrainTimeout, 0, time.Minute},
		{"MaxAge", c.MaxAge, time.Second, 30 * 24 * time.Hour},
		{"CallAge", c.CallAge, time.Second, content.MaxCallAge},
		{"BadgeDelay", c.BadgeDelay, 0, time.Minute},
	} {
		if f.value < f.least || f.value > f.most {
			faults = append(faults, fmt.Errorf("%s is %v, want %v to %v", f.name, f.value, f.least, f.most))
		}
	}
	if c.Content != FullContent && c.Content != NamesOnly && c.Content != NoNames {
		faults = append(faults, fmt.Errorf("%s is %q, want %q, %q or %q", "Content", c.Content, FullContent, NamesOnly, NoNames))
	}
	return errors.Join(faults...)
}

// channels returns the channels of this host.
func (c Config) channels(seams Seams) (channel.Set, error) {
	if seams.Mail == (mail.Config{}) {
		seams.Mail = mail.DefaultConfig()
	}
	if err := errors.Join(seams.Mail.Validate(), seams.Mail.ValidateAge(c.MaxAge)); seams.Mailer != nil && err != nil {
		return channel.Set{}, fmt.Errorf("mail: %w", err)
	}
	return kinds.New(kinds.Options{
		Gateway: seams.Gateway, MaxBytes: c.MaxNotificationBytes, NoCounts: c.NoCounts, Own: seams.Channels,
		WebPush: seams.WebPush, Now: seams.Now,
		Mail: mail.Channel{Mailer: seams.Mailer, Composer: seams.MailComposer, ConfirmAddress: seams.ConfirmAddress, Config: seams.Mail},
	})
}

func (c Config) limits() content.Limits {
	return content.Limits{
		Content: c.Content, MaxNotificationBytes: c.MaxNotificationBytes, MaxEventBytes: c.MaxEventBytes,
		MaxAge: c.MaxAge, CallAge: c.CallAge,
	}
}
