package content

import (
	"encoding/json"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// poisonAttempts is how often a notification may fail while its gateway accepts others.
const poisonAttempts = 8

// Trouble is the stored state of a failing backlog. Times are in milliseconds.
type Trouble struct {
	Generation int64  `json:"-"` // of the pusher
	Attempts   int    `json:"n,omitempty"`
	Since      int64  `json:"s,omitempty"` // the first failure
	Last       int64  `json:"l,omitempty"` // the last one
	Status     int    `json:"c,omitempty"` // of the last answer
	Class      Class  `json:"e,omitempty"`
	Gate       string `json:"g,omitempty"`

	ID      string `json:"i,omitempty"` // the first notification, for the next three fields
	Beside  int    `json:"b,omitempty"` // its failures while its gateway accepted others
	IDOnly  bool   `json:"o,omitempty"` // send it as event_id_only
	Ahead   bool   `json:"h,omitempty"` // try the second notification
	Delayed string `json:"d,omitempty"` // the notification that module.Attention delayed
}

// Text returns the stored form, which begins with the generation.
func (t Trouble) Text() string {
	if t == (Trouble{Generation: t.Generation}) {
		return ""
	}
	text, _ := json.Marshal(t)
	return strconv.FormatInt(t.Generation, 10) + " " + string(text)
}

// ReadTrouble is the inverse of [Trouble.Text]. An invalid text is the zero Trouble.
func ReadTrouble(text string) (t Trouble) {
	number, rest, found := strings.Cut(text, " ")
	generation, err := strconv.ParseInt(number, 10, 64)
	if !found || err != nil || json.Unmarshal([]byte(rest), &t) != nil {
		return Trouble{}
	}
	t.Generation = generation
	return t
}

func (t Trouble) of(id string) Trouble {
	if t.ID != id {
		t.ID, t.Beside, t.IDOnly, t.Ahead = id, 0, false, false
	}
	return t
}

// Failure is a notification that was not delivered.
type Failure struct {
	ID       string // of the first notification
	Of       string // ID of the sent notification: the first, or the second if Ahead was set
	Verdict  Verdict
	Status   int
	Class    Class
	Gate     string
	Now      time.Time
	TookLast time.Time // when the gateway last accepted another one, zero if unknown
}

// Step is the next action after a failure.
type Step int

// The steps.
const (
	Wait  Step = iota // see [RetryIn]
	Again             // at once, as event_id_only
	Drop              // the notification
)

// After returns the trouble after a failure, and the next action. A notification that
// fails eight times while its gateway accepts others is sent as event_id_only, then
// dropped. After every eighth failure with a 5xx other than 503, the pusher's second
// notification is tried once: if that succeeds, the first is at fault.
func (t Trouble) After(f Failure) (Trouble, Step) {
	t = t.of(f.ID)
	t.Ahead = false
	now := f.Now.UnixMilli()
	if f.Verdict == Refused {
		if t.IDOnly || f.Of != f.ID {
			return t, Drop
		}
		t.IDOnly = true
		return t, Again
	}
	isBeside := t.Last > 0 && f.TookLast.UnixMilli() > t.Last
	t.Attempts++
	t.Last, t.Status, t.Class, t.Gate = now, f.Status, f.Class, f.Gate
	if t.Since == 0 {
		t.Since = now
	}
	if f.Of != f.ID || f.Verdict != Failed { // not about the first notification
		return t, Wait
	}
	if t.IDOnly && t.Beside >= poisonAttempts {
		return t, Drop
	}
	if isBeside {
		t.Beside++
	}
	if t.Beside >= poisonAttempts-1 {
		t.Beside, t.IDOnly = poisonAttempts, true
		return t, Again
	}
	t.Ahead = t.Attempts%poisonAttempts == 0 && isOfNotification(f.Status)
	return t, Wait
}

// TookAhead returns the trouble after the second notification was delivered.
func (t Trouble) TookAhead() Trouble {
	t.Beside, t.IDOnly, t.Ahead = poisonAttempts, true, false
	return t
}

// isOfNotification reports whether a status may be about the notification, as sygnal's
// 502. No answer, or 503, is about the gateway.
func isOfNotification(status int) bool {
	return status >= http.StatusInternalServerError && status != http.StatusServiceUnavailable
}
