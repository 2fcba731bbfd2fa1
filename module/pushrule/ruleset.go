// Package pushrule has push rule sets as values: their JSON, changes, default rules and
// merge. It does no I/O, and uses neither a clock nor randomness. Unknown kinds,
// conditions, actions and keys, and the digits of numbers, stay unchanged.
package pushrule

import (
	"slices"

	"github.com/pushfx/pushfx/module/strictjson"
)

// Ruleset is one user's push rules: for each kind a list, highest priority first. The
// zero value is an empty set, ready to use.
//
// A set holds its JSON text: a copy costs nothing, a change about as much as copying
// the text. A change to a copy leaves the original unchanged. Methods that change a set
// are not safe for concurrent use.
type Ruleset struct{ doc document }

// Read reads a rule set, a JSON object with a list for each kind. Absent kinds are
// empty. The error for an invalid set names the place in the text.
func Read(text string) (Ruleset, error) {
	return ReadRuleset(strictjson.NewReader(text))
}

// FromCanonical wraps a text without reading it. The text must come from a set for
// which [Ruleset.IsCanonical] is true; otherwise results are undefined.
func FromCanonical(text string) Ruleset { return Ruleset{document{text: text, canonical: true}} }

// IsCanonical reports whether the JSON is exactly as this package writes it, and
// without legacy rules; see [IsLegacy].
func (s *Ruleset) IsCanonical() bool {
	return (s.doc.canonical || s.doc.text == "") && !s.doc.legacy
}

// ReadRuleset is [Read] for a set within a larger text.
func ReadRuleset(r *strictjson.Reader) (Ruleset, error) {
	doc, err := readDocument(r)
	return Ruleset{doc}, err
}

// ReadContent reads the content of an m.push_rules event: its rules, and the members beside
// them. Found is false for a content that is not an object, which has no rules.
func ReadContent(r *strictjson.Reader) (rules Ruleset, extra []Member, found bool, err error) {
	if !r.IsObject() {
		return Ruleset{}, nil, false, r.Skip()
	}
	err = r.Object(func(name string) (err error) {
		if name == "global" {
			rules, err = ReadRuleset(r)
			return err
		}
		extra, err = r.Keep(extra, name)
		return err
	}, "global")
	return rules, extra, true, err
}

func readLists(r *strictjson.Reader) (l lists, extra []Member, err error) {
	err = r.Object(func(name string) (err error) {
		if kind := Kind(name); kind.Valid() {
			l[kind.index()], err = readRules(r, kind)
			return err
		}
		extra, err = r.Keep(extra, name)
		return err
	})
	return l, extra, err
}

func readRules(r *strictjson.Reader, kind Kind) ([]Rule, error) {
	var rules []Rule
	err := r.Array(func() error {
		rule, err := readRule(r, kind)
		rules = append(rules, rule)
		return err
	})
	return rules, err
}

// List returns the rules of a kind, highest priority first.
func (s *Ruleset) List(kind Kind) []Rule {
	var rules []Rule
	for _, e := range s.doc.entries(kind) {
		rules = append(rules, e.rule(kind))
	}
	return rules
}

// Rule returns the rule of a kind and id.
func (s *Ruleset) Rule(kind Kind, id string) (rule Rule, found bool) {
	_, e, found := s.doc.find(kind, id)
	if !found {
		return Rule{}, false
	}
	return e.rule(kind), true
}

// Len returns the number of rules of all kinds.
func (s *Ruleset) Len() int { return s.doc.len() }

// Equal reports whether both sets have the same JSON.
func (s *Ruleset) Equal(other Ruleset) bool { return s.JSON() == other.JSON() }

// JSON returns the text that was read. After a change, it returns an object with a list
// for each of the five kinds, [] for an empty one.
func (s *Ruleset) JSON() string {
	if s.doc.text == "" {
		return emptySet
	}
	return s.doc.text
}

// ShareJSON replaces the set's text by an equal text, such as a part of a larger text
// in memory, so that the set's own text can be freed.
func (s *Ruleset) ShareJSON(text string) {
	if s.doc.text != "" {
		s.doc.text = text
	}
}

// AppendJSON appends [Ruleset.JSON].
func (s *Ruleset) AppendJSON(dst []byte) []byte { return append(dst, s.JSON()...) }

// MarshalJSON returns [Ruleset.JSON].
func (s Ruleset) MarshalJSON() ([]byte, error) { return []byte(s.JSON()), nil }

func indexOf(list []Rule, id string) int {
	return slices.IndexFunc(list, func(r Rule) bool { return r.ID == id })
}
