package pushrule

import (
	"slices"
	"strconv"
)

// Position says where a rule goes in its kind's list. Empty ids are not given.
type Position struct {
	Before string // directly above this rule; decides where both are given
	After  string // directly below this rule
}

// Put adds a rule or replaces the one of the same kind and id.
//
// Without a position a new rule is the user's most important of its kind (in
// override directly below .m.rule.master) and a replaced one keeps its place.
// With one it ends directly beside the named rule, wherever it stood before. A
// rule placed relative to itself keeps its place.
//
// It fails, and changes nothing, with [ErrUnknownKind], [ErrReservedID],
// [ErrInvalidID], [ErrInvalidData] (a content rule without a pattern),
// [ErrAnchorIsDefault], [ErrAnchorNotFound] or [ErrAnchorOrder], looked for in
// this order.
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
	set := s.tidy()
	made := func(enabled bool) entry { return newEntry(kind, d.rule(id, enabled)) }
	if at == (Position{}) && (set.replace(kind, id, made) ||
		kind != Override && !set.mayHave(id) && set.insertFirst(kind, made(true))) {
		*s = set
		return nil
	}
	list, listed := set.entryList(kind)
	list = hoistMaster(list)
	if err := checkPosition(list, at); err != nil {
		return err
	}
	list = place(list, id, made, at)
	set.setEntries(listed, list)
	set.plain = set.plain && isPlainRule(list[indexOfEntry(list, id)].text)
	*s = set
	return nil
}

// checkPosition refuses a position that does not exist in list.
func checkPosition(list []entry, at Position) error {
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

// anchor returns where a named rule stands; an id that is not given is no
// error.
func anchor(list []entry, id string) (int, error) {
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

// place puts the rule that is made into list, which it may change.
func place(list []entry, id string, made func(enabled bool) entry, at Position) []entry {
	stood := indexOfEntry(list, id)
	if stood < 0 {
		return slices.Insert(list, newIndex(list, at), made(true))
	}
	rule := made(list[stood].flag("enabled"))
	beside := at.Before
	if beside == "" {
		beside = at.After
	}
	if beside == "" || beside == id {
		list[stood] = rule
		return removeID(list, id, stood+1)
	}
	list = removeID(list, id, 0)
	return slices.Insert(list, newIndex(list, at), rule)
}

// newIndex is where a rule that is not in list goes; the rules that at names
// are there.
func newIndex(list []entry, at Position) int {
	switch {
	case at.Before != "":
		return indexOfEntry(list, at.Before)
	case at.After != "":
		return indexOfEntry(list, at.After) + 1
	case len(list) > 0 && list[0].id == masterID:
		return 1
	}
	return 0
}

// hoistMaster moves .m.rule.master to the top, where a damaged set has it
// elsewhere: nothing may be inserted above it.
func hoistMaster(list []entry) []entry {
	i := indexOfEntry(list, masterID)
	if i <= 0 {
		return list
	}
	master := list[i]
	return slices.Insert(slices.Delete(list, i, i+1), 0, master)
}

// removeID removes the rules with an id from list[from:]. Only a damaged set
// has more than one.
func removeID(list []entry, id string, from int) []entry {
	kept := slices.DeleteFunc(list[from:], func(e entry) bool { return e.id == id })
	return list[:from+len(kept)]
}

// Delete removes a user's rule. It fails, and changes nothing, with
// [ErrUnknownKind], [ErrRuleNotFound] or, for a server-default rule and for one
// that says "default": true, [ErrDeleteDefault].
func (s *Ruleset) Delete(kind Kind, id string) error {
	if !kind.Valid() {
		return ErrUnknownKind
	}
	set := s.tidy()
	list, listed := set.entryList(kind)
	i := indexOfEntry(list, id)
	switch {
	case i < 0:
		return ErrRuleNotFound
	case list[i].isServerDefault() || list[i].flag("default"):
		return ErrDeleteDefault
	}
	set.setEntries(listed, removeID(list, id, 0))
	*s = set
	return nil
}

// SetEnabled turns any rule, a server-default one included, on or off. It
// fails, and changes nothing, with [ErrUnknownKind] or [ErrRuleNotFound].
func (s *Ruleset) SetEnabled(kind Kind, id string, enabled bool) error {
	return s.setMember(kind, id, "enabled", strconv.FormatBool(enabled))
}

// SetActions replaces the actions of any rule, a server-default one included.
// It fails, and changes nothing, with [ErrUnknownKind] or [ErrRuleNotFound].
func (s *Ruleset) SetActions(kind Kind, id string, actions []Action) error {
	return s.setMember(kind, id, "actions", string(AppendActions(nil, actions)))
}

// setMember replaces a member that every rule has.
func (s *Ruleset) setMember(kind Kind, id, name, value string) error {
	if !kind.Valid() {
		return ErrUnknownKind
	}
	set := s.tidy()
	at, e, found := set.find(kind, id)
	if !found {
		return ErrRuleNotFound
	}
	member := e.member(name)
	set.splice(span{at.start + member.start, at.start + member.end}, value, isPlainPart(value))
	*s = set
	return nil
}
