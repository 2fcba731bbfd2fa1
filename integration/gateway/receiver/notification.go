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

// maxDevices is the maximum number of devices in a notification. The module sends each notification to one device.
const maxDevices = 100

// Notification is a notification that has arrived.
type Notification struct {
	Body         []byte
	Began, Ended time.Time // of the request
	Status       int       // of the answer; 0: the client gave up first
	Rejected     []string  // pushkeys that the answer rejects

	EventID    string
	RoomID     string
	RoomName   string
	Type       string
	Sender     string
	SenderName string
	Prio       string
	Text       string // the body in the content of the event, if it has one
	Counts     *Counts
	Devices    []Device
	Others     map[string]json.RawMessage // all members except the devices, as received
}

// Counts has the counts of a notification; nil means missing.
type Counts struct {
	Unread      *int64 `json:"unread"`
	MissedCalls *int64 `json:"missed_calls"`
}

// Device is a device of a notification.
type Device struct {
	AppID   string          `json:"app_id"`
	Pushkey string          `json:"pushkey"`
	Tweaks  json.RawMessage `json:"tweaks"` // as received; nil: missing
}

// Digest identifies the device without its pushkey, as the module does.
func (d Device) Digest() string {
	return string(pusher.Key{AppID: d.AppID, Pushkey: d.Pushkey}.Digest())
}

// hasContent reports whether the notification has more than the event's id.
func (n *Notification) hasContent() bool { return n.Type != "" }

// read parses the body. All code that needs the devices uses its result. Unlike encoding/json alone, read distinguishes
// upper and lower case.
func (n *Notification) read() error {
	var body map[string]json.RawMessage
	if err := json.Unmarshal(n.Body, &body); err != nil {
		return err
	}
	if err := json.Unmarshal(body["notification"], &n.Others); err != nil {
		return err
	}
	var content struct {
		Body any `json:"body"`
	}
	for name, into := range map[string]any{
		"event_id": &n.EventID, "room_id": &n.RoomID, "room_name": &n.RoomName, "type": &n.Type, "sender": &n.Sender,
		"sender_display_name": &n.SenderName, "prio": &n.Prio, "content": &content, "counts": &n.Counts, "devices": &n.Devices,
	} {
		if text, found := n.Others[name]; found {
			if err := json.Unmarshal(text, into); err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
		}
	}
	n.Text, _ = content.Body.(string)
	delete(n.Others, "devices")
	isUnnamed := func(d Device) bool { return d.AppID == "" || d.Pushkey == "" }
	if len(n.Devices) == 0 || len(n.Devices) > maxDevices || slices.ContainsFunc(n.Devices, isUnnamed) {
		return errors.New("no devices, too many, or one without app_id or pushkey")
	}
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
	if n.hasContent() {
		field("%s from %s", plain(n.Type), named(n.Sender, n.SenderName))
	}
	switch {
	case n.Text != "":
		field("%s", quoted(n.Text))
	case n.EventID != "" && !n.hasContent():
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
		all = append(all, "unread "+strconv.FormatInt(*c.Unread, 10))
	}
	if c.MissedCalls != nil {
		all = append(all, "missed calls "+strconv.FormatInt(*c.MissedCalls, 10))
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

// mostRunes is the maximum length of a user's or client's text in a line.
const mostRunes = 80

// plain shortens a user's or client's text, and replaces characters that control a terminal.
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
