package delivery

import (
	"encoding/json"
	"time"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/delivery/channel"
)

// idsAfter is the number of failures of a notification at a well gate after which it is
// sent as event_id_only: no gateway can choke on the ids.
const idsAfter = 8

// trouble is the stored state of a failing pusher. Times are in milliseconds.
type trouble struct {
	Generation int64          `json:"-"` // of the pusher
	Attempts   int            `json:"n,omitempty"`
	Since      int64          `json:"s,omitempty"` // the first failure
	Last       int64          `json:"l,omitempty"` // the last one
	Status     int            `json:"c,omitempty"` // of the last answer
	Same       int64          `json:"q,omitempty"` // the first one of the last answers with this status
	Class      channel.Class  `json:"e,omitempty"`
	Gate       string         `json:"g,omitempty"`
	IsOwn      bool           `json:"w,omitempty"` // see [channel.Answer]
	Outcome    module.Outcome `json:"v,omitempty"`

	Of       int64 `json:"i,omitempty"` // the number of the notification that failed; the next two fields are about it
	Failures int   `json:"f,omitempty"` // its failures while its gateway was well
	IDOnly   bool  `json:"o,omitempty"` // send it as event_id_only
	Delayed  int64 `json:"d,omitempty"` // the number of the notification that module.Attention delayed

	// End is the end of the notifications that a [channel.Collector] sends, endFailed after a failure.
	End int64 `json:"m,omitempty"`
}

// endFailed says that the notifications were not taken. The next try has all that waits.
const endFailed = -1

// stored returns the stored form.
func (t trouble) stored() module.Trouble {
	if t == (trouble{Generation: t.Generation}) {
		return module.Trouble{}
	}
	text, _ := json.Marshal(t)
	return module.Trouble{Generation: t.Generation, Text: string(text)}
}

// readTrouble is the inverse of stored. An invalid text is the zero trouble.
func readTrouble(stored module.Trouble) (t trouble) {
	if json.Unmarshal([]byte(stored.Text), &t) != nil {
		return trouble{}
	}
	t.Generation = stored.Generation
	return t
}

// isAlone reports whether the reason of the wait concerns only this pusher: a delay by
// module.Attention, or an answer about its pushkey.
func (t trouble) isAlone() bool {
	if t.Attempts == 0 {
		return t.Delayed != 0
	}
	return t.IsOwn
}

// failure is a notification that was not delivered.
type failure struct {
	channel.Answer
	Of     int64 // its number
	Gate   string
	IsWell bool // the gate serves other users
	Now    time.Time
}

// step is the next action after a failure.
type step int

// The steps.
const (
	stepWait  step = iota // see [channel.Answer.RetryIn]
	stepAgain             // at once, as event_id_only
	stepDrop              // the notification
)

// after returns the trouble after a failure, and the next action. A notification that the
// gateway refuses is sent as event_id_only, then dropped. One that fails for another reason
// is sent as event_id_only from the ninth time on, until it is taken or expires.
func (t trouble) after(f failure) (trouble, step) {
	if t.Of != f.Of {
		t.Of, t.Failures, t.IDOnly = f.Of, 0, false
	}
	if f.Outcome == module.Unfit {
		if t.IDOnly {
			return t, stepDrop
		}
		t.IDOnly = true
		return t, stepAgain
	}
	t.Attempts++
	t.Last, t.Gate = f.Now.UnixMilli(), f.Gate
	if t.Same == 0 || t.Status != f.Status {
		t.Same = t.Last
	}
	t.Outcome, t.Class, t.Status, t.IsOwn = f.Outcome, f.Class, f.Status, f.IsOwn
	if t.Since == 0 {
		t.Since = t.Last
	}
	if f.Outcome == module.Failed && f.IsWell {
		t.Failures++
		t.IDOnly = t.IDOnly || t.Failures >= idsAfter
	}
	return t, stepWait
}
