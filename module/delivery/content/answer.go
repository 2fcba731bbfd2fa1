package content

import (
	"slices"
	"time"

	"github.com/pushfx/pushfx/module"
)

// Answer is the answer to a request.
type Answer struct {
	module.Outcome // empty if this host sent nothing, or cancelled the request

	Class      Class
	Status     int           // 0 without an answer
	RetryAfter time.Duration // how long to wait at least, for Throttled and Busy; 0 if the gateway does not say

	// IsOwn says that the reason may concern this pusher alone, so that it waits for longer.
	IsOwn bool
}

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

// AnswerOf returns what an answer of a push gateway says about a notification for a pushkey. The
// specification only defines status 200. From ntfy, 507 concerns one pushkey, and 429 one or all; a
// 502 from sygnal may concern anything. Any 2xx counts as delivered, because a repeated
// notification would ring again.
func AnswerOf(answer module.GatewayAnswer, class Class, pushkey string) Answer {
	status := answer.Status
	a := Answer{Outcome: outcomeOf(answer, class, pushkey), Class: class, Status: status, RetryAfter: answer.RetryAfter}
	a.IsOwn = status >= 400 && status < 500 && status != 429 || status == 507 // for example 404
	return a
}

func outcomeOf(answer module.GatewayAnswer, class Class, pushkey string) module.Outcome {
	switch class {
	case ClassBlocked:
		return module.Blocked
	case ClassUnsent:
		return ""
	case ClassStatus:
	default:
		return module.Failed
	}
	switch status := answer.Status; {
	case status >= 200 && status < 300 && slices.Contains(answer.Rejected, pushkey):
		return module.Gone
	case status >= 200 && status < 300:
		return module.Delivered
	case status == 400, status == 413, status == 422:
		return module.Unfit
	case (status == 429 || status == 503) && answer.RetryAfter > 0:
		return module.Throttled
	case status == 429, status == 507:
		return module.Busy
	}
	return module.Failed
}

// IsAlive reports whether the gateway works.
func (a Answer) IsAlive() bool {
	return a.Outcome == module.Delivered || a.Outcome == module.Gone || a.Outcome == module.Unfit
}

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
// each attempt, so that pushers do not retry together. Random is from 0 to 1, times how patient the
// channel is.
func (a Answer) RetryIn(attempts int, failingFor time.Duration, random float64) time.Duration {
	if a.Outcome == module.Throttled {
		return min(max(a.RetryAfter, minRetryAfter), MaxWait)
	}
	longest := maxWait
	if a.Outcome == module.Busy || a.Outcome == module.Blocked || a.IsOwn || failingFor > aloneAfter {
		longest = maxWaitAlone
	}
	wait := min(time.Duration(random*float64(min(firstWait<<min(max(attempts-1, 0), 16), longest))), maxWaitAlone)
	if a.Outcome == module.Busy {
		wait = max(wait, min(a.RetryAfter, MaxWait))
	}
	return wait
}
