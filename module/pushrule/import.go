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

// Name names a rule of a set.
type Name struct {
	Kind Kind
	ID   string
}

// RefusedRule is a rule of another server that is not imported. Its name is as
// that server has it; the kind may be one that the service does not know, then
// without an id. The error tells why, and repeats nothing of the rule.
type RefusedRule struct {
	Name
	Err error
}

// Imported is what the rules of another server become.
type Imported struct {
	Rules   Ruleset       // the whole set: the user's own rules and the defaults of the table
	Own     int           // how many rules of the user's own it has
	Refused []RefusedRule // what it does not have, kind by kind
	Dropped []Name        // default rules of the other server that the table does not have
}

// Import makes a set of the content of an m.push_rules event from another
// server, {"global":{...}}, and the table, which is what [Defaults.For] returned
// for the user.
//
// A rule whose id starts with a dot is a default one, whatever its member
// default says: where the table has it, it gives its enabled state and its
// actions to the one of the table. The three legacy rules give theirs to those
// that took their place, unless the content has these:
//
//	.m.rule.contains_user_name     to .m.rule.is_user_mention
//	.m.rule.contains_display_name  to .m.rule.is_user_mention, if the former is not there
//	.m.rule.roomnotif              to .m.rule.is_room_mention
//
// Every other rule is the user's own. It is kept if a client may put it and the
// limits allow it, in the order in which it stands, and its default is false.
// Unknown members of the set are kept; what the content has beside global is
// not.
//
// Error: [Unreadable] for a content that is no JSON or not of this form.
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
	for n, kind := range Kinds() { // when all defaults have found room
		own := i.ownRules(kind)
		at := indexOf(l[n], masterID) + 1
		l[n] = slices.Insert(l[n], at, own...)
		i.Own += len(own)
	}
	i.Rules = Ruleset{l.document(i.extra(kinds))}
	return i.Imported, nil
}

// splitContent takes a content apart: the members of global, of which the lists
// of rules may have any form. It is less strict than package strictjson, so that
// one bad rule does not cost a user all others.
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

// importing is an import under way.
type importing struct {
	Imported

	table    Ruleset
	limits   Limits
	settings map[Name]Draft         // of default rules
	own      [kindCount][]namedRule // in their order

	bytes, rules int // of the set as it is so far
}

type namedRule struct {
	id   string
	text string
}

func (i *importing) refuse(kind Kind, id string, err error) {
	i.Refused = append(i.Refused, RefusedRule{Name{kind, id}, err})
}

// read sorts the rules of a kind: settings of default rules, and the user's own.
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

// maxImportDepth is how deep a rule may nest, as in a request of a client.
const maxImportDepth = 64

// importedID returns the id of a rule, as far as it can be read.
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

// readSettings takes in what a default rule of the other server has to give.
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

// ErrTwice is for the second rule of a kind and id in a set that is imported.
var ErrTwice = fault.New(fault.InvalidParam, "There is another rule of this id.")

// readImported reads a rule strictly, of its members those that are wanted, and
// its id.
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

// inheritance is a legacy rule with the one that took its place.
type inheritance struct{ legacy, heir Name }

// inheritances come in the order in which they count.
func inheritances() []inheritance {
	user, room := Name{Override, ".m.rule.is_user_mention"}, Name{Override, ".m.rule.is_room_mention"}
	return []inheritance{
		{Name{Content, legacyUserName}, user},
		{Name{Override, legacyDisplayName}, user},
		{Name{Override, legacyRoomNotif}, room},
	}
}

// inheritFromLegacy gives the settings of legacy rules to their heirs.
func (i *importing) inheritFromLegacy() {
	for _, h := range inheritances() {
		settings, found := i.settings[h.legacy]
		if _, has := i.settings[h.heir]; found && !has {
			i.settings[h.heir] = settings
		}
	}
}

// defaults returns the default rules of a kind with the user's settings.
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

// ownRules returns the user's own rules of a kind.
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

// ownRule reads a rule as a client would have to submit it.
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

// grow makes room for something in the set, unless the limits do not allow it.
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

// extra returns the members of the set that are not lists of rules.
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
