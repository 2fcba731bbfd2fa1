package pushrule

import (
	"strings"

	"github.com/pushfx/pushfx/module/strictjson"
)

// Member is a name and value, kept without interpretation.
type Member = strictjson.Member

// Rule is a push rule (Matrix specification, "Push Rules"). Do not change its lists:
// copies share them.
type Rule struct {
	ID         string      // unique within its kind
	Default    bool        // the member "default"; a dot at the start of the id, not Default, marks a server-default rule
	Enabled    bool        // whether the rule is active
	Actions    []Action    // what to do when the rule matches; may be empty
	Conditions []Condition // of override and underride rules
	Pattern    string      // of content rules
	Extra      []Member    // unknown members
}

// isReserved reports whether an id starts with a dot, as ids of server-default rules
// do. The member "default" is no proof, because other servers let clients set it.
func isReserved(id string) bool { return strings.HasPrefix(id, ".") }

// AppendJSON appends the rule as JSON, with the members of the given kind.
func (r Rule) AppendJSON(dst []byte, kind Kind) []byte {
	dst = append(dst, '{')
	dst = strictjson.AppendString(strictjson.AppendMember(dst, "rule_id"), r.ID)
	dst = appendBool(strictjson.AppendMember(dst, "default"), r.Default)
	dst = appendBool(strictjson.AppendMember(dst, "enabled"), r.Enabled)
	if kind.HasConditions() {
		dst = strictjson.AppendArray(strictjson.AppendMember(dst, "conditions"), r.Conditions)
	}
	if kind.HasPattern() {
		dst = strictjson.AppendString(strictjson.AppendMember(dst, "pattern"), r.Pattern)
	}
	dst = AppendActions(strictjson.AppendMember(dst, "actions"), r.Actions)
	return append(strictjson.AppendMembers(dst, r.Extra), '}')
}

func appendBool(dst []byte, b bool) []byte {
	if b {
		return append(dst, "true"...)
	}
	return append(dst, "false"...)
}

// readRule reads a stored rule. It does not check actions and conditions.
func readRule(r *strictjson.Reader, kind Kind) (Rule, error) {
	var rule Rule
	required := []string{"rule_id", "default", "enabled", "actions"}
	if kind.HasPattern() {
		required = append(required, "pattern")
	}
	err := r.Object(func(name string) (err error) {
		switch {
		case name == "rule_id":
			rule.ID, err = r.String()
		case name == "default":
			rule.Default, err = r.Bool()
		case name == "enabled":
			rule.Enabled, err = r.Bool()
		case name == "actions":
			rule.Actions, err = readList[Action](r, r.Value)
		case name == "conditions" && kind.HasConditions():
			rule.Conditions, err = readList[Condition](r, r.Value)
		case name == "pattern" && kind.HasPattern():
			rule.Pattern, err = r.String()
		default:
			rule.Extra, err = r.Keep(rule.Extra, name)
		}
		return err
	}, required...)
	return rule, err
}

func readList[T ~string](r *strictjson.Reader, element func() (string, error)) ([]T, error) {
	list := []T{}
	err := r.Array(func() error {
		text, err := element()
		list = append(list, T(text))
		return err
	})
	return list, err
}
