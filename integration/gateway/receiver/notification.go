package receiver

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/pushfx/pushfx/module/pusher"
)

// Notification is a notification that has arrived.
type Notification struct {
	Body         []byte
	Began, Ended time.Time // of the request
	Status       int       // of the answer, 0 if the client gave up before it
	Rejected     []string  // pushkeys

	EventID    string
	RoomID     string
	RoomName   string
	Type       string
	Sender     string
	SenderName string
	Prio       string
	Text       string // the body in the content of the event, if it has one
	HasContent bool   // more than the event's id
	Counts     *Counts
	Devices    []Device
}

// Counts has the counts of a notification; nil means missing.
type Counts struct {
	Unread      *int `json:"unread"`
	MissedCalls *int `json:"missed_calls"`
}

// Device is a device of a notification.
type Device struct {
	AppID   string `json:"app_id"`
	Pushkey string `json:"pushkey"`
}

// Digest identifies the device without its pushkey, as the module does.
func (d Device) Digest() string {
	return string(pusher.Key{AppID: d.AppID, Pushkey: d.Pushkey}.Digest())
}

func (n *Notification) read() error {
	var body struct {
		Notification *struct {
			EventID    string          `json:"event_id"`
			RoomID     string          `json:"room_id"`
			RoomName   string          `json:"room_name"`
			Type       string          `json:"type"`
			Sender     string          `json:"sender"`
			SenderName string          `json:"sender_display_name"`
			Prio       string          `json:"prio"`
			Content    json.RawMessage `json:"content"`
			Counts     *Counts         `json:"counts"`
			Devices    []Device        `json:"devices"`
		} `json:"notification"`
	}
	if err := json.Unmarshal(n.Body, &body); err != nil {
		return err
	}
	from := body.Notification
	if from == nil || len(from.Devices) == 0 {
		return errors.New("no device")
	}
	var content struct {
		Body string `json:"body"`
	}
	_ = json.Unmarshal(from.Content, &content) // other content has no text
	n.EventID, n.RoomID, n.RoomName, n.Type = from.EventID, from.RoomID, from.RoomName, from.Type
	n.Sender, n.SenderName, n.Prio, n.Text = from.Sender, from.SenderName, from.Prio, content.Body
	n.HasContent, n.Counts, n.Devices = from.Type != "", from.Counts, from.Devices
	return nil
}

// rejected returns the pushkeys of the notification that are also in pushkeys.
func (n *Notification) rejected(pushkeys []string) []string {
	rejected := []string{}
	for _, d := range n.Devices {
		if slices.Contains(pushkeys, d.Pushkey) {
			rejected = append(rejected, d.Pushkey)
		}
	}
	return rejected
}

// String returns a readable line without pushkeys.
func (n Notification) String() string {
	var line strings.Builder
	fmt.Fprintf(&line, "%s  %s", n.Began.Format("15:04:05.000"), orElse(n.Prio, "high (by default)"))
	field := func(format string, args ...any) { fmt.Fprintf(&line, "  "+format, args...) }
	if n.EventID != "" {
		field("event %s", plain(n.EventID))
	}
	if n.RoomID != "" {
		field("room %s", named(n.RoomID, n.RoomName))
	}
	if n.HasContent {
		field("%s from %s", plain(n.Type), named(n.Sender, n.SenderName))
	}
	switch {
	case n.Text != "":
		field("%s", quoted(n.Text))
	case n.EventID != "" && !n.HasContent:
		field("event id only")
	case n.EventID == "":
		field("counts only")
	}
	if n.Counts != nil {
		field("%s", n.Counts)
	}
	for _, d := range n.Devices {
		field("device %.8s", d.Digest())
	}
	switch {
	case n.Status == 0:
		field("no answer")
	case len(n.Rejected) > 0:
		field("rejected")
	case n.Status != 200:
		field("answered %d", n.Status)
	}
	return line.String()
}

func (c *Counts) String() string {
	var all []string
	if c.Unread != nil {
		all = append(all, "unread "+strconv.Itoa(*c.Unread))
	}
	if c.MissedCalls != nil {
		all = append(all, "missed calls "+strconv.Itoa(*c.MissedCalls))
	}
	return strings.Join(all, ", ")
}

func named(id, name string) string {
	if name == "" {
		return plain(id)
	}
	return plain(id) + " (" + plain(name) + ")"
}

func orElse(text, otherwise string) string {
	if text == "" {
		return otherwise
	}
	return plain(text)
}

// mostRunes bounds a text of a user or client in a line.
const mostRunes = 80

// plain shortens a text of a user or client, and replaces characters that a terminal would
// obey.
func plain(text string) string {
	return shortened(strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return '\uFFFD'
		}
		return r
	}, text))
}

func quoted(text string) string { return shortened(strconv.Quote(text)) }

func shortened(text string) string {
	if runes := []rune(text); len(runes) > mostRunes {
		return string(runes[:mostRunes]) + "…"
	}
	return text
}
