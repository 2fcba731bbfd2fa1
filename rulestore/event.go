package rulestore

import (
	"github.com/pushfx/pushfx/module/pushrule"
	"github.com/pushfx/pushfx/module/strictjson"
)

// event is the stored account-data event, {"type":"m.push_rules","content":
// {"global":{...}}}. Other keys in it and in its content are kept.
type event struct {
	rules        pushrule.Ruleset
	found        bool // whether content is an object
	extra        []strictjson.Member
	contentExtra []strictjson.Member
}

// readEvent reads a stored event. What is no event, or has a content that
// cannot be read, gives [pushrule.Unreadable].
func readEvent(text string) (event, error) {
	var e event
	r := strictjson.NewReader(text)
	err := r.Object(func(name string) (err error) {
		switch name {
		case "type":
			return r.Skip()
		case "content":
			return e.readContent(r)
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

// text is the event as it is stored.
func (e *event) text() string {
	b := []byte(`{"type":"m.push_rules","content":{"global":`)
	b = e.rules.AppendJSON(b)
	b = append(strictjson.AppendMembers(b, e.contentExtra), '}')
	return string(append(strictjson.AppendMembers(b, e.extra), '}'))
}
