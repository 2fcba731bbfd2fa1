package delivery

import (
	"time"

	"github.com/pushfx/pushfx/module/mxid"
)

// Held tells operators what the queue keeps of a pusher in trouble. It has no
// pushkey, and nothing of what is to be sent. Times are by the clock of the queue.
type Held struct {
	User     mxid.UserID
	Rejected bool        // its pushkey is not valid, and the pusher is to be removed
	Outcome  PostOutcome // of the last request
	Attempts int         // failures since the trouble began that were not the gateway's
	Since    time.Time   // when it began
	Due      time.Time   // when to try again
	Kept     int         // notifications
	Oldest   time.Time   // when the oldest of them was handed over; the zero time if there is none
	Dropped  int         // notifications since the trouble began
}

// ReadHeld reads a value of [module.Checkpointed.Held].
func ReadHeld(data []byte) (Held, error) {
	r, err := readRecord(data)
	if err != nil {
		return Held{}, err
	}
	h := Held{
		User: r.user, Rejected: r.rejected, Outcome: r.trouble.outcome(), Attempts: r.attempts, Since: r.since, Due: r.due,
		Kept: len(r.kept), Dropped: r.dropped,
	}
	if len(r.kept) > 0 {
		h.Oldest = r.kept[0].added
	}
	return h, nil
}
