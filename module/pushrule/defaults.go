package pushrule

import (
	"errors"
	"fmt"
	"slices"
	"unicode/utf8"

	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/strictjson"
)

// masterID is the default rule that stands above every other.
const masterID = ".m.rule.master"

// The three default rules that MSC4210 removed from the specification.
const (
	legacyDisplayName = ".m.rule.contains_display_name" // override
	legacyRoomNotif   = ".m.rule.roomnotif"             // override
	legacyUserName    = ".m.rule.contains_user_name"    // content
)

// IsLegacy reports whether id names one of the three rules that MSC4210
// removed. They are never served.
func IsLegacy(id string) bool {
	return id == legacyDisplayName || id == legacyRoomNotif || id == legacyUserName
}

// HasLegacy reports whether the set holds a rule that [IsLegacy] names.
func (s *Ruleset) HasLegacy() bool { return s.legacy }

// ServerDefault returns the rule set of a user who has changed nothing, where
// the host adds no rules: the predefined rules of the Matrix specification,
// v1.17 and later, in its order. It is what the zero [Defaults] have for the
// user.
func ServerDefault(user mxid.UserID) Ruleset { return specified(user).ruleset(nil) }

// specified returns the rules of [ServerDefault].
func specified(user mxid.UserID) (l lists) {
	id := strictjson.AppendString(nil, string(user))
	l[Override.index()] = []Rule{
		defaultRule(masterID, disabled, nil, nil),
		defaultRule(".m.rule.suppress_notices", enabled, nil,
			conditions(eventMatch("content.msgtype", "m.notice"))),
		defaultRule(".m.rule.invite_for_me", enabled, actions(notify, soundDefault), conditions(
			eventMatch("type", "m.room.member"),
			eventMatch("content.membership", "invite"),
			eventMatch("state_key", string(user)))),
		defaultRule(".m.rule.member_event", enabled, nil,
			conditions(eventMatch("type", "m.room.member"))),
		defaultRule(".m.rule.is_user_mention", enabled, actions(notify, soundDefault, highlight),
			conditions(eventProperty("event_property_contains", `content.m\.mentions.user_ids`, string(id)))),
		defaultRule(".m.rule.is_room_mention", enabled, actions(notify, highlight), conditions(
			eventProperty("event_property_is", `content.m\.mentions.room`, "true"),
			`{"kind":"sender_notification_permission","key":"room"}`)),
		defaultRule(".m.rule.tombstone", enabled, actions(notify, highlight),
			conditions(eventMatch("type", "m.room.tombstone"), eventMatch("state_key", ""))),
		defaultRule(".m.rule.reaction", enabled, nil,
			conditions(eventMatch("type", "m.reaction"))),
		defaultRule(".m.rule.room.server_acl", enabled, nil,
			conditions(eventMatch("type", "m.room.server_acl"), eventMatch("state_key", ""))),
		defaultRule(".m.rule.suppress_edits", enabled, nil,
			conditions(eventProperty("event_property_is", `content.m\.relates_to.rel_type`, `"m.replace"`))),
	}
	l[Underride.index()] = []Rule{
		defaultRule(".m.rule.call", enabled, actions(notify, soundRing),
			conditions(eventMatch("type", "m.call.invite"))),
		defaultRule(".m.rule.encrypted_room_one_to_one", enabled, actions(notify, soundDefault),
			conditions(twoMembers, eventMatch("type", "m.room.encrypted"))),
		defaultRule(".m.rule.room_one_to_one", enabled, actions(notify, soundDefault),
			conditions(twoMembers, eventMatch("type", "m.room.message"))),
		defaultRule(".m.rule.message", enabled, actions(notify),
			conditions(eventMatch("type", "m.room.message"))),
		defaultRule(".m.rule.encrypted", enabled, actions(notify),
			conditions(eventMatch("type", "m.room.encrypted"))),
	}
	return l
}

