package pushrule

import (
	"github.com/pushfx/pushfx/module/strictjson"
)

// Draft is a rule as a client submits it. The request's path has the id.
type Draft struct {
	Enabled    *bool       // nil: true for a new rule, unchanged for a replaced one
	Actions    []Action    // required; may be empty
	Conditions []Condition // of override and underride rules
	Pattern    string      // of content rules, which need one
	Extra      []Member    // all other submitted members

	has struct{ actions, pattern bool }
}

// ReadDraft reads a submitted rule and checks it against kind.
func ReadDraft(r *strictjson.Reader, kind Kind) (Draft, error) {
	var d Draft
	path := r.Path()
	if err := r.Object(func(name string) error { return d.ReadMember(r, name) }); err != nil {
		return Draft{}, err
	}
	return d, d.Complete(kind, path)
}

// ReadMember reads one member of a submitted rule. It is for requests that contain
// other members, too. Call [Draft.Complete] afterwards. Null counts as absent for
// enabled, conditions and pattern.
func (d *Draft) ReadMember(r *strictjson.Reader, name string) (err error) {
	switch name {
	case "rule_id", "default": // set by the request's path and the server
		return r.Skip()
	case "enabled":
		if null, err := r.Null(); null {
			return err
		}
		var enabled bool
		enabled, err = r.Bool()
		d.Enabled = &enabled
	case "actions":
		d.has.actions = true
		d.Actions, err = ReadActions(r)
	case "conditions":
		if null, err := r.Null(); null {
			return err
		}
		d.Conditions, err = readConditions(r)
	case "pattern":
		if null, err := r.Null(); null {
			return err
		}
		d.has.pattern = true
		d.Pattern, err = r.String()
	default:
		d.Extra, err = r.Keep(d.Extra, name)
	}
	return err
}

// Complete refuses a draft without the members that kind requires, and drops the
// members that only other kinds have. Its errors name fields below path, which is empty
// if the rule is the whole body.
func (d *Draft) Complete(kind Kind, path string) error {
	if path != "" {
		path += "."
	}
	if !d.has.actions {
		return strictjson.Missing(path + "actions")
	}
	if !kind.HasConditions() {
		d.Conditions = nil
	}
	switch {
	case !kind.HasPattern():
		d.Pattern = ""
	case !d.has.pattern:
		return strictjson.Missing(path + "pattern")
	case d.Pattern == "":
		return strictjson.WrongShape(path+"pattern", "a non-empty string")
	}
	return nil
}

// rule returns the rule with an id. The argument enabled applies if the draft does not
// set Enabled.
func (d Draft) rule(id string, enabled bool) Rule {
	if d.Enabled != nil {
		enabled = *d.Enabled
	}
	return Rule{
		ID: id, Enabled: enabled, Actions: d.Actions, Conditions: d.Conditions,
		Pattern: d.Pattern, Extra: d.Extra,
	}
}
