package content

import (
	"slices"
	"time"

	"github.com/pushfx/pushfx/module"
)

// Verdict is what an answer, or none, means for the notification that was sent.
type Verdict int

// The verdicts.
const (
	Delivered Verdict = iota
	Rejected          // the pushkey is not valid
	Refused           // this notification will not be taken, whenever it is sent
	Throttled         // the gateway says when to try again
	Busy              // this pusher cannot be sent to now, and its gateway may be well
	Failed            // the gateway may not be well
	Blocked           // the address is not to be connected to
	Unsent            // this host did not send it, or cut it off
)

// Class says why there is no answer.
type Class string

// The classes; ClassStatus is for an answer.
const (
	ClassStatus  Class = "status"
	ClassDNS     Class = "dns"
	ClassTLS     Class = "tls"
	ClassRefused Class = "refused" // the connection, or it was cut
	ClassTimeout Class = "timeout"
	ClassBlocked Class = "blocked"
	ClassUnsent  Class = "unsent"
)

// Judge is the table of answers. The specification defines no status but 200, so
// the others are taken as HTTP has them and as gateways are known to send them:
// ntfy's 507 is about one pushkey, its 429 about one or all, sygnal's 502 about
// anything. Any 2xx delivers: to send again would have the phone ring again.
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

// IsAlive reports whether the answer is one of a gateway that works.
func (v Verdict) IsAlive() bool { return v == Delivered || v == Rejected || v == Refused }

// How long a pusher waits before it is tried again.
const (
	firstWait     = time.Second      // the longest first one; it doubles with each failure
	maxWait       = 16 * time.Second // where the gateway may be ill: its outage may end at any time
	maxWaitAlone  = 10 * time.Minute // of a pusher that has failed for an hour, or is busy
	aloneAfter    = time.Hour
	minRetryAfter = time.Second
	maxRetryAfter = time.Hour
)

// RetryIn returns how long a pusher waits after the verdict: a random part, which
// random from 0 to 1 chooses, of what doubles with each attempt ("full jitter"), so
// that those who failed together do not come back together.
func RetryIn(v Verdict, retryAfter time.Duration, attempts int, failingFor time.Duration, random float64) time.Duration {
	if v == Throttled {
		return min(max(retryAfter, minRetryAfter), maxRetryAfter)
	}
	longest := maxWait
	if v == Busy || failingFor > aloneAfter {
		longest = maxWaitAlone
	}
	return time.Duration(random * float64(min(firstWait<<min(max(attempts-1, 0), 16), longest)))
}
