package content

import (
	"strconv"
	"time"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/strictjson"
)

// MaxCallAge bounds how long a call rings (MSC4075).
const MaxCallAge = 2 * time.Minute

// encryptedCallAge is how long an encrypted call rings, whose lifetime cannot be read. It is
// the lifetime that clients give a call.
const encryptedCallAge = 30 * time.Second

// maxSkew is the difference from origin_server_ts up to which a sender_ts counts (MSC4075).
const maxSkew = 20 * time.Second

// ringsFor returns how long the event rings from now on: for its lifetime since it was sent,
// or not at all. An event of the future was sent now, and so was one of unknown time.
func (ev *Event) ringsFor(related module.RelatedEvent, callAge time.Duration, now time.Time) time.Duration {
	switch {
	case ev.isEncryptedRing(related):
		callAge = min(callAge, encryptedCallAge)
	case !ev.rings():
		return 0
	}
	sent := now
	if ev.sentAt > 0 {
		sent = time.UnixMilli(ev.sentAt)
	}
	if by := time.UnixMilli(readMillis(callMember(ev.content, "sender_ts"))); ev.kind != callInvite && sent.Sub(by).Abs() <= maxSkew {
		sent = by
	}
	if sent.After(now) {
		sent = now
	}
	lifetime := callAge
	if ms := readMillis(callMember(ev.content, "lifetime")); ms > 0 {
		lifetime = time.Duration(min(ms, MaxCallAge.Milliseconds())) * time.Millisecond
	}
	return max(0, lifetime-now.Sub(sent))
}

// isEncryptedRing reports whether an encrypted event refers to its sender's membership of a
// call, as MatrixRTC notifications do (MSC4075).
func (ev *Event) isEncryptedRing(related module.RelatedEvent) bool {
	if ev.kind != Encrypted || string(related.Sender) != ev.Sender || ReadText(MemberOf(MemberOf(ev.content, "m.relates_to"), "rel_type")) != "m.reference" {
		return false
	}
	switch related.Type {
	case "m.rtc.member", "org.matrix.msc4143.rtc.member", "org.matrix.msc3401.call.member":
		return true
	}
	return false
}

const callInvite = "m.call.invite"

// rings reads whether the event is an incoming call. A MatrixRTC notification is a call
// if its type is "ring" (MSC4075).
func (ev *Event) rings() bool {
	switch ev.kind {
	case callInvite:
		return true
	case "m.call.notify", "org.matrix.msc4075.call.notify":
		return ReadText(MemberOf(ev.content, "notify_type")) == "ring"
	case "m.rtc.notification", "org.matrix.msc4075.rtc.notification":
		return ReadText(callMember(ev.content, "notification_type")) == "ring"
	}
	return false
}

// readMillis reads milliseconds; other JSON is 0.
func readMillis(text string) int64 {
	ms, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return 0
	}
	return max(0, ms)
}

// callMember returns a member of a call: within "application" (MSC4075), or at the top
// as in events of older clients.
func callMember(content, name string) string {
	if inner := MemberOf(MemberOf(content, "application"), name); inner != "" {
		return inner
	}
	return MemberOf(content, name)
}

// MemberOf returns the JSON of a member, empty if there is none.
func MemberOf(object, name string) string {
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

// ReadText reads a JSON string; other JSON is empty.
func ReadText(text string) string {
	w := strictjson.Walk(text)
	if w.Next() != '"' {
		return ""
	}
	return w.String()
}