// DefaultRule is a server-default rule that a host adds to those of the
// specification.
type DefaultRule struct {
	Kind       Kind
	ID         string      // starts with a dot; no other rule of the table has it, of whatever kind
	Disabled   bool        // whether users start with it turned off
	Actions    []Action    // as a client may submit them; may be empty
	Conditions []Condition // of override and underride rules, as a client may submit them
	Pattern    string      // of content rules, where it is required
	Before     string      // the default rule of the same kind that it stands above; empty: the last of its kind
}

// Defaults is a table of server-default rules: those of the specification and
// those that a host adds. To users they are the same. The zero value is the
// specification's table. A table never changes and is safe for concurrent use.
type Defaults struct{ extra []DefaultRule }

// NewDefaults returns the specification's table with the host's rules, which
// come in the order in which they are given: Before may name a rule of the
// specification other than .m.rule.master, above which nothing stands, or an
// earlier one of extra. It joins an error for each rule that is not as the
// comments of [DefaultRule] say.
func NewDefaults(extra ...DefaultRule) (Defaults, error) {
	var d Defaults
	var faults []error
	for _, rule := range extra {
		if err := d.add(rule); err != nil {
			faults = append(faults, fmt.Errorf("default rule %q: %w", rule.ID, err))
		}
	}
	if len(faults) > 0 {
		return Defaults{}, errors.Join(faults...)
	}
	return d, nil
}

// For returns the rule set of a user who has changed nothing.
func (d Defaults) For(user mxid.UserID) Ruleset {
	l := specified(user)
	for _, extra := range d.extra {
		list := l[extra.Kind.index()]
		at := indexOf(list, extra.Before)
		if at < 0 {
			at = len(list)
		}
		l[extra.Kind.index()] = slices.Insert(list, at, extra.rule())
	}
	return l.ruleset(nil)
}

// rule is what a user has who has not changed the default.
func (r DefaultRule) rule() Rule {
	return Rule{
		ID: r.ID, Default: true, Enabled: !r.Disabled, Actions: slices.Clone(r.Actions),
		Conditions: slices.Clone(r.Conditions), Pattern: r.Pattern,
	}
}

// add checks a rule and puts a copy of it into the table.
func (d *Defaults) add(r DefaultRule) error {
	table := d.For("")
	if err := r.check(&table); err != nil {
		return err
	}
	draft, err := r.reread()
	if err != nil {
		return err
	}
	r.Actions, r.Conditions = draft.Actions, draft.Conditions
	d.extra = append(d.extra, r)
	return nil
}

// check refuses a rule that the table has no place for or that has not the
// members of its kind.
func (r DefaultRule) check(table *Ruleset) error {
	_, found := table.Rule(r.Kind, r.Before)
	switch {
	case !r.Kind.Valid():
		return fmt.Errorf("kind is %q, want one of %q", r.Kind, Kinds())
	case !isReserved(r.ID) || !isWellFormed(r.ID[1:]):
		return errors.New("want an id of a dot and what other rule ids may have")
	case IsLegacy(r.ID):
		return errors.New("want an id other than those of rules that are never served")
	case table.hasID(func(id string) bool { return id == r.ID }):
		return errors.New("want an id that no other default rule has, of whatever kind")
	case r.Before == masterID:
		return errors.New("want a rule below " + masterID + ", which stands above all")
	case r.Before != "" && !found:
		return fmt.Errorf("before is %q, want a default rule of kind %s that is already in the table", r.Before, r.Kind)
	}
	return r.checkMembers()
}

// checkMembers refuses a rule that has not the members of its kind.
func (r DefaultRule) checkMembers() error {
	switch {
	case len(r.Conditions) > 0 && !r.Kind.HasConditions():
		return fmt.Errorf("want no conditions for kind %s", r.Kind)
	case r.Pattern != "" && !r.Kind.HasPattern():
		return fmt.Errorf("want no pattern for kind %s", r.Kind)
	case !utf8.ValidString(r.Pattern):
		return errors.New("want a pattern of valid UTF-8")
	}
	return nil
}

