package content

import (
	"slices"
	"time"

	"github.com/pushfx/pushfx/module"
)

// Verdict is the meaning of an answer, or of a missing answer.
type Verdict int

// The verdicts.
const (
	Delivered Verdict = iota
	Rejected          // the pushkey is not valid
	Refused           // the gateway will never accept this notification
	Throttled         // the gateway says when to try again
	Busy              // this pusher must wait; its gateway may work
	Failed            // the gateway may not work
	Blocked           // the address is not allowed
	Unsent            // this host did not send it, or cancelled it
)

// Class is why there is no answer.
type Class string

// The classes; ClassStatus is for an answer.
const (
	ClassStatus  Class = "status"
	ClassDNS     Class = "dns"
	ClassTLS     Class = "tls"
	ClassRefused Class = "refused" // the connection was refused or closed
	ClassTimeout Class = "timeout"
	ClassBlocked Class = "blocked"
	ClassUnsent  Class = "unsent"
)

// Judge returns the meaning of an answer. The specification only defines status 200.
// From ntfy, 507 concerns one pushkey, and 429 one or all; a 502 from sygnal may concern
// anything. Any 2xx counts as delivered, because a repeated notification would ring again.
func Judge(answer module.GatewayAnswer, class Class, pushkey string) Verdict {
	switch class {
	case ClassBlocked:
		return Blocked
	case ClassUnsent:
		return Unsent
	case ClassStatus:
	default:
		return Failed
	}
	switch status := answer.Status; {
	case status >= 200 && status < 300 && slices.Contains(answer.Rejected, pushkey):
		return Rejected
	case status >= 200 && status < 300:
		return Delivered
	case status == 400, status == 413, status == 422:
		return Refused
	case (status == 429 || status == 503) && answer.RetryAfter > 0:
		return Throttled
	case status == 429, status == 507:
		return Busy
	}
	return Failed
}

// IsAlive reports whether the gateway works.
func (v Verdict) IsAlive() bool { return v == Delivered || v == Rejected || v == Refused }

const (
	firstWait     = time.Second      // doubles with each failure
	maxWait       = 16 * time.Second // while the gateway may have an outage
	maxWaitAlone  = 10 * time.Minute // of a pusher that is busy, or has failed for aloneAfter
	aloneAfter    = time.Hour
	minRetryAfter = time.Second
)

// MaxWait is the longest wait of a pusher for its next try.
const MaxWait = time.Hour

// RetryIn returns how long a pusher waits: a random part of a limit that doubles with
// each attempt, so that pushers do not retry together. Random is from 0 to 1.
func RetryIn(v Verdict, answer module.GatewayAnswer, attempts int, failingFor time.Duration, random float64) time.Duration {
	if v == Throttled {
		return min(max(answer.RetryAfter, minRetryAfter), MaxWait)
	}
	longest := maxWait
	isAboutPusher := answer.Status >= 400 && answer.Status < 500 // for example 404; the gateway may serve other pushers
	if v == Busy || isAboutPusher || failingFor > aloneAfter {
		longest = maxWaitAlone
	}
	return time.Duration(random * float64(min(firstWait<<min(max(attempts-1, 0), 16), longest)))
}
