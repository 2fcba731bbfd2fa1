// Package pushrule holds push rule sets as pure values and the operations on
// them: reading and writing their JSON, changing them, the server-default
// rules and their merge. It does no I/O and knows no clock and no randomness.
//
// Whatever a client or an operator put into a set and the service does not
// interpret (unknown kinds, conditions, actions, keys, the digits of numbers)
// survives reading, changing and writing.
package pushrule

import (
	"slices"

	"github.com/pushfx/pushfx/module/strictjson"
)

// Ruleset is one user's push rules: for each kind a list in order of priority,
// highest first. The zero value is an empty set, ready to use.
//
// A Ruleset is a value: changing a copy leaves the original as it was. Methods
// that change it are not safe for concurrent use with others.
type Ruleset struct {
	lists [kindCount][]Rule
	extra []Member // kinds that the service does not know
	text  string   // the JSON the set was read from, empty once it was changed
}

// Read reads a rule set from its JSON text, an object with a list for each
// kind; absent kinds are empty. What is not a rule set gives an error that
// names the place; it is for the caller to say whose fault that is.
func Read(text string) (Ruleset, error) {
	r := strictjson.NewReader(text)
	s, err := ReadRuleset(r)
	if err != nil {
		return Ruleset{}, err
	}
	return s, r.End()
}

// ReadRuleset is [Read] for a set within a larger text.
func ReadRuleset(r *strictjson.Reader) (Ruleset, error) {
	var s Ruleset
	start := r.Offset()
	err := r.Object(func(name string) (err error) {
		if kind := Kind(name); kind.Valid() {
			s.lists[kind.index()], err = readRules(r, kind)
			return err
		}
		s.extra, err = r.Keep(s.extra, name)
		return err
	})
	if err != nil {
		return Ruleset{}, err
	}
	s.text = r.Since(start)
	return s, nil
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

// List returns the rules of a kind, highest priority first. The list is
// read-only.
func (s *Ruleset) List(kind Kind) []Rule {
	if !kind.Valid() {
		return nil
	}
	return slices.Clip(s.lists[kind.index()])
}

// Rule returns the rule of a kind and id; found is false where there is none.
func (s *Ruleset) Rule(kind Kind, id string) (rule Rule, found bool) {
	list := s.List(kind)
	if i := indexOf(list, id); i >= 0 {
		return list[i], true
	}
	return Rule{}, false
}

// Len returns the number of rules of all kinds.
func (s *Ruleset) Len() int {
	n := 0
	for _, list := range s.lists {
		n += len(list)
	}
	return n
}

// Equal reports whether both sets have the same JSON.
func (s *Ruleset) Equal(other Ruleset) bool {
	return string(s.AppendJSON(nil)) == string(other.AppendJSON(nil))
}

// AppendJSON appends the set as a JSON object. A set that was read and not
// changed is appended byte for byte as it was read; otherwise all five kinds
// are there, empty ones as [].
func (s *Ruleset) AppendJSON(dst []byte) []byte {
	if s.text != "" {
		return append(dst, s.text...)
	}
	dst = append(dst, '{')
	for i, kind := range Kinds() {
		dst = append(strictjson.AppendMember(dst, string(kind)), '[')
		for j, rule := range s.lists[i] {
			if j > 0 {
				dst = append(dst, ',')
			}
			dst = rule.AppendJSON(dst, kind)
		}
		dst = append(dst, ']')
	}
	return append(strictjson.AppendMembers(dst, s.extra), '}')
}

// MarshalJSON returns what [Ruleset.AppendJSON] appends.
func (s Ruleset) MarshalJSON() ([]byte, error) { return s.AppendJSON(nil), nil }

// setList puts a new list in a kind's place; from then on the set's JSON is
// made anew.
func (s *Ruleset) setList(kind Kind, list []Rule) {
	s.lists[kind.index()] = list
	s.text = ""
}

func indexOf(list []Rule, id string) int {
	return slices.IndexFunc(list, func(r Rule) bool { return r.ID == id })
}
