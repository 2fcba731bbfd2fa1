package pushrule

import (
	"slices"
	"strconv"
	"strings"
)

// Position places a rule in its kind's list. An empty id means none.
type Position struct {
	Before string // directly above this rule; takes precedence over After
	After  string // directly below this rule
}

// Put adds a rule or replaces the rule of the same kind and id.
//
// Without a position, a new rule becomes the user's first of its kind, in override
// directly below .m.rule.master; a replaced rule keeps its place. With a position, the
// rule moves there, unless the position names the rule itself.
//
// Errors, in order of the checks: [ErrUnknownKind], [ErrReservedID], [ErrInvalidID],
// [ErrInvalidData] (a content rule without a pattern), [ErrAnchorIsDefault],
// [ErrAnchorNotFound], [ErrAnchorOrder]. An error changes nothing.
func (s *Ruleset) Put(kind Kind, id string, d Draft, at Position) error {
	if !kind.Valid() {
		return ErrUnknownKind
	}
	if err := ValidateID(id); err != nil {
		return err
	}
	if kind.HasPattern() && d.Pattern == "" {
		return ErrInvalidData
	}
	doc := s.doc.canonicalized()
	made := func(enabled bool) ruleText { return newEntry(kind, d.rule(id, enabled)) }
	if at == (Position{}) {
		if next, done := doc.putInPlace(kind, id, made); done {
			s.doc = next
			return nil
		}
	}
	list, listed := doc.entryList(kind)
	if kind == Override {
		list = hoistMaster(list)
	}
	if err := checkPosition(list, at); err != nil {
		return err
	}
	s.doc = doc.withList(listed, place(kind, list, id, made, at))
	return nil
}

// putInPlace edits the text without parsing all rules. Done is false if it cannot: for
// a text that is not canonical, for the override list, which begins with
// .m.rule.master, and for a damaged list with a repeated id.
func (d document) putInPlace(kind Kind, id string, made func(enabled bool) ruleText) (next document, done bool) {
	if !d.canonical || kind == Override {
		return d, false
	}
	at, old, found := d.find(kind, id)
	if !found {
		first, behind := d.firstRule(kind), ","
		if strings.HasPrefix(d.text[first:], "]") {
			behind = ""
		}
		return d.withRule(span{first, first}, made(true), behind), true
	}
	if _, _, twice := d.search(at.end, kind, id); twice {
		return d, false
	}
	return d.withRule(at, made(old.flag("enabled")), ""), true
}

func checkPosition(list []ruleText, at Position) error {
	if isReserved(at.Before) || isReserved(at.After) {
		return ErrAnchorIsDefault
	}
	above, err := anchor(list, at.After)
	if err != nil {
		return err
	}
	below, err := anchor(list, at.Before)
	if err != nil {
		return err
	}
	if at.Before != "" && at.After != "" && below <= above {
		return ErrAnchorOrder
	}
	return nil
}

func anchor(list []ruleText, id string) (int, error) {
	if id == "" {
		return -1, nil
	}
	i := indexOfEntry(list, id)
	switch {
	case i < 0:
		return 0, ErrAnchorNotFound
	case list[i].isServerDefault():
		return 0, ErrAnchorIsDefault
	}
	return i, nil
}

// place puts a new or replaced rule into list, and may overwrite list. Without a
// position, a replaced rule keeps its place.
func place(kind Kind, list []ruleText, id string, made func(enabled bool) ruleText, at Position) []ruleText {
	stood := indexOfEntry(list, id)
	if stood < 0 {
		return slices.Insert(list, newIndex(kind, list, at), made(true))
	}
	rule := made(list[stood].flag("enabled"))
	anchorID := at.Before
	if anchorID == "" {
		anchorID = at.After
	}
	if anchorID == "" || anchorID == id {
		list[stood] = rule
		return removeID(list, id, stood+1)
	}
	list = removeID(list, id, 0)
	return slices.Insert(list, newIndex(kind, list, at), rule)
}

// newIndex returns the index for a new rule. The list must contain the rules that the
// position names.
func newIndex(kind Kind, list []ruleText, at Position) int {
	switch {
	case at.Before != "":
		return indexOfEntry(list, at.Before)
	case at.After != "":
		return indexOfEntry(list, at.After) + 1
	case kind == Override && len(list) > 0 && list[0].id == masterID:
		return 1
	}
	return 0
}

// hoistMaster moves .m.rule.master to the top of a damaged list, so that a new rule
// cannot get above it.
func hoistMaster(list []ruleText) []ruleText {
	i := indexOfEntry(list, masterID)
	if i <= 0 {
		return list
	}
	master := list[i]
	return slices.Insert(slices.Delete(list, i, i+1), 0, master)
}

func removeID(list []ruleText, id string, from int) []ruleText {
	kept := slices.DeleteFunc(list[from:], func(e ruleText) bool { return e.id == id })
	return list[:from+len(kept)]
}

// Delete removes a user's rule. Errors: [ErrUnknownKind], [ErrRuleNotFound], and
// [ErrDeleteDefault] for a server-default rule or a rule with "default": true. An error
// changes nothing.
func (s *Ruleset) Delete(kind Kind, id string) error {
	if !kind.Valid() {
		return ErrUnknownKind
	}
	doc := s.doc.canonicalized()
	list, listed := doc.entryList(kind)
	i := indexOfEntry(list, id)
	switch {
	case i < 0:
		return ErrRuleNotFound
	case list[i].isServerDefault() || list[i].flag("default"):
		return ErrDeleteDefault
	}
	s.doc = doc.withList(listed, removeID(list, id, 0))
	return nil
}

// SetEnabled turns any rule on or off. Errors: [ErrUnknownKind], [ErrRuleNotFound].
func (s *Ruleset) SetEnabled(kind Kind, id string, enabled bool) error {
	return s.setMember(kind, id, "enabled", strconv.FormatBool(enabled))
}

// SetActions replaces the actions of any rule. Errors: [ErrUnknownKind],
// [ErrRuleNotFound].
func (s *Ruleset) SetActions(kind Kind, id string, actions []Action) error {
	return s.setMember(kind, id, "actions", string(AppendActions(nil, actions)))
}

func (s *Ruleset) setMember(kind Kind, id, name, value string) error {
	if !kind.Valid() {
		return ErrUnknownKind
	}
	doc := s.doc.canonicalized()
	at, e, found := doc.find(kind, id)
	if !found {
		return ErrRuleNotFound
	}
	member := e.member(name)
	s.doc = doc.withValue(span{at.start + member.start, at.start + member.end}, value)
	return nil
}
