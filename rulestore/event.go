package rulestore

import (
	"strings"

	"github.com/pushfx/pushfx/module/commit"
	"github.com/pushfx/pushfx/module/pushrule"
	"github.com/pushfx/pushfx/module/strictjson"
)

// event is the stored account-data event, {"type":"m.push_rules","content":
// {"global":{...}},"commit":{...}}. Other keys in it and in its content are
// kept.
type event struct {
	rules        pushrule.Ruleset
	found        bool // whether content is an object
	extra        []strictjson.Member
	contentExtra []strictjson.Member
	stamp        string // as it came
	last         commit.Stamp
	foreign      int64 // the version if somebody else wrote the event, 0 if the module did
	isPlain      bool  // it is as the service writes it, with nothing beside the rules and the stamp
}

// The parts of an event as the service writes it, around the rules and the
// stamp.
const (
	opening = `{"type":"m.push_rules","content":{"global":`
	middle  = `},"` + stampMember + `":`
	closing = `}`
)

// readEvent reads a stored event. What is no event, or has a content that
// cannot be read, gives [pushrule.Unreadable].
func readEvent(text string, known *pushrule.Known) (event, error) {
	if rules, stamp, found := cutEvent(text); found {
		last := commit.ReadStamp(stamp)
		if set, err := known.Read(rules); err == nil && (stamp == "" || last.Version > 0 || strictjson.Valid(stamp)) {
			e := event{rules: set, found: true, stamp: stamp, last: last, isPlain: true}
			return e.withForeign(text), nil
		}
	}
	e, err := readAnyEvent(text)
	if err != nil {
		return event{}, err
	}
	e.last = commit.ReadStamp(e.stamp)
	return e.withForeign(text), nil
}

// withForeign returns the event, read from a text, with a version of its own if
// the stamp has none.
func (e event) withForeign(text string) event {
	if e.last.Version == 0 {
		e.foreign = foreignVersion(text)
	}
	return e
}

// cutEvent returns the rules and the stamp of an event as the service writes
// it, or, without a stamp, as others do. If the parts are JSON, the whole is,
// and has no more than them: there is but one way to read it.
func cutEvent(text string) (rules, stamp string, found bool) {
	rest, opened := strings.CutPrefix(text, opening)
	rest, closed := strings.CutSuffix(rest, closing)
	if !opened || !closed {
		return "", "", false
	}
	if at := strings.LastIndex(rest, middle); at >= 0 {
		return rest[:at], rest[at+len(middle):], true
	}
	rules, found = strings.CutSuffix(rest, closing)
	return rules, "", found
}

// readAnyEvent reads an event in any form.
func readAnyEvent(text string) (event, error) {
	var e event
	r := strictjson.NewReader(text)
	err := r.Object(func(name string) (err error) {
		switch name {
		case "type":
			return r.Skip()
		case "content":
			return e.readContent(r)
		case stampMember:
			e.stamp, err = r.Value()
			return err
		}
		e.extra, err = r.Keep(e.extra, name)
		return err
	})
	if err == nil {
		err = r.End()
	}
	if err != nil {
		return event{}, pushrule.Unreadable(err)
	}
	return e, nil
}

func (e *event) readContent(r *strictjson.Reader) error {
	if !r.IsObject() {
		return r.Skip()
	}
	e.found = true
	return r.Object(func(name string) (err error) {
		if name == "global" {
			e.rules, err = pushrule.ReadRuleset(r)
			return err
		}
		e.contentExtra, err = r.Keep(e.contentExtra, name)
		return err
	}, "global")
}

// stampMember is the key of the event that holds the stamp of its last write.
const stampMember = "commit"

// with returns the event as it is stored, with a stamp, or without where that is
// empty.
func (e *event) with(stamp string) string {
	if !e.isPlain {
		return string(appendEnd(e.appendOpen(nil), stamp))
	}
	if stamp == "" {
		return opening + e.rules.JSON() + closing + closing
	}
	return opening + e.rules.JSON() + middle + stamp + closing
}

// size is that of the event without its stamp, in bytes.
func (e *event) size() int {
	if e.isPlain {
		return len(opening) + len(e.rules.JSON()) + 2*len(closing)
	}
	return len(e.appendOpen(nil)) + len(closing)
}

// appendOpen appends the event as it is stored, up to its stamp.
func (e *event) appendOpen(dst []byte) []byte {
	dst = append(dst, opening...)
	dst = e.rules.AppendJSON(dst)
	dst = append(strictjson.AppendMembers(dst, e.contentExtra), '}')
	return strictjson.AppendMembers(dst, e.extra)
}

// appendEnd appends what follows appendOpen: the stamp, unless there is none.
func appendEnd[S string | []byte](dst []byte, stamp S) []byte {
	if len(stamp) > 0 {
		dst = append(strictjson.AppendMember(dst, stampMember), stamp...)
	}
	return append(dst, '}')
}
