package stored

import (
	"crypto/sha256"
	"encoding/binary"
	"strings"

	"github.com/pushfx/pushfx/module/pushrule"
	"github.com/pushfx/pushfx/module/strictjson"
)

// Event is a user's push rules event, the account data
//
//	{"type":"m.push_rules","content":{"global":{...}},"revision":{...}}
//
// where the revision tells which writes made it so. Members that the module does not know are kept.
type Event struct {
	Rules        pushrule.Ruleset
	Found        bool                // whether the content is an object; if not, the user counts as one without rules
	ContentExtra []strictjson.Member // members of the content beside the rules
	Extra        []strictjson.Member // members of the event beside its content
	Revision     Revision            // as it was read

	foreign int64 // the version if somebody else wrote the event, 0 if the module did
}

// The parts of an event as the module writes it, around the rules and the
// revision.
const (
	eventStart    = `{"type":"m.push_rules","content":{"global":`
	eventRevision = `},"` + revisionMember + `":`
	eventEnd      = `}`
)

// ReadEvent reads a stored event. It believes the digest of an event, which says that
// the module wrote the text, and reads the rules of any other event. It returns
// [pushrule.Unreadable] if the text is no event, or if its content cannot be read.
func ReadEvent(text string) (Event, error) {
	if hasDigest(text) {
		if e, found := cutEvent(text); found {
			return e, nil
		}
	}
	e, err := readAnyEvent(text)
	if err != nil {
		return Event{}, err
	}
	return e.withForeign(text), nil
}

// cutEvent cuts an event with a digest into its rules and its revision.
func cutEvent(text string) (e Event, found bool) {
	rest, starts := strings.CutPrefix(text, eventStart)
	rest, ends := strings.CutSuffix(rest, eventEnd)
	at := strings.LastIndex(rest, eventRevision)
	if !starts || !ends || at < 0 {
		return Event{}, false
	}
	revision := ReadRevision(rest[at+len(eventRevision):])
	return Event{Rules: pushrule.FromCanonical(rest[:at]), Found: true, Revision: revision}, revision.Version > 0
}

// readAnyEvent reads an event in any form.
func readAnyEvent(text string) (Event, error) {
	var e Event
	r := strictjson.NewReader(text)
	err := r.Object(func(name string) (err error) {
		switch name {
		case "type":
			return r.Skip()
		case "content":
			return e.readContent(r)
		case revisionMember:
			last, err := r.Value()
			e.Revision = ReadRevision(last)
			return err
		}
		e.Extra, err = r.Keep(e.Extra, name)
		return err
	})
	if err != nil {
		return Event{}, pushrule.Unreadable(err)
	}
	return e, nil
}

func (e *Event) readContent(r *strictjson.Reader) error {
	if !r.IsObject() {
		return r.Skip()
	}
	e.Found = true
	return r.Object(func(name string) (err error) {
		if name == "global" {
			e.Rules, err = pushrule.ReadRuleset(r)
			return err
		}
		e.ContentExtra, err = r.Keep(e.ContentExtra, name)
		return err
	}, "global")
}

// Text returns the event as it is stored with a revision, or without one if that
// is the zero Revision.
func (e *Event) Text(revision Revision) string {
	if e.hasMore() {
		text := e.appendOpen(nil)
		if revision.Version > 0 {
			text = revision.AppendJSON(strictjson.AppendMember(text, revisionMember))
		}
		return string(append(text, eventEnd...))
	}
	rules := e.Rules.JSON()
	if revision.Version == 0 {
		return eventStart + rules + eventEnd + eventEnd
	}
	last := string(revision.AppendJSON(nil))
	if !e.Rules.IsCanonical() {
		return eventStart + rules + eventRevision + last + eventEnd
	}
	var text strings.Builder
	text.Grow(len(eventStart) + len(rules) + len(eventRevision) + len(last) + digestBytes)
	text.WriteString(eventStart)
	text.WriteString(rules)
	text.WriteString(eventRevision)
	text.WriteString(strings.TrimSuffix(last, eventEnd))
	text.WriteString(digestOf(text.String()))
	text.WriteString(eventEnd)
	return text.String()
}

// Share has the event keep no text of its own beside the one that [Event.Text] has
// returned.
func (e *Event) Share(text string) {
	e.Rules.ShareJSON(text[len(eventStart):][:len(e.Rules.JSON())])
}

// hasMore reports whether the event has members that the module does not know.
func (e *Event) hasMore() bool { return len(e.Extra)+len(e.ContentExtra) > 0 }

// appendOpen appends the event as it is stored, up to its revision.
func (e *Event) appendOpen(dst []byte) []byte {
	dst = append(dst, eventStart...)
	dst = e.Rules.AppendJSON(dst)
	dst = append(strictjson.AppendMembers(dst, e.ContentExtra), '}')
	return strictjson.AppendMembers(dst, e.Extra)
}

// Version is what clients' syncs compare: that of the revision or, of an event
// that somebody else wrote, one that differs whenever the text does.
func (e *Event) Version() int64 {
	if e.Revision.Version > 0 {
		return e.Revision.Version
	}
	return e.foreign
}

// isForeign is set in versions of events that somebody else wrote. Those that the
// module writes are too small for it.
const isForeign = 1 << 62

// withForeign returns the event, read from a text, with a version of its own if
// its revision has none. It is another one for every text, on every host the same
// one, and none that the module gives.
func (e Event) withForeign(text string) Event {
	if e.Revision.Version == 0 {
		sum := sha256.Sum256([]byte(text))
		e.foreign = int64(binary.BigEndian.Uint64(sum[:])&(isForeign-1) | isForeign)
	}
	return e
}

// RevisionTail is how many bytes of the end of an event hold its revision, which
// is rarely longer than half of it.
const RevisionTail = 1 << 10

// VersionAtEnd returns the version in the revision that an event ends with, of
// which the tail is the end; 0 if there is none in it. That the rest is JSON makes
// the revision a member of the event: the quotes within a string are escaped, and
// one brace closes no more than the event.
func VersionAtEnd(tail string) int64 {
	const member = `,"` + revisionMember + `":`
	at := strings.LastIndex(tail, member)
	last, closed := strings.CutSuffix(tail, eventEnd)
	if at < 0 || !closed {
		return 0
	}
	return ReadRevision(last[at+len(member):]).Version
}

// LastRevision returns the revision at the end of an event that need not be
// readable, the zero one if there is none.
func LastRevision(text string) Revision {
	const member = `"` + revisionMember + `":`
	at := strings.LastIndex(text, member)
	if at < 0 {
		return Revision{}
	}
	return ReadRevision(strings.TrimSuffix(text[at+len(member):], eventEnd))
}
