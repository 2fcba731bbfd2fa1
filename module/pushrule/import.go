package pushrule

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/pushfx/pushfx/module/fault"
	"github.com/pushfx/pushfx/module/strictjson"
)

// Name identifies a rule of a set.
type Name struct {
	Kind Kind
	ID   string
}

// RefusedRule is a rule of another server that was not imported, by its kind and id
// there. For an unknown kind, the id is empty. The error never quotes the rule.
type RefusedRule struct {
	Name
	Err error
}

// Imported is the result of [Import].
type Imported struct {
	Rules   Ruleset       // the whole set: the user's own rules and the defaults of the table
	Own     int           // number of the user's own rules
	Refused []RefusedRule // kind by kind
	Dropped []Name        // default rules of the other server that the table lacks
}

// Import makes a set from the content of another server's m.push_rules event,
// {"global":{...}}, and a table of default rules, which is [Defaults.For] of the user.
//
// An imported rule is a default rule if its id starts with a dot, whatever its member
// "default" is. The rule of the table with the same id, or a feature's rule with the
// other id, takes its enabled state and actions. Legacy rules pass these settings to
// successors that the content lacks:
//
//	.m.rule.contains_user_name     to .m.rule.is_user_mention
//	.m.rule.contains_display_name  to .m.rule.is_user_mention, if contains_user_name is absent
//	.m.rule.roomnotif              to .m.rule.is_room_mention
//
// Import keeps the user's own rules in order, with "default": false, but refuses each
// rule that a client could not put within the limits. It keeps unknown members of the
// set, and drops the content's members other than "global".
//
// If the content has another form, Import returns the error of [Unreadable].
func Import(content string, table Ruleset, limits Limits) (Imported, error) {
	kinds, err := splitContent(content)
	if err != nil {
		return Imported{}, Unreadable(err)
	}
	i := importing{table: table, limits: limits, settings: map[Name]Draft{}, bytes: len(table.JSON()), rules: table.Len()}
	for _, kind := range Kinds() {
		if err := i.read(kind, kinds[kind]); err != nil {
			return Imported{}, Unreadable(err)
		}
	}
	i.inheritFromLegacy()
	var l lists
	for n, kind := range Kinds() {
		l[n] = i.defaults(kind)
	}
	for n, kind := range Kinds() { // after all defaults, so that the user's own rules use only the remaining space
		own := i.ownRules(kind)
		at := indexOf(l[n], masterID) + 1
		l[n] = slices.Insert(l[n], at, own...)
		i.Own += len(own)
	}
	i.Rules = Ruleset{l.document(i.extra(kinds))}
	return i.Imported, nil
}

// splitContent returns the members of "global". It does not use strictjson, which would
// refuse the whole content for one bad rule.
func splitContent(content string) (map[Kind]json.RawMessage, error) {
	var members map[string]json.RawMessage
	var kinds map[Kind]json.RawMessage
	if err := json.Unmarshal([]byte(content), &members); err != nil {
		return nil, errors.New("want a JSON object")
	}
	if err := json.Unmarshal(members["global"], &kinds); err != nil || kinds == nil {
		return nil, errors.New("global must be an object")
	}
	return kinds, nil
}

type importing struct {
	Imported

	table    Ruleset
	limits   Limits
	settings map[Name]Draft // of default rules
	own      [kindCount][]namedRule

	bytes, rules int // of the set so far
}

type namedRule struct {
	id   string
	text string
}

func (i *importing) refuse(kind Kind, id string, err error) {
	i.Refused = append(i.Refused, RefusedRule{Name{kind, id}, err})
}

func (i *importing) read(kind Kind, list json.RawMessage) error {
	var texts []json.RawMessage
	if len(list) == 0 {
		return nil
	}
	if err := json.Unmarshal(list, &texts); err != nil {
		return fmt.Errorf("global.%s must be an array", kind)
	}
	for _, text := range texts {
		id, err := importedID(text)
		switch {
		case err != nil:
			i.refuse(kind, id, err)
		case !isReserved(id):
			i.own[kind.index()] = append(i.own[kind.index()], namedRule{id, string(text)})
		default:
			i.readSettings(kind, id, string(text))
		}
	}
	return nil
}

// maxImportDepth bounds the nesting of a rule, as for clients' requests.
const maxImportDepth = 64

// importedID returns the id of a rule, also with an error if it could read the id.
func importedID(text json.RawMessage) (id string, err error) {
	var members map[string]json.RawMessage
	if json.Unmarshal(text, &members) != nil || members == nil {
		return "", strictjson.WrongShape("", "an object")
	}
	if json.Unmarshal(members["rule_id"], &id) != nil || id == "" {
		return "", strictjson.Missing("rule_id")
	}
	return id, checkDepth(string(text))
}

func checkDepth(text string) error {
	if strictjson.Depth(text) > maxImportDepth {
		return fault.New(fault.NotJSON, fmt.Sprintf("Nested deeper than %d.", maxImportDepth))
	}
	return nil
}

