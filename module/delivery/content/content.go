// Package content makes what is sent to push gateways of events, push rules and
// pushers, and says what their answers mean; its API may change at any time. It is
// pure: no I/O, no clock.
package content

import (
	"encoding/json"
	"errors"
	"strconv"
	"time"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/strictjson"
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
	Gate    string      `json:"g"` // see [Target.Gate]; of the pusher when it was handed over
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

// ReadMeta reads what [Meta.Text] returned. A host does so several times for each
// notification, and encoding/json takes more than twice as long.
func ReadMeta(text string) (m Meta, err error) {
	w := strictjson.Walk(text)
	if !strictjson.Valid(text) || w.Next() != '{' {
		return Meta{}, errNoMeta
	}
	for name := range w.Object() {
		value := w.Skip()
		switch name {
		case "u":
			m.User = mxid.UserID(readText(value))
		case "e":
			m.Event = readText(value)
		case "r":
			m.Room = readText(value)
		case "g":
			m.Gate = readText(value)
		case "a":
			m.Added, err = strconv.ParseInt(value, 10, 64)
		case "x":
			m.Expires, err = strconv.ParseInt(value, 10, 64)
		case "c":
			m.Call = value == "true"
		case "t":
			m.Trace = readText(value)
		}
		if err != nil {
			return Meta{}, errNoMeta
		}
	}
	if m.User.Validate() != nil {
		return Meta{}, errNoMeta
	}
	return m, nil
}

// Counts returns the notification of counts alone.
func Counts(id string, m Meta) module.Notification {
	return module.Notification{ID: id, Priority: module.CountsOnly, Room: "--------", Meta: m.Text()}
}
