package mail

import (
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/strictjson"
)

// Letter is what templates get. Texts of other users have a limited length, and no control
// characters but the newlines in [Message.Lines].
type Letter struct {
	App  string // Config.AppName
	User string // the user id of the recipient
	Lang string // of the template

	// Case chooses the subject: "invite" or "invites" if the mail is about invites only, then
	// "mention" if an event mentions the user, "room_mention" if one mentions all members,
	// "highlight" if one is highlighted otherwise, as by a keyword, then "event" for a single event
	// that is no text, "person" for messages of one sender in one room, "room" for one room, and
	// "rooms".
	Case   string
	Sender string // of "invite", the mentions and "person": a name
	Room   string // the room of the subject; empty if unknown or named as Sender

	Rooms []Room

	Events      int // all that the mail is about
	OtherRooms  int // not in Rooms
	OtherEvents int // in other rooms

	Unsubscribe string // the address that stops further mails
}

// Room is a room of a [Letter].
type Room struct {
	Name     string // empty if unknown
	URL      string // empty without Config.ClientURL
	Messages []Message
	Hidden   int // earlier events

	// Closed is the number of further events whose content the mail does not show. From has
	// their latest senders, at most three, and FromOthers is the number of others.
	Closed     int
	Encrypted  bool // some of them are encrypted
	From       []string
	FromOthers int
}

// Message is an event with content.
type Message struct {
	// Kind is "text", "emote", "image", "video", "audio", "file", "location", "sticker", "call",
	// "poll", "poll_end", "live_location", "upgrade" of the room, "invite", "knock" or "other".
	Kind     string
	Sender   string // a name, or the SenderID without one
	SenderID string
	URL      string   // of the event; empty without Config.ClientURL
	Lines    []string // the text, or the name of a file; may be empty
	Thread   bool     // it is in a thread
	Time     time.Time

	// Highlight says that a push rule highlights the event. Without the other two, it is a
	// keyword, or a rule of the user.
	Highlight, MentionsUser, MentionsRoom bool
}

// The limits of texts, in code points, and of lines.
const (
	maxName  = 60
	maxText  = 500
	maxLines = 12
	maxFrom  = 3
)

func (c *Composer) letter(d module.MailDigest, lang string) Letter {
	l := Letter{
		App: c.cfg.AppName, User: string(d.User), Lang: lang,
		Events: d.Events, OtherRooms: d.Hidden, OtherEvents: d.Events,
		Unsubscribe: c.cfg.PublicURL + UnsubscribePath + "?token=" + c.tokens.Unsubscribe(d.User, d.To),
	}
	for _, r := range d.Rooms {
		l.Rooms = append(l.Rooms, c.room(r))
		l.OtherEvents -= len(r.Events) + r.Hidden
	}
	l.chooseSubject(d)
	return l
}

func (c *Composer) room(r module.MailRoom) Room {
	room := Room{Name: roomName(r), URL: c.link(r.ID), Hidden: r.Hidden}
	var from []string
	for _, e := range slices.Backward(r.Events) {
		kind, text := describe(e)
		if kind == "" {
			room.Closed++
			room.Encrypted = room.Encrypted || e.Type == encrypted
			if name := senderName(e); name != "" && !slices.Contains(from, name) {
				from = append(from, name)
			}
			continue
		}
		room.Messages = append(room.Messages, Message{
			Kind: kind, Lines: lines(text), Sender: senderName(e), SenderID: OneLine(string(e.Sender)), URL: c.link(r.ID, e.ID),
			Thread: e.Thread != "", Time: e.Time.UTC(),
			Highlight: isHighlight(e), MentionsUser: e.MentionsUser, MentionsRoom: e.MentionsRoom,
		})
	}
	slices.Reverse(room.Messages)
	room.From = from[:min(len(from), maxFrom)]
	room.FromOthers = len(from) - len(room.From)
	return room
}

func roomName(r module.MailRoom) string {
	if name := OneLine(r.Name); name != "" {
		return name
	}
	return OneLine(r.Alias)
}

func senderName(e module.MailEvent) string {
	if name := OneLine(e.SenderName); name != "" {
		return name
	}
	return OneLine(string(e.Sender))
}

const encrypted, upgrade = "m.room.encrypted", "m.room.tombstone"

// isHighlight leaves out the upgrade of a room, which has words of its own.
func isHighlight(e module.MailEvent) bool { return e.Highlight && e.Type != upgrade }

// kinds has the kinds of messages of event types with words of their own: of the types that
// default rules notify of, and of stickers.
var kinds = map[string]string{
	"m.call.invite": "call",
	"m.call.notify": "call", "org.matrix.msc4075.call.notify": "call",
	"m.rtc.notification": "call", "org.matrix.msc4075.rtc.notification": "call",
	"m.poll.start": "poll", "org.matrix.msc3381.poll.start": "poll",
	"m.poll.end": "poll_end", "org.matrix.msc3381.poll.end": "poll_end",
	"m.beacon_info": "live_location", "org.matrix.msc3672.beacon_info": "live_location",
	upgrade: "upgrade", "m.sticker": "sticker",
}

