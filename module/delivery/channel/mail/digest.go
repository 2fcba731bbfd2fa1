package mail

import (
	"time"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/delivery/channel"
	"github.com/pushfx/pushfx/module/delivery/content"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/strictjson"
)

// digestOf returns what a mail shows a user of notifications, oldest first: the newest max
// events, with their content if full is set. The other events of encrypted rooms have no content, either.
func digestOf(user mxid.UserID, all []channel.Notification, maxEvents int, full bool) (d module.MailDigest) {
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
		full = full && e.Type != content.Encrypted
	}
	for i := range events {
		if !full {
			events[i].Content = ""
		}
	}
}

// readMailed is the inverse of [content.Event.Notification]: it returns the event, and the names of its
// room.
func readMailed(user mxid.UserID, m channel.Notification) (e module.MailEvent, room module.MailRoom) {
	e = module.MailEvent{ID: m.Meta.Event, Thread: m.Meta.Thread, Time: time.UnixMilli(m.Meta.Added)}
	if e.Thread == module.MainThread {
		e.Thread = ""
	}
	room.ID = m.Meta.Room
	tweaks, members, rest := content.Split(m.Text)
	if members == "" {
		return e, room
	}
	highlight := content.MemberOf(tweaks, "highlight")
	e.Highlight = highlight != "" && highlight != "false"
	isTarget := false
	w := strictjson.Walk("{" + members + "}")
	w.Next()
	for name := range w.Object() {
		value := w.Skip()
		switch name {
		case "type":
			e.Type = content.ReadText(value)
		case "sender":
			e.Sender = mxid.UserID(content.ReadText(value))
		case "sender_display_name":
			e.SenderName = content.ReadText(value)
		case "room_name":
			room.Name = content.ReadText(value)
		case "room_alias":
			room.Alias = content.ReadText(value)
		case "user_is_target":
			isTarget = value == "true"
		}
	}
	e.Content = content.MemberOf("{"+rest+"}", "content")
	if e.Highlight {
		e.MentionsUser, e.MentionsRoom = mentionsOf(e.Content, user)
	}
	e.Invites = isTarget && (rest == "" || content.MembershipOf(e.Content) == "invite")
	return e, room
}

// mentionsOf reads "m.mentions" (Matrix specification, "User and room mentions").
func mentionsOf(shown string, who mxid.UserID) (user, room bool) {
	mentions := content.MemberOf(shown, "m.mentions")
	list := strictjson.Walk(content.MemberOf(mentions, "user_ids"))
	if list.Next() == '[' {
		for range list.Array() {
			user = list.Next() == '"' && list.String() == string(who) || user
		}
	}
	return user, content.MemberOf(mentions, "room") == "true"
}
