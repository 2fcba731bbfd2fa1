package delivery

import (
	"time"

	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/pusher"
)

// Held tells operators what the queue keeps of a pusher in trouble. It has no
// pushkey, and nothing of what is to be sent. Times are by the clock of the queue.
type Held struct {
	User     mxid.UserID
	SetAt    int64       // the generation of the pusher: when it was set last, in microseconds since 1970
	Rejected bool        // its pushkey is not valid, and the pusher is to be removed
	Outcome  PostOutcome // of the last request
	Attempts int         // failures since the trouble began that were not the gateway's
	Since    time.Time   // when it began; the zero time if the pusher itself is well and waits for its gateway
	Due      time.Time   // when to try again, or to remove it; the zero time likewise
	Kept     []time.Time // when each notification that is kept was handed over
	Dropped  int         // notifications since the trouble began
}

// ReadHeld reads a value of [module.Checkpointed.Held].
func ReadHeld(data []byte) (Held, error) {
	r, err := readRecord(data)
	if err != nil {
		return Held{}, err
	}
	h := Held{
		User: r.user, SetAt: r.setAt, Rejected: r.rejected, Outcome: r.trouble.outcome(), Attempts: r.attempts,
		Dropped: r.dropped,
	}
	if r.trouble != delivered || r.rejected {
		h.Since, h.Due = r.since, r.due
	}
	for _, n := range r.kept {
		h.Kept = append(h.Kept, n.added)
	}
	return h, nil
}

// CheckEntry returns an error for a [module.LogEntry] whose data no host of this
// version can read.
func CheckEntry(data string) error {
	_, err := readEntry(data)
	return err
}

// GatewayOf returns the push gateway of a user's pusher, as metrics and instructions
// name it: scheme, host and port of its URL. It has nothing of the path. Ok is
// false for a pusher that is not sent to: of another kind than http, disabled, or
// without a URL that can be read.
func GatewayOf(user mxid.UserID, p pusher.Pusher) (name string, ok bool) {
	d, ok := readDevice(user, p)
	return d.gateway, ok
}
