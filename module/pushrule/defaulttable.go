package pushrule

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"unicode/utf8"

	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/strictjson"
)

// DefaultRule is a server-default rule beyond the specification.
type DefaultRule struct {
	Kind       Kind
	ID         string      // starts with a dot; unique among the default rules of all kinds
	Disabled   bool        // whether the rule is off until a user turns it on
	Actions    []Action    // as a client may submit them; may be empty
	Conditions []Condition // of override and underride rules, as a client may submit them
	Pattern    string      // of content rules, which need one
	Before     string      // the default rule of the same kind directly below this rule; empty: this rule is the last of its kind
}

// Defaults is a table of server-default rules: the rules of the specification, of
// features and of the host. The zero value has only the rules of the specification. A
// table never changes and is safe for concurrent use.
type Defaults struct{ extra []DefaultRule }

// NewDefaults returns a table with the rules of the specification, of features in any
// order, and of the host in the given order. Before may name a rule of the
// specification except .m.rule.master, a rule of a feature, or an earlier rule of the
// host. NewDefaults checks each rule against the comments of [DefaultRule], and joins
// the errors.
func NewDefaults(features []Feature, own ...DefaultRule) (Defaults, error) {
	var d Defaults
	var errs []error
	ordered := slices.SortedStableFunc(slices.Values(features), func(a, b Feature) int {
		return cmp.Compare(featureOrder(a.Name), featureOrder(b.Name))
	})
	for _, feature := range ordered {
		if len(feature.Rules) == 0 {
			errs = append(errs, fmt.Errorf("feature %q has no rules, want one of %s or a Feature with rules", feature.Name, FeatureNames()))
		}
		errs = append(errs, d.addAll("feature "+feature.Name+": ", feature.Rules))
	}
	errs = append(errs, d.addAll("", own))
	if err := errors.Join(errs...); err != nil {
		return Defaults{}, err
	}
	return d, nil
}

// addAll adds rules. Errors begin with owner.
func (d *Defaults) addAll(owner string, rules []DefaultRule) error {
	var errs []error
	for _, rule := range rules {
		if err := d.add(rule); err != nil {
			errs = append(errs, fmt.Errorf("%sdefault rule %q: %w", owner, rule.ID, err))
		}
	}
	return errors.Join(errs...)
}

// For returns the user's default rules.
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
	return Ruleset{l.document(nil)}
}

func (r DefaultRule) rule() Rule {
	return Rule{
		ID: r.ID, Default: true, Enabled: !r.Disabled, Actions: slices.Clone(r.Actions),
		Conditions: slices.Clone(r.Conditions), Pattern: r.Pattern,
	}
}

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

func (r DefaultRule) check(table *Ruleset) error {
	_, found := table.Rule(r.Kind, r.Before)
	switch {
	case !r.Kind.Valid():
		return fmt.Errorf("kind is %q, want one of %q", r.Kind, Kinds())
	case !isReserved(r.ID) || !isWellFormed(r.ID[1:]):
		return errors.New("want an id of a dot and a valid rule id")
	case IsLegacy(r.ID):
		return errors.New("want an id other than the three legacy rules")
	case table.hasID(r.ID):
		return errors.New("want an id that is unique among the default rules of all kinds")
	case r.Before == masterID:
		return errors.New("want a rule below " + masterID + ", which must be first")
	case r.Before != "" && !found:
		return fmt.Errorf("before is %q, want a default rule of kind %s that is already in the table", r.Before, r.Kind)
	}
	return r.checkMembers()
}

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

// reread encodes the rule and reads it as if a client had submitted it.
func (r DefaultRule) reread() (Draft, error) {
	reader := strictjson.NewReader(string(r.rule().AppendJSON(nil, r.Kind)))
	d, err := ReadDraft(reader, r.Kind)
	switch {
	case err != nil:
		return Draft{}, fmt.Errorf("want a rule that a client may submit: %w", err)
	case !slices.Equal(d.Actions, r.Actions) || !slices.Equal(d.Conditions, r.Conditions):
		return Draft{}, errors.New("want the text of one JSON value for each action and condition")
	}
	return d, nil
}

func (s *Ruleset) hasID(id string) bool {
	for _, kind := range Kinds() {
		if _, _, found := s.doc.find(kind, id); found {
			return true
		}
	}
	return false
}
