package content

import (
	"strconv"
	"strings"
	"time"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/strictjson"
)

// encrypted is the type of encrypted events. The other events of their rooms are not shown in
// mails, either.
const encrypted = "m.room.encrypted"

// MailID returns the id of the mail that a pusher sends next, from its place in the log and the
// id of the first notification there: a log that begins anew may have the same numbers.
func MailID(pusher string, place int64, first string) string {
	return digest(pusher, strconv.FormatInt(place, 10), first)
}

// Mailed is a notification in a mail.
type Mailed struct {
	module.Notification
	Meta Meta
}

// MailDigest returns what a mail shows a user of notifications, oldest first: the newest max
// events, with their content if full is set.
func MailDigest(user mxid.UserID, all []Mailed, maxEvents int, full bool) (d module.MailDigest) {
	d.User, d.Events = user, len(all)
	hidden := all[:max(0, len(all)-maxEvents)]
	at := map[string]int{} // places in d.Rooms
	for i := len(all) - 1; i >= len(hidden); i-- {
		e, names := readMailed(user, all[i])
		n, found := at[names.ID]
		if !found {
			n = len(d.Rooms)
			at[names.ID], d.Rooms = n, append(d.Rooms, names)
		}
		d.Rooms[n].Events = append([]module.MailEvent{e}, d.Rooms[n].Events...)
	}
	rest := map[string]bool{}
	for _, m := range hidden {
		if n, found := at[m.Meta.Room]; found {
			d.Rooms[n].Hidden++
		} else {
			rest[m.Meta.Room] = true
		}
	}
	d.Hidden = len(rest)
	for i := range d.Rooms {
		hideContent(d.Rooms[i].Events, full)
	}
	return d
}

func hideContent(events []module.MailEvent, full bool) {
	for _, e := range events {
		full = full && e.Type != encrypted
	}
	for i := range events {
		if !full {
			events[i].Content = ""
		}
	}
}

// readMailed is the inverse of [Event.Notification]: it returns the event, and the names of its
// room.
func readMailed(user mxid.UserID, m Mailed) (e module.MailEvent, room module.MailRoom) {
	e = module.MailEvent{ID: m.Meta.Event, Thread: m.Meta.Thread, Time: time.UnixMilli(m.Meta.Added)}
	if e.Thread == module.MainThread {
		e.Thread = ""
	}
	room.ID = m.Meta.Room
	tweaks, members, _ := strings.Cut(m.Text, textEnd)
	members, rest, hasContent := strings.Cut(members, textEnd)
	if members == "" {
		return e, room
	}
	highlight := memberOf(tweaks, "highlight")
	e.Highlight = highlight != "" && highlight != "false"
	isTarget := false
	w := strictjson.Walk("{" + members + "}")
	w.Next()
	for name := range w.Object() {
		value := w.Skip()
		switch name {
		case "type":
			e.Type = readText(value)
		case "sender":
			e.Sender = mxid.UserID(readText(value))
		case "sender_display_name":
			e.SenderName = readText(value)
		case "room_name":
			room.Name = readText(value)
		case "room_alias":
			room.Alias = readText(value)
		case "user_is_target":
			isTarget = value == "true"
		}
	}
	e.Content = memberOf("{"+rest+"}", "content")
	if e.Highlight {
		e.MentionsUser, e.MentionsRoom = mentionsOf(e.Content, user)
	}
	e.Invites = isTarget && (!hasContent || membershipOf(e.Content) == "invite")
	return e, room
}

// mentionsOf reads "m.mentions" (Matrix specification, "User and room mentions").
func mentionsOf(content string, who mxid.UserID) (user, room bool) {
	mentions := memberOf(content, "m.mentions")
	list := strictjson.Walk(memberOf(mentions, "user_ids"))
	if list.Next() == '[' {
		for range list.Array() {
			user = list.Next() == '"' && list.String() == string(who) || user
		}
	}
	return user, memberOf(mentions, "room") == "true"
}