// reread reads the rule as one that a client submits.
func (r DefaultRule) reread() (Draft, error) {
	reader := strictjson.NewReader(string(r.rule().AppendJSON(nil, r.Kind)))
	d, err := ReadDraft(reader, r.Kind)
	if err == nil {
		err = reader.End()
	}
	switch {
	case err != nil:
		return Draft{}, fmt.Errorf("want what a client may submit: %w", err)
	case !slices.Equal(d.Actions, r.Actions) || !slices.Equal(d.Conditions, r.Conditions):
		return Draft{}, errors.New("want the text of one JSON value for each action and condition")
	}
	return d, nil
}

type state bool

const (
	enabled  state = true
	disabled state = false
)

const (
	notify       Action = `"notify"`
	soundDefault Action = `{"set_tweak":"sound","value":"default"}`
	soundRing    Action = `{"set_tweak":"sound","value":"ring"}`
	highlight    Action = `{"set_tweak":"highlight"}`

	twoMembers Condition = `{"kind":"room_member_count","is":"2"}`
)

func defaultRule(id string, is state, do []Action, when []Condition) Rule {
	return Rule{ID: id, Default: true, Enabled: bool(is), Actions: do, Conditions: when}
}

func actions(list ...Action) []Action          { return list }
func conditions(list ...Condition) []Condition { return list }

func eventMatch(key, pattern string) Condition {
	b := strictjson.AppendString([]byte(`{"kind":"event_match","key":`), key)
	b = strictjson.AppendString(append(b, `,"pattern":`...), pattern)
	return Condition(append(b, '}'))
}

// eventProperty makes one of the event_property conditions; value is JSON.
func eventProperty(kind, key, value string) Condition {
	b := strictjson.AppendString([]byte(`{"kind":"`+kind+`","key":`), key)
	b = append(append(b, `,"value":`...), value...)
	return Condition(append(b, '}'))
}

// MergeDefaults brings the set's server-default rules to the table, which is
// what [Defaults.For] returned for the user: each rule of the table takes its
// definition from there, and its enabled state and actions from the set where
// the set has it; default rules that the table does not have go, the legacy
// ones among them. The user's own rules stay, in their order, above the
// defaults; only .m.rule.master is above them. A second merge with the same
// table changes nothing.
func (s *Ruleset) MergeDefaults(table Ruleset) {
	set := s.tidy()
	for _, kind := range Kinds() {
		var merged []entry
		list, listed := set.entryList(kind)
		for _, e := range list {
			if !e.isServerDefault() {
				merged = append(merged, e)
			}
		}
		for _, rule := range table.List(kind) {
			if old, found := set.Rule(kind, rule.ID); found {
				rule.Enabled, rule.Actions, rule.Extra = old.Enabled, old.Actions, old.Extra
			}
			merged = append(merged, newEntry(kind, rule))
		}
		set.setEntries(listed, hoistMaster(merged))
	}
	set.legacy = false
	*s = set
}

// IsCurrent reports whether [Ruleset.MergeDefaults] with the table would leave
// every rule as it is and where it is.
func (s *Ruleset) IsCurrent(table Ruleset) bool {
	for _, kind := range Kinds() {
		list, _ := s.entryList(kind)
		want, _ := table.entryList(kind)
		if !isCurrent(kind, list, want) {
			return false
		}
	}
	return true
}

// isCurrent is [Ruleset.IsCurrent] for the rules of a kind: .m.rule.master comes
// first, then the user's rules, and then the defaults in the order of the table.
func isCurrent(kind Kind, list, want []entry) bool {
	belowDefaults := false
	for _, e := range list {
		switch {
		case !e.isServerDefault():
			if belowDefaults {
				return false
			}
			continue
		case len(want) == 0 || !e.isDefinedAs(want[0], kind):
			return false
		case e.id != masterID:
			belowDefaults = true
		}
		want = want[1:]
	}
	return len(want) == 0 && indexOfEntry(list, masterID) <= 0
}

// isDefinedAs compares what a merge takes from the table.
func (e entry) isDefinedAs(other entry, kind Kind) bool {
	if e.text == other.text {
		return true
	}
	a, b := e.rule(kind), other.rule(kind)
	return a.ID == b.ID && a.Default == b.Default && a.Pattern == b.Pattern && slices.Equal(a.Conditions, b.Conditions)
}
