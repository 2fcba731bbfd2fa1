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
//
// An event as the service writes it is cut into its rules and its stamp, whose
// reading the cache saves. This proves the form of the whole: the text is those
// two JSON values and the constant parts around them, which can be read in one
// way alone.
func readEvent(text string, cache *pushrule.ReadCache) (event, error) {
	if rules, stamp, found := cutEvent(text); found {
		last := commit.ReadStamp(stamp) // which has a version only if the stamp is JSON
		if set, err := cache.Read(rules); err == nil && (stamp == "" || last.Version > 0 || strictjson.Valid(stamp)) {
			return event{rules: set, found: true, stamp: stamp, last: last}.withForeign(text), nil
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
// it, or, without a stamp, as others do. It does not check that they are JSON.
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
	switch {
	case e.hasMore():
		return string(appendEnd(e.appendOpen(nil), stamp))
	case stamp == "":
		return opening + e.rules.JSON() + closing + closing
	}
	return opening + e.rules.JSON() + middle + stamp + closing
}

// size is that of the event without its stamp, in bytes.
func (e *event) size() int {
	if e.hasMore() {
		return len(e.appendOpen(nil)) + len(closing)
	}
	return len(opening) + len(e.rules.JSON()) + 2*len(closing)
}

// hasMore reports whether the event has members that the service does not know.
func (e *event) hasMore() bool { return len(e.extra)+len(e.contentExtra) > 0 }

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
