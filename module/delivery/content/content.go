// Package content makes what is sent to push gateways of events, push rules and
// pushers, and says what their answers mean; its API may change at any time. It is
// pure: no I/O, no clock.
package content

import (
	"encoding/json"
	"errors"
	"time"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/mxid"
)

// Policy is delivery.ContentPolicy.
type Policy string

// The policies.
const (
	FullContent Policy = "full"
	NamesOnly   Policy = "names"
	NoNames     Policy = "none"
)

// Limits bound what is sent.
type Limits struct {
	Content              Policy
	MaxNotificationBytes int
	MaxEventBytes        int
	MaxAge, CallAge      time.Duration
	NoCounts             []string // app_ids that are sent no counts
}

// Meta is what a queue keeps of a notification in any case: enough to send it as
// event_id_only, and to decide whose turn it is.
type Meta struct {
	User    mxid.UserID `json:"u"`
	Event   string      `json:"e,omitempty"` // empty for counts alone
	Room    string      `json:"r,omitempty"`
	Gate    string      `json:"g"` // see [Device.Gate]; of the pusher when it was handed over
	Added   int64       `json:"a"` // when it was handed over, in milliseconds
	Expires int64       `json:"x"` // in milliseconds
	Call    bool        `json:"c,omitempty"`
	Trace   string      `json:"t,omitempty"` // W3C traceparent
}

// Text is what is stored.
func (m Meta) Text() string {
	text, _ := json.Marshal(m) // strings and numbers
	return string(text)
}

var errNoMeta = errors.New("content: a notification in the queue cannot be read")

// ReadMeta reads what [Meta.Text] returned.
func ReadMeta(text string) (m Meta, err error) {
	if json.Unmarshal([]byte(text), &m) != nil || m.User.Validate() != nil {
		return Meta{}, errNoMeta
	}
	return m, nil
}

// Counts returns the notification of counts alone.
func Counts(id string, m Meta) module.Notification {
	return module.Notification{ID: id, Priority: module.CountsOnly, Room: "--------", Meta: m.Text()}
}
