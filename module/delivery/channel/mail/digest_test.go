package mail

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/delivery/channel"
	"github.com/pushfx/pushfx/module/delivery/content"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/pusher"
)

// mailedOf returns notifications of events, of which the log has the texts.
func mailedOf(t *testing.T, l content.Limits, events ...module.Event) (all []channel.Notification) {
	t.Helper()
	for i, e := range events {
		ev, of, err := content.ReadEvent(e, l, time.Now())
		if err != nil || !of {
			t.Fatalf("%s: %v, %v", e.JSON, of, err)
		}
		to := content.To{User: "@me:h", RoomName: "", Outcome: content.Outcome{Tweaks: `{"sound":"default","highlight":` + fmt.Sprint(i == 0) + `}`}}
		all = append(all, channel.Notification{Notification: ev.Notification(to, l), Meta: content.Meta{Event: ev.ID, Room: ev.Room, Thread: e.Thread, Added: int64(1000 * (i + 1))}})
	}
	return all
}

func eventIn(id, room, kind, body string) module.Event {
	e := module.Event{RoomName: "Room", RoomAlias: "#a:h", SenderName: `Bob "<b>"`, Thread: "$root"}
	state := ""
	if kind == "m.room.member" {
		state = `"state_key":"@me:h",`
	}
	e.JSON = `{` + state + `"event_id":"` + id + `","room_id":"` + room + `","type":"` + kind + `","sender":"@bob:h","content":` + body + `}`
	return e
}

func TestMailDigest(t *testing.T) {
	t.Parallel()
	const text = `{"body":"hi \u0000","msgtype":"m.text"}`
	noContent, none := defaultLimits(), defaultLimits()
	noContent.Content, none.Content = content.NamesOnly, content.NoNames
	message, invite := eventIn("$1", "!r:h", "m.room.message", text), eventIn("$1", "!r:h", "m.room.member", `{"membership":"invite"}`)
	full := module.MailEvent{
		ID: "$1", Type: "m.room.message", Sender: "@bob:h", SenderName: `Bob "<b>"`, Content: text, Thread: "$root", Highlight: true, Time: time.UnixMilli(1000),
	}
	inMain, mainThread := message, full
	inMain.Thread, mainThread.Thread = module.MainThread, ""
	names := full
	names.Content = ""
	invites := full
	invites.Type, invites.Content, invites.Invites = "m.room.member", `{"membership":"invite"}`, true
	invitesOnly := invites
	invitesOnly.Content = ""
	const toMe, toRoom = `{"body":"hi","m.mentions":{"user_ids":["@you:h",1,"@me:h"],"room":false}}`, `{"body":"me","m.mentions":{"user_ids":["@you:h"],"room":true}}`
	mentionsMe, mentionsRoom := full, full
	mentionsMe.Content, mentionsMe.MentionsUser = toMe, true
	mentionsRoom.Content, mentionsRoom.MentionsRoom = toRoom, true
	mentionsMeOnly := mentionsMe
	mentionsMeOnly.Content = ""
	left := invites
	left.Content, left.Invites = `{"membership":"leave"}`, false
	for label, test := range map[string]struct {
		event  module.Event
		limits content.Limits
		full   bool
		want   module.MailEvent
	}{
		"a message":                    {message, defaultLimits(), true, full},
		"without content":              {message, defaultLimits(), false, names},
		"without content, of all":      {message, noContent, true, names},
		"in no thread":                 {inMain, defaultLimits(), true, mainThread},
		"the ids":                      {message, none, true, module.MailEvent{ID: "$1", Thread: "$root", Time: time.UnixMilli(1000)}},
		"an invite":                    {invite, defaultLimits(), true, invites},
		"an invite without content":    {invite, noContent, true, invitesOnly},
		"a mention":                    {eventIn("$1", "!r:h", "m.room.message", toMe), defaultLimits(), true, mentionsMe},
		"a mention without content":    {eventIn("$1", "!r:h", "m.room.message", toMe), defaultLimits(), false, mentionsMeOnly},
		"a mention of the room":        {eventIn("$1", "!r:h", "m.room.message", toRoom), defaultLimits(), true, mentionsRoom},
		"another change of membership": {eventIn("$1", "!r:h", "m.room.member", `{"membership":"leave"}`), defaultLimits(), true, left},
	} {
		d := digestOf("@me:h", mailedOf(t, test.limits, test.event), 20, test.full)
		if len(d.Rooms) != 1 || d.Rooms[0].ID != "!r:h" || d.Rooms[0].Events[0] != test.want || test.limits.Content != content.NoNames && d.Rooms[0].Name+d.Rooms[0].Alias != "Room#a:h" {
			t.Errorf("%s: got %+v", label, d)
		}
	}
}