// describe returns the kind of a message and its text. Kind is empty for an event without
// content to show.
func describe(e module.MailEvent) (kind, text string) {
	switch {
	case e.Invites:
		return "invite", ""
	case e.Type == encrypted || e.Type == "" || e.Content == "":
		return "", ""
	}
	c := readContent(e.Content)
	switch kind := kinds[e.Type]; {
	case kind == "sticker":
		return kind, c["body"]
	case kind != "":
		return kind, ""
	case e.Type == "m.room.member" && c["membership"] == "knock":
		return "knock", ""
	case e.Type != "m.room.message":
		return "other", ""
	}
	body := c["body"]
	switch kind := strings.TrimPrefix(c["msgtype"], "m."); kind {
	case "emote", "image", "video", "audio", "file", "location":
		return kind, body
	}
	return "text", body
}

// readContent returns the members of a content that are texts.
func readContent(content string) map[string]string {
	texts := map[string]string{}
	members := strictjson.Walk(content)
	for name := range members.Object() {
		if members.Next() == '"' {
			texts[name] = members.String()
		}
	}
	return texts
}

// highlights are the cases of highlighted events, the least important first.
var highlights = []string{"highlight", "room_mention", "mention"}

func highlightOf(e module.MailEvent) string {
	switch {
	case e.MentionsUser:
		return "mention"
	case e.MentionsRoom:
		return "room_mention"
	}
	return "highlight"
}

// chooseSubject sets what the subject is about; see [Letter.Case].
func (l *Letter) chooseSubject(d module.MailDigest) {
	invites, complete := 0, d.Hidden == 0
	senders := map[mxid.UserID]bool{}
	for i, r := range d.Rooms {
		complete = complete && r.Hidden == 0
		for _, e := range slices.Backward(r.Events) {
			senders[e.Sender] = true
			switch {
			case e.Invites:
				invites++
			case isHighlight(e) && slices.Index(highlights, highlightOf(e)) > slices.Index(highlights, l.Case):
				l.about(highlightOf(e), senderName(e), l.Rooms[i].Name)
			}
		}
	}
	if len(d.Rooms) == 0 {
		l.Case = "rooms"
		return
	}
	newest, name := d.Rooms[0].Events, l.Rooms[0].Name
	onlyInvites := complete && invites > 0 && invites == d.Events
	switch {
	case onlyInvites && invites == 1:
		l.about("invite", senderName(newest[0]), name)
	case onlyInvites:
		l.about("invites", "", "")
	case l.Case != "":
	case d.Events == 1 && l.Rooms[0].isOneEvent():
		l.about("event", senderName(newest[0]), name)
	case len(d.Rooms)+d.Hidden > 1:
		l.about("rooms", "", name)
	case complete && len(senders) == 1 && len(newest) > 0 && newest[0].Sender != "":
		l.about("person", senderName(newest[len(newest)-1]), name)
	default:
		l.about("room", "", name)
	}
}

// isOneEvent reports whether the room has a single message, which is no text.
func (r Room) isOneEvent() bool {
	return len(r.Messages) == 1 && !slices.Contains([]string{"text", "emote", "other"}, r.Messages[0].Kind)
}

func (l *Letter) about(which, sender, room string) {
	if room == sender {
		room = ""
	}
	l.Case, l.Sender, l.Room = which, sender, room
}

// lines returns the lines of a text, within the limits.
func lines(s string) []string {
	all := strings.FieldsFunc(s, func(r rune) bool { return r == '\n' || r == '\r' || r == '\u2028' || r == '\u2029' })
	var kept []string
	left := maxText
	for _, line := range all {
		if line = clean(line, left); line == "" {
			continue
		}
		if len(kept) == maxLines {
			return append(kept, "…")
		}
		kept = append(kept, line)
		if left -= utf8.RuneCountInString(line); left <= 0 {
			break
		}
	}
	return kept
}

// OneLine returns a name of strangers as mails show it: at most 60 code points, without control
// and format characters.
func OneLine(name string) string { return clean(name, maxName) }

// clean returns a text without control and format characters, at most so many code points.
// Format characters are for example marks that turn the direction of what follows. Joiners
// stay: emoji and some scripts have them. Runs of spaces become one.
func clean(s string, most int) string {
	if len(s) > 8*most { // what is left has no more than this; spaces and marks may go
		s = s[:min(len(s), 32*most)]
	}
	s = strings.Map(func(r rune) rune {
		switch {
		case unicode.IsSpace(r):
			return ' '
		case r == '\u200c' || r == '\u200d':
			return r
		case r == unicode.ReplacementChar || unicode.In(r, unicode.Cc, unicode.Cf, unicode.Co, unicode.Zl, unicode.Zp):
			return -1
		}
		return r
	}, strings.ToValidUTF8(s, ""))
	s = strings.Join(strings.Fields(s), " ")
	if runes := []rune(s); len(runes) > most {
		return strings.TrimSpace(string(runes[:most-1])) + "…"
	}
	return s
}
