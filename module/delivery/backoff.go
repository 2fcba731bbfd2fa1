package delivery

import (
	"math/rand/v2"
	"time"
)

// The waits of a pusher that was failed to be sent to.
const (
	firstWait   = time.Second
	soonWait    = 16 * time.Second // the longest where the gateway may be ill
	longestWait = 10 * time.Minute
	blockedWait = time.Hour // after the address was refused

	// retriesPerSecond is how many pushers in trouble a host tries in a second, of
	// gateways that are not closed. Where there are more than 800 of them, they wait
	// longer than soonWait.
	retriesPerSecond = 100
)

// maxWait is the longest wait after a number of failures, the first included.
func maxWait(attempts int) time.Duration {
	return min(firstWait<<min(max(attempts-1, 0), 16), longestWait)
}

// backoff is how long to wait after a number of failures: a random part of what
// doubles with each ("full jitter"), so that those who failed together do not
// come back together.
func backoff(attempts int) time.Duration { return rand.N(maxWait(attempts)) }

// retryIn is backoff for failures that may be the gateway's: since its outage may
// end at any time, the wait does not grow with it.
func (s *sender) retryIn(attempts int) time.Duration {
	mean := time.Duration(s.failing) * time.Second / retriesPerSecond
	return rand.N(min(maxWait(attempts), max(soonWait, 2*mean)))
}
