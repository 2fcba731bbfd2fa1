package content

import (
	"time"

	"github.com/pushfx/pushfx/module/strictjson"
)

// MaxCallAge is how long a call rings at most, whatever its event says (MSC4075).
const MaxCallAge = 2 * time.Minute

// IsCall reports whether the event calls somebody, which is of use only at once. A
// notification of MatrixRTC is a call if it says that it rings (MSC4075).
func (ev *Event) IsCall() bool {
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

// callLifetime is how long a call rings, as the event says: "lifetime", in
// milliseconds.
func callLifetime(content string, otherwise time.Duration) time.Duration {
	r := strictjson.NewReader(callMember(content, "lifetime"))
	ms, err := r.Integer()
	if err != nil || ms <= 0 {
		return otherwise
	}
	return time.Duration(min(ms, MaxCallAge.Milliseconds())) * time.Millisecond
}

// callMember returns the text of what a call says under a name, empty if nothing:
// within "application" where it is there (MSC4075), else at the top, as events of
// older clients have it.
func callMember(content, name string) string {
	if inner := memberOf(memberOf(content, "application"), name); inner != "" {
		return inner
	}
	return memberOf(content, name)
}

// memberOf returns the text of a member of an object, empty if there is none.
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

// readText returns what a text of JSON says if it is a string, else nothing.
func readText(text string) string {
	w := strictjson.Walk(text)
	if w.Next() != '"' {
		return ""
	}
	return w.String()
}
