package delivery

import (
	"errors"
	"fmt"
	"time"
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
	// Shards is the number of logs over which users are spread, and the most hosts
	// that share the work. It is fixed by the host that starts first. 1 to 4,096;
	// default 128.
	Shards int

	// MaxInFlight is how many requests to push gateways may be under way from this
	// host, a quarter of them to gateways that have not answered yet. Those that have
	// been under way for a second, or are to gateways that hang, are counted apart:
	// there may be eight times as many. Each has a connection, which with TLS takes
	// about 36 KB. At least 4; default 256.
	MaxInFlight int

	// MaxPerGateway is how many requests of both kinds may be under way to one
	// gateway. It starts with few and grows as the gateway bears them. At least 4;
	// default 64.
	MaxPerGateway int

	// RequestTimeout is how long a push gateway may take for an answer. Sygnal
	// tries for 30 s itself, and after 70 s answers 200 for what it did not
	// deliver: so 35 s to 65 s. Default 60 s.
	RequestTimeout time.Duration

	// DrainTimeout is how long a host that stops, or gives a shard to another, waits
	// for the requests that are under way. What has not ended by then may be sent twice. Default 10 s.
	DrainTimeout time.Duration

	// MaxAge is for how long a notification is of use. Default 24 h. Those of calls
	// expire after CallAge, at most 2 minutes, unless the event says otherwise. Default 60 s.
	MaxAge  time.Duration
	CallAge time.Duration

	// KeepHeld is how many notifications are kept of a pusher that is in trouble for
	// more than half a minute, the newest, and KeepOfRoom how many of those may be of
	// one room. Until then it is 100. Defaults 10 and 3.
	KeepHeld   int
	KeepOfRoom int

	// MaxHeldBytes is how much this host keeps of all pushers in trouble. Above it,
	// of each only the newest notification is kept, and above five quarters of it
	// none more; above half of it, KeepHeld applies from the beginning. Default
	// 64 MiB.
	MaxHeldBytes int

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

	// BadgeDelay is how long counts alone wait for more changes before they are
	// sent. Default 3 s.
	BadgeDelay time.Duration

	// Jitter is how long notifications wait before they are sent, a random part of
	// it each, calls excepted: so gateways do not learn when exactly a message came.
	// At most 30 s; default 0.
	Jitter time.Duration

	// MaxCachedRules is how many bytes of rules are kept for deciding; compiled,
	// they take up to seven times as much memory. Sets that are equal but for the
	// user's id, as default rules are, count once. The largest sets are evicted
	// first; see [match.Cache]. Default 32 MiB.
	MaxCachedRules int
}

// DefaultConfig returns the defaults.
func DefaultConfig() Config {
	return Config{
		Shards: 128, MaxInFlight: 256, MaxPerGateway: 64,
		RequestTimeout: time.Minute, DrainTimeout: 10 * time.Second,
		MaxAge: 24 * time.Hour, CallAge: time.Minute,
		KeepHeld: 10, KeepOfRoom: 3, MaxHeldBytes: 64 << 20,
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
		{"Shards", c.Shards, 1, 4096},
		{"MaxInFlight", c.MaxInFlight, minPerGateway, 1 << 16},
		{"MaxPerGateway", c.MaxPerGateway, minPerGateway, 1 << 16},
		{"KeepHeld", c.KeepHeld, 1, 1000},
		{"KeepOfRoom", c.KeepOfRoom, 1, 1000},
		{"MaxHeldBytes", c.MaxHeldBytes, 1 << 20, 1 << 40},
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
		{"CallAge", c.CallAge, time.Second, maxCallAge},
		{"DedupWindow", c.DedupWindow, time.Second, 24 * time.Hour},
		{"BadgeDelay", c.BadgeDelay, 0, time.Minute},
		{"Jitter", c.Jitter, 0, 30 * time.Second},
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