// The newest events of the newest rooms are shown. An encrypted room shows no content at all.
func TestMailDigestOfManyEvents(t *testing.T) {
	t.Parallel()
	var events []module.Event
	for i := range 10 {
		kind := "m.room.message"
		if i == 9 {
			kind = content.Encrypted
		}
		events = append(events, eventIn(fmt.Sprint("$", i), fmt.Sprintf("!%d:h", i%4), kind, fmt.Sprintf(`{"body":"%d"}`, i)))
	}
	for most, want := range map[int]string{
		20: "0 10; !1:h 0: $1 $5 $9, !0:h 0: $0={\"body\":\"0\"} $4={\"body\":\"4\"} $8={\"body\":\"8\"}, !3:h 0: $3={\"body\":\"3\"} $7={\"body\":\"7\"}, !2:h 0: $2={\"body\":\"2\"} $6={\"body\":\"6\"}",
		3:  "1 10; !1:h 2: $9, !0:h 2: $8={\"body\":\"8\"}, !3:h 1: $7={\"body\":\"7\"}",
		1:  "3 10; !1:h 2: $9",
	} {
		d := digestOf("@me:h", mailedOf(t, defaultLimits(), events...), most, true)
		var rooms []string
		for _, room := range d.Rooms {
			text := fmt.Sprintf("%s %d:", room.ID, room.Hidden)
			for _, e := range room.Events {
				text += " " + strings.TrimSuffix(e.ID+"="+e.Content, "=")
			}
			rooms = append(rooms, text)
		}
		if got := fmt.Sprintf("%d %d; %s", d.Hidden, d.Events, strings.Join(rooms, ", ")); got != want {
			t.Errorf("%d events:\n%s, want\n%s", most, got, want)
		}
	}
}

func TestMailTargets(t *testing.T) {
	t.Parallel()
	const me mxid.UserID = "@me:h"
	for address, want := range map[string]string{
		"a@example.org":                 "mail://relay m.email",
		`"x@y z"@Example.ORG`:           "mail://relay m.email",
		"a@b\u00fccher.example":         "mail://relay m.email",
		"a@[192.0.2.1]":                 "",
		"a":                             "",
		"@example.org":                  "",
		"a@":                            "",
		"a@exa\r\nmple.org":             "",
		"a@" + strings.Repeat("x", 1e3): "mail://relay m.email",
	} {
		p := pusher.Pusher{Key: pusher.Key{AppID: pusher.EmailAppID, Pushkey: address}, Kind: pusher.Email, Device: "PHONE", Lang: "de", Data: `{"format":"event_id_only"}`}
		set := channel.Set{Channels: map[pusher.Kind]channel.Channel{pusher.Email: &Channel{}}}
		d, ok := set.Read(me, p)
		if ok != (want != "") || ok && (!strings.HasPrefix(d.Gate(), want) || d.Kind != pusher.Email || d.IsIDOnly || !d.NoCounts || d.Device != "") {
			t.Errorf("%q: got %+v, %v", address, d, ok)
		}
		p.Extra = []pusher.Member{{Name: "enabled", Value: "false"}}
		if _, ok := set.Read(me, p); ok {
			t.Errorf("%q, disabled: it is a target", address)
		}
	}
}

func defaultLimits() content.Limits {
	return content.Limits{Content: content.FullContent, MaxNotificationBytes: 8 << 10, MaxEventBytes: 64 << 10, MaxAge: 24 * time.Hour, CallAge: time.Minute}
}
