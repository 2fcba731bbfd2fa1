package delivery

import (
	"context"
	"errors"
	"net"
	"slices"
	"time"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/delivery/dialguard"
)

// verdict is what an answer, or none, means for the notification that was sent.
type verdict int

const (
	delivered verdict = iota
	rejected          // the pushkey is not valid
	refused           // this notification will not be taken, whenever it is sent
	throttled         // the gateway says when to try again
	busy              // this pusher cannot be sent to now: its gateway is well
	failed            // the gateway is not well
	timedOut          // nor now, and perhaps it sent the notification on
	blocked           // its address is not to be connected to
	unsent            // it was not sent, or cut off by this host
	limited           // too many requests, and the gateway does not say when to try again
)

// The bounds of how long an answer may have us wait.
const (
	minRetryAfter = time.Second
	maxRetryAfter = time.Hour
)

// judge is the table of answers. Wait is how long the gateway asks to wait, for
// throttled, and for busy if it says. The specification defines no status but
// 200, so the others are taken as HTTP has them and as gateways are known to
// send them: ntfy's 507 is about one pushkey, its 429 about one or all, sygnal's 502
// about anything.
func judge(answer module.GatewayAnswer, err error, pushkey string) (v verdict, wait time.Duration) {
	if err != nil {
		return judgeError(err), 0
	}
	if answer.RetryAfter > 0 {
		wait = min(max(answer.RetryAfter, minRetryAfter), maxRetryAfter)
	}
	switch status := answer.Status; {
	case status == 200 && answer.Malformed: // a login page, for example
		return failed, 0
	case status == 200 && slices.Contains(answer.Rejected, pushkey):
		return rejected, 0
	case status == 200:
		return delivered, 0
	case status == 400, status == 413, status == 422:
		return refused, 0
	case (status == 429 || status == 503) && wait > 0:
		return throttled, wait
	case status == 429:
		return limited, 0
	case status == 507:
		return busy, wait
	}
	return failed, 0
}

func judgeError(err error) verdict {
	var network net.Error
	switch {
	case errors.Is(err, errLeaseEnding), errors.Is(err, context.Canceled): // by this host
		return unsent
	case errors.Is(err, dialguard.ErrRefused):
		return blocked
	case errors.Is(err, context.DeadlineExceeded), errors.As(err, &network) && network.Timeout():
		return timedOut
	}
	return failed
}

// errLeaseEnding is for a notification that was not sent, since its shard may
// have another owner before it is answered.
var errLeaseEnding = errors.New("delivery: the lease is about to end")

// isAlive reports whether the answer is one of a gateway that works.
func (v verdict) isAlive() bool {
	return v == delivered || v == rejected || v == refused || v == busy
}

// slowsDown reports whether an answer says that there are too many requests.
func slowsDown(v verdict, status int) bool {
	return v == throttled || v == timedOut || status == 429 || status >= 502 && status <= 504
}
