package content

import (
	"encoding/json"
	"time"

	"github.com/pushfx/pushfx/module"
)

// A notification that always fails must not stop its pusher. But a gateway may also fail
// for hours, or at random. Only a later notification of the same pusher that succeeds shows
// that the first one is at fault.
const (
	failRound  = 8             // failures of the first notification between trials of later ones
	dropTrials = 2             // successful trials before the last round of the first notification
	roomRounds = 3 * failRound // failures after which a trial may overtake within a room
)

// Trouble is the stored state of a failing backlog. Times are in milliseconds.
type Trouble struct {
	Generation int64  `json:"-"` // of the pusher
	Attempts   int    `json:"n,omitempty"`
	Since      int64  `json:"s,omitempty"` // the first failure
	Last       int64  `json:"l,omitempty"` // the last one
	Status     int    `json:"c,omitempty"` // of the last answer
	Class      Class  `json:"e,omitempty"`
	Gate       string `json:"g,omitempty"`

	ID      string `json:"i,omitempty"` // of the first notification; the next four fields are about it
	Fails   int    `json:"f,omitempty"` // its failures while its gateway was open
	Trials  int    `json:"t,omitempty"` // rounds after which a later notification was delivered
	IDOnly  bool   `json:"o,omitempty"` // send it as event_id_only
	Ahead   bool   `json:"h,omitempty"` // try a later notification
	Delayed string `json:"d,omitempty"` // the notification that module.Attention delayed
}

// Stored returns the stored form.
func (t Trouble) Stored() module.Trouble {
	if t == (Trouble{Generation: t.Generation}) {
		return module.Trouble{}
	}
	text, _ := json.Marshal(t)
	return module.Trouble{Generation: t.Generation, Text: string(text)}
}

// ReadTrouble is the inverse of [Trouble.Stored]. An invalid text is the zero Trouble.
func ReadTrouble(stored module.Trouble) (t Trouble) {
	if json.Unmarshal([]byte(stored.Text), &t) != nil {
		return Trouble{}
	}
	t.Generation = stored.Generation
	return t
}

// IsAlone reports whether the reason of the wait concerns only this pusher: a delay by
// module.Attention, or an answer about its pushkey.
func (t Trouble) IsAlone() bool {
	if t.Attempts == 0 {
		return t.Delayed != ""
	}
	return t.Class == ClassStatus && (t.Status >= 400 && t.Status < 500 && t.Status != 429 || t.Status == 507)
}

func (t Trouble) of(id string) Trouble {
	if t.ID != id {
		t.ID, t.Fails, t.Trials, t.IDOnly, t.Ahead = id, 0, 0, false, false
	}
	return t
}

// Failure is a notification that was not delivered.
type Failure struct {
	ID      string // of the first notification
	Of      string // ID of the sent notification: the first, or a later one if Ahead was set
	Verdict Verdict
	Status  int
	Class   Class
	Gate    string
	IsOpen  bool // the gate
	Now     time.Time
}

// Step is the next action after a failure.
type Step int

// The steps.
const (
	Wait  Step = iota // see [RetryIn]
	Again             // at once, as event_id_only
	Drop              // the notification
)

// After returns the trouble after a failure, and the next action. After every eighth
// failure of the first notification, later ones are tried. When this succeeded in two
// rounds, the first one is sent as event_id_only for a round, then dropped.
func (t Trouble) After(f Failure) (Trouble, Step) {
	t = t.of(f.ID)
	t.Ahead = false
	if f.Verdict == Refused && f.Of == f.ID {
		if t.IDOnly {
			return t, Drop
		}
		t.IDOnly = true
		return t, Again
	}
	now := f.Now.UnixMilli()
	t.Attempts++
	t.Last, t.Status, t.Class, t.Gate = now, f.Status, f.Class, f.Gate
	if t.Since == 0 {
		t.Since = now
	}
	if f.Of != f.ID || f.Verdict != Failed || !f.IsOpen { // not about the first notification
		return t, Wait
	}
	t.Fails++
	if t.Ahead = t.Fails%failRound == 0; t.Ahead && t.Trials >= dropTrials && t.Fails > t.Trials*failRound {
		return t, Drop
	}
	return t, Wait
}

// TookAhead returns the trouble after the delivery of a later notification, which counts
// as a successful trial. More of the later notifications are sent until one fails.
func (t Trouble) TookAhead() Trouble {
	t.Trials = min(t.Trials+1, t.Fails/failRound)
	t.IDOnly = t.IDOnly || t.Trials >= dropTrials
	return t
}

// MayOvertake reports whether a trial may be of the same room as the first notification.
func (t Trouble) MayOvertake() bool { return t.Fails >= roomRounds }