func (i *importing) readSettings(kind Kind, id, text string) {
	name := Name{kind, id}
	isLegacy := slices.ContainsFunc(inheritances(), func(h inheritance) bool { return h.legacy == name })
	_, found := i.table.Rule(kind, id)
	_, renamed := i.table.Rule(kind, otherID(id))
	if !found && !renamed && !isLegacy {
		i.Dropped = append(i.Dropped, name)
		return
	}
	d, _, err := readImported(text, func(name string) bool { return name == "enabled" || name == "actions" })
	if err == nil {
		err = i.limits.CheckActions(d.Actions)
	}
	if _, twice := i.settings[name]; err == nil && twice {
		err = ErrTwice
	}
	if err != nil {
		i.refuse(kind, id, err)
		return
	}
	i.settings[name] = d
}

// ErrTwice refuses the second rule of a kind and id in an imported set.
var ErrTwice = fault.New(fault.InvalidParam, "There is another rule of this id.")

func readImported(text string, wanted func(name string) bool) (d Draft, id string, err error) {
	r := strictjson.NewReader(text)
	err = r.Object(func(name string) (err error) {
		switch {
		case name == "rule_id":
			id, err = r.String()
			return err
		case wanted(name):
			return d.ReadMember(r, name)
		}
		return r.Skip()
	}, "rule_id")
	return d, id, err
}

type inheritance struct{ legacy, heir Name }

// inheritances returns the successors of legacy rules, in order of precedence.
func inheritances() []inheritance {
	user, room := Name{Override, ".m.rule.is_user_mention"}, Name{Override, ".m.rule.is_room_mention"}
	return []inheritance{
		{Name{Content, legacyUserName}, user},
		{Name{Override, legacyDisplayName}, user},
		{Name{Override, legacyRoomNotif}, room},
	}
}

func (i *importing) inheritFromLegacy() {
	for _, h := range inheritances() {
		settings, found := i.settings[h.legacy]
		if _, has := i.settings[h.heir]; found && !has {
			i.settings[h.heir] = settings
		}
	}
}

func (i *importing) defaults(kind Kind) []Rule {
	list := i.table.List(kind)
	for n, rule := range list {
		d, found := i.settings[Name{kind, rule.ID}]
		if !found {
			d, found = i.settings[Name{kind, otherID(rule.ID)}]
		}
		if !found {
			continue
		}
		before := len(rule.AppendJSON(nil, kind))
		if d.Enabled != nil {
			rule.Enabled = *d.Enabled
		}
		if d.has.actions {
			rule.Actions = d.Actions
		}
		if err := i.grow(len(rule.AppendJSON(nil, kind))-before, 0); err != nil {
			i.refuse(kind, rule.ID, err)
			continue
		}
		list[n] = rule
	}
	return list
}

func (i *importing) ownRules(kind Kind) (list []Rule) {
	seen := map[string]bool{}
	for _, named := range i.own[kind.index()] {
		rule, err := i.ownRule(kind, named.text)
		if err == nil && seen[rule.ID] {
			err = ErrTwice
		}
		if err == nil {
			err = i.grow(len(rule.AppendJSON(nil, kind))+len(","), 1)
		}
		if err != nil {
			i.refuse(kind, named.id, err)
			continue
		}
		seen[rule.ID] = true
		list = append(list, rule)
	}
	return list
}

// ownRule reads and checks a rule as if a client had submitted it.
func (i *importing) ownRule(kind Kind, text string) (Rule, error) {
	d, id, err := readImported(text, func(string) bool { return true })
	if err == nil {
		err = d.Complete(kind, "")
	}
	if err == nil {
		err = ValidateID(id)
	}
	if err == nil {
		err = i.limits.CheckDraft(id, d)
	}
	return d.rule(id, true), err
}

func (i *importing) grow(bytes, rules int) error {
	switch {
	case bytes > 0 && i.bytes+bytes > i.limits.MaxSetBytes:
		return i.limits.tooLarge()
	case rules > 0 && i.rules+rules > i.limits.MaxRules:
		return i.limits.tooMany()
	}
	i.bytes, i.rules = i.bytes+bytes, i.rules+rules
	return nil
}

func (i *importing) extra(kinds map[Kind]json.RawMessage) (extra []Member) {
	for _, name := range slices.Sorted(maps.Keys(kinds)) {
		if name.Valid() {
			continue
		}
		value := string(kinds[name])
		err := strictjson.Check(value)
		if err == nil {
			err = checkDepth(value)
		}
		if err == nil {
			err = i.grow(len(strictjson.AppendMember(nil, string(name)))+len(value)+len(","), 0)
		}
		if err != nil {
			i.refuse(name, "", err)
			continue
		}
		extra = append(extra, Member{Name: string(name), Value: value})
	}
	return extra
}
