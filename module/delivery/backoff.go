package delivery

import (
	"math/rand/v2"
	"time"
)

// The waits of a pusher that was failed to be sent to.
const (
	firstWait   = time.Second
	longestWait = 10 * time.Minute
	blockedWait = time.Hour // after the address was refused
)

// maxWait is the longest wait after a number of failures, the first included.
func maxWait(attempts int) time.Duration {
	return min(firstWait<<min(max(attempts-1, 0), 16), longestWait)
}

// backoff is how long to wait after a number of failures: a random part of what
// doubles with each ("full jitter"), so that those who failed together do not
// come back together.
func backoff(attempts int) time.Duration { return rand.N(maxWait(attempts)) }
