package content

import (
	"time"

	"github.com/pushfx/pushfx/module/strictjson"
)

// MaxCallAge bounds how long a call rings (MSC4075).
const MaxCallAge = 2 * time.Minute

// IsCall reports whether the event is an incoming call.
func (ev *Event) IsCall() bool { return ev.isCall }

// rings reads whether the event is an incoming call. A MatrixRTC notification is a call
// if its type is "ring" (MSC4075).
func (ev *Event) rings() bool {
	switch ev.kind {
	case "m.call.invite":
		return true
	case "m.call.notify", "org.matrix.msc4075.call.notify":
		return readText(memberOf(ev.content, "notify_type")) == "ring"
	case "m.rtc.notification", "org.matrix.msc4075.rtc.notification":
		return readText(callMember(ev.content, "notification_type")) == "ring"
	}
	return false
}

// callLifetime reads "lifetime", in milliseconds.
func callLifetime(content string, otherwise time.Duration) time.Duration {
	r := strictjson.NewReader(callMember(content, "lifetime"))
	ms, err := r.Integer()
	if err != nil || ms <= 0 {
		return otherwise
	}
	return time.Duration(min(ms, MaxCallAge.Milliseconds())) * time.Millisecond
}

// callMember returns a member of a call: within "application" (MSC4075), or at the top
// as in events of older clients.
func callMember(content, name string) string {
	if inner := memberOf(memberOf(content, "application"), name); inner != "" {
		return inner
	}
	return memberOf(content, name)
}

// memberOf returns the JSON of a member, empty if there is none.
func memberOf(object, name string) string {
	w := strictjson.Walk(object)
	if w.Next() != '{' {
		return ""
	}
	for found := range w.Object() {
		if found == name {
			return w.Skip()
		}
	}
	return ""
}

// readText reads a JSON string; other JSON is empty.
func readText(text string) string {
	w := strictjson.Walk(text)
	if w.Next() != '"' {
		return ""
	}
	return w.String()
}
