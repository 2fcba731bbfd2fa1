// Package content makes the stored texts of notifications, without I/O or a clock; its API may change
// at any time.
package content

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"strconv"
	"strings"
	"time"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/strictjson"
)

// Policy limits the content of notifications, besides a pusher's format.
type Policy string

// The policies; see package delivery.
const (
	FullContent Policy = "full"
	NamesOnly   Policy = "names"
	NoNames     Policy = "none"
)

// Limits bound the content of notifications.
type Limits struct {
	Content              Policy
	MaxNotificationBytes int
	MaxEventBytes        int
	MaxAge, CallAge      time.Duration
}

// Meta is the part of a notification that the queue always stores. It suffices for
// event_id_only.
type Meta struct {
	Event    string `json:"e,omitempty"` // empty for counts alone
	Room     string `json:"r,omitempty"`
	Position int64  `json:"p,omitempty"`
	Thread   string `json:"h,omitempty"`
	Added    int64  `json:"a"`           // time of Notify, in milliseconds
	Expires  int64  `json:"x"`           // in milliseconds
	Trace    string `json:"t,omitempty"` // W3C traceparent

	RingsUntil int64 `json:"u,omitempty"` // in milliseconds; 0 for an event that is no call
}

// Rings reports whether the event is a call that rings.
func (m Meta) Rings(now time.Time) bool { return now.UnixMilli() < m.RingsUntil }

// Text returns the stored form.
func (m Meta) Text() string {
	text, _ := json.Marshal(m) // strings and numbers
	return string(text)
}

var errNoMeta = errors.New("content: a notification in the queue cannot be read")

// ReadMeta is the inverse of [Meta.Text]. It takes less than half as long as
// encoding/json.
func ReadMeta(text string) (m Meta, err error) {
	w := strictjson.Walk(text)
	if !strictjson.Valid(text) || w.Next() != '{' {
		return Meta{}, errNoMeta
	}
	for name := range w.Object() {
		value := w.Skip()
		switch name {
		case "e":
			m.Event = ReadText(value)
		case "r":
			m.Room = ReadText(value)
		case "p":
			m.Position, err = strconv.ParseInt(value, 10, 64)
		case "h":
			m.Thread = ReadText(value)
		case "a":
			m.Added, err = strconv.ParseInt(value, 10, 64)
		case "x":
			m.Expires, err = strconv.ParseInt(value, 10, 64)
		case "u":
			m.RingsUntil, err = strconv.ParseInt(value, 10, 64)
		case "t":
			m.Trace = ReadText(value)
		}
		if err != nil {
			return Meta{}, errNoMeta
		}
	}
	if m.Expires == 0 {
		return Meta{}, errNoMeta
	}
	return m, nil
}

// Counts returns a notification of counts without an event.
func Counts(id string, m Meta) module.Notification {
	return module.Notification{ID: id, Priority: module.CountsOnly, Room: "--------", Meta: m.Text()}
}

// Digest returns a digest of texts.
func Digest(texts ...string) string {
	sum := sha256.Sum256([]byte(strings.Join(texts, "\x00")))
	return base64.RawURLEncoding.EncodeToString(sum[:16])
}

// RoomDigest names a room without revealing the id.
func RoomDigest(room string) string { return Digest(room)[:8] }

// EventID identifies an event within the log of a user.
func EventID(event string) string { return Digest(event)[:8] }
