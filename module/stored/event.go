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
// Unknown members are kept.
type Event struct {
	Rules        pushrule.Ruleset
	Found        bool                // whether the content is an object; otherwise, there are no rules
	ContentExtra []strictjson.Member // unknown members of the content
	Extra        []strictjson.Member // unknown members of the event
	Revision     Revision            // as stored

	textVersion int64 // the version of an event without a revision, see withTextVersion
}

const (
	eventStart    = `{"type":"m.push_rules","content":{"global":`
	eventRevision = `},"` + revisionMember + `":`
	eventEnd      = `}`
)

// ReadEvent reads a stored event, and checks its rules unless the digest is right. It
// returns [pushrule.Unreadable] if the text is not an event, or its content is
// unreadable, and [fault.OtherVersionError] for an event of another form.
func ReadEvent(text string) (Event, error) {
	if hasDigest(text) {
		if e, found := cutEvent(text); found {
			return e, nil
		}
	}
	e, err := readAnyEvent(text)
	if err != nil || e.Revision.Version == 0 { // another form has no revision of this form
		if form, found := formOfValue(text); found {
			other := otherVersion("push rules", form)
			other.Text = pushrule.Unreadable(other).Error() // as clients know unreadable rules
			return Event{}, other
		}
	}
	if err != nil {
		return Event{}, err
	}
	return e.withTextVersion(text), nil
}

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

func readAnyEvent(text string) (Event, error) {
	var e Event
	r := strictjson.NewReader(text)
	err := r.Object(func(name string) (err error) {
		switch name {
		case "type":
			return r.Skip()
		case "content":
			e.Rules, e.ContentExtra, e.Found, err = pushrule.ReadContent(r)
			return err
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

// Text returns the stored form of the event with a revision, or without one if it is
// zero.
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

// Share lets the event's rules use the memory of a text from [Event.Text].
func (e *Event) Share(text string) {
	e.Rules.ShareJSON(text[len(eventStart):][:len(e.Rules.JSON())])
}

func (e *Event) hasMore() bool { return len(e.Extra)+len(e.ContentExtra) > 0 }

func (e *Event) appendOpen(dst []byte) []byte {
	dst = append(dst, eventStart...)
	dst = e.Rules.AppendJSON(dst)
	dst = append(strictjson.AppendMembers(dst, e.ContentExtra), '}')
	return strictjson.AppendMembers(dst, e.Extra)
}

// Version returns the version that syncs compare: the revision's, or one computed from
// the text of an event without a revision.
func (e *Event) Version() int64 {
	if e.Revision.Version > 0 {
		return e.Revision.Version
	}
	return e.textVersion
}

// textVersionBit is set in versions computed from a text.
const textVersionBit = 1 << 62

// withTextVersion adds a version to an event without a revision, which another program
// wrote. It is a hash of the text: the same on all hosts, and never a version of the
// module.
func (e Event) withTextVersion(text string) Event {
	if e.Revision.Version == 0 {
		sum := sha256.Sum256([]byte(text))
		e.textVersion = int64(binary.BigEndian.Uint64(sum[:])&(textVersionBit-1) | textVersionBit)
	}
	return e
}

// RevisionTail is how many bytes at the end of an event usually include its revision.
const RevisionTail = 1 << 10

// VersionAtEnd returns the version in the revision at the end of an event, given the
// tail of its text; 0 if the tail has none. In valid JSON, the found revision is a
// member of the event: within a string the quotes would be escaped, and a nested object
// would need more closing braces.
func VersionAtEnd(tail string) int64 {
	const member = `,"` + revisionMember + `":`
	at := strings.LastIndex(tail, member)
	last, closed := strings.CutSuffix(tail, eventEnd)
	if at < 0 || !closed {
		return 0
	}
	return ReadRevision(last[at+len(member):]).Version
}

// LastRevision returns the revision at the end of an event, even of an unreadable one;
// the zero Revision if there is none.
func LastRevision(text string) Revision {
	const member = `"` + revisionMember + `":`
	at := strings.LastIndex(text, member)
	if at < 0 {
		return Revision{}
	}
	return ReadRevision(strings.TrimSuffix(text[at+len(member):], eventEnd))
}
