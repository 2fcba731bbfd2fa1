package delivery

import (
	"errors"
	"fmt"
	"time"

	"github.com/pushfx/pushfx/module/delivery/content"
)

// ContentPolicy says how much notifications tell, beside what a pusher asks for.
type ContentPolicy string

// The policies. A pusher of format "event_id_only" is told as much as with
// NoNames, whatever the policy.
const (
	FullContent ContentPolicy = "full"  // all that the specification has
	NamesOnly   ContentPolicy = "names" // no content: who, in which room, of which type
	NoNames     ContentPolicy = "none"  // the ids of event and room, prio and counts
)

// Config configures delivery. All hosts of one queue should have the same.
type Config struct {
	// Shards is over how many parts of the queue users are spread. It is fixed by the
	// host that starts first. 1 to 1,000; default 128.
	Shards int

	// MaxInFlight is how many requests to push gateways may be under way from this
	// host, half of them to gateways that take longer than a second, or have not
	// answered yet. Half as many more may be the first to new gateways. Each has a
	// connection, which with TLS takes about 36 KB. At least 16; default 2,048.
	MaxInFlight int

	// MaxPerGateway is how many requests may be under way to one gateway, for one app.
	// It starts with few and grows as the gateway bears them. At least 4; default 256.
	MaxPerGateway int

	// RequestTimeout is how long a push gateway may take for an answer. Sygnal
	// tries for 30 s itself, and after 70 s answers 200 for what it did not
	// deliver: so 35 s to 65 s. Default 60 s.
	RequestTimeout time.Duration

	// DrainTimeout is how long a host that stops waits for the requests that are under
	// way. What has not ended by then may be sent twice. Default 10 s.
	DrainTimeout time.Duration

	// MaxAge is for how long a notification is of use. Default 24 h. Those of calls
	// expire after CallAge, at most 2 minutes, unless the event says otherwise. Default 60 s.
	MaxAge  time.Duration
	CallAge time.Duration

	// MaxBacklog is how many notifications wait for a pusher. Of more, those of low
	// priority go first, then the oldest of the room with most. Default 100.
	MaxBacklog int

	// MaxUserBytes is how much may wait for all pushers of a user. What comes then
	// waits without what it tells, and is sent as event_id_only. Default 256 KiB.
	MaxUserBytes int

	// MaxNotificationBytes is how large the body of a request may be. A larger one
	// is sent without the event's content. Providers of push take 4 KiB of what
	// gateways make of it. Default 8 KiB.
	MaxNotificationBytes int

	// MaxEventBytes is how large an event may be. Default 64 KiB, the most that
	// rooms allow.
	MaxEventBytes int

	// DedupWindow is for how long an event that was handed over is not taken again.
	// Default 15 minutes.
	DedupWindow time.Duration

	// Content says how much notifications tell. Default FullContent.
	Content ContentPolicy

	// NoCounts are the app_ids of apps that are sent no counts, since they count
	// themselves. Default none.
	NoCounts []string

	// BadgeDelay is how long counts alone wait for more changes before they are
	// sent. Default 3 s.
	BadgeDelay time.Duration

	// MaxCachedRules is how many bytes of rules are kept for deciding; compiled,
	// they take up to seven times as much memory. Sets that are equal but for the
	// user's id, as default rules are, count once. The largest sets are evicted
	// first; see [match.Cache]. Default 32 MiB.
	MaxCachedRules int
}

// DefaultConfig returns the defaults.
func DefaultConfig() Config {
	return Config{
		Shards: 128, MaxInFlight: 2048, MaxPerGateway: 256,
		RequestTimeout: time.Minute, DrainTimeout: 10 * time.Second,
		MaxAge: 24 * time.Hour, CallAge: time.Minute,
		MaxBacklog: 100, MaxUserBytes: 256 << 10,
		MaxNotificationBytes: 8 << 10, MaxEventBytes: 64 << 10,
		DedupWindow: 15 * time.Minute, Content: FullContent, BadgeDelay: 3 * time.Second,
		MaxCachedRules: 32 << 20,
	}
}

// Validate joins an error for each field that is not as its comment says.
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
		{"MaxNotificationBytes", c.MaxNotificationBytes, 1 << 10, 1 << 20},
		{"MaxEventBytes", c.MaxEventBytes, 1 << 10, 1 << 20},
		{"MaxCachedRules", c.MaxCachedRules, 1 << 20, 1 << 40},
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
		{"DedupWindow", c.DedupWindow, time.Second, 24 * time.Hour},
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

// limits are what bounds the content of notifications.
func (c Config) limits() content.Limits {
	return content.Limits{
		Content: content.Policy(c.Content), MaxNotificationBytes: c.MaxNotificationBytes, MaxEventBytes: c.MaxEventBytes,
		MaxAge: c.MaxAge, CallAge: c.CallAge, NoCounts: c.NoCounts,
	}
}
