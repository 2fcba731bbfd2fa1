package pushrule

import (
	"strings"

	"github.com/pushfx/pushfx/module/strictjson"
)

// Condition is the JSON text of a condition, an object (Matrix specification,
// "Conditions"). It stays as the client sent it, even if its kind is unknown.
type Condition string

// MarshalJSON returns the condition's text.
func (c Condition) MarshalJSON() ([]byte, error) { return []byte(c), nil }

// readConditions reads a submitted list. A condition must have a kind and the members
// that its kind needs: strict client libraries drop the
// user's whole set if one member is missing.
func readConditions(r *strictjson.Reader) ([]Condition, error) {
	return readList[Condition](r, func() (string, error) {
		if !r.IsObject() {
			return "", r.Mismatch("an object")
		}
		path := r.Path()
		text, err := r.Value()
		if err != nil {
			return "", err
		}
		return text, checkCondition(text, path)
	})
}

// requiredMembers has the members that each kind of condition needs.
var requiredMembers = map[string][]string{
	"event_match":                    {"key", "pattern"},
	"event_property_is":              {"key", "value"},
	"event_property_contains":        {"key", "value"},
	"room_member_count":              {"is"},
	"sender_notification_permission": {"key"},

	"recipient_permission":                    {"key"}, // MSC4506
	"org.matrix.msc4506.recipient_permission": {"key"},
}

func checkCondition(text, path string) error {
	members := map[string]string{}
	w := strictjson.Walk(text)
	for name := range w.Object() {
		members[name] = w.Skip()
	}
	kind := strictjson.Walk(members["kind"])
	var missing []string
	for _, name := range append([]string{"kind"}, requiredMembers[kind.String()]...) {
		value, found := members[name]
		switch {
		case !found:
			missing = append(missing, path+"."+name)
		case name == "value" && !isPropertyValue(value):
			return strictjson.WrongShape(path+"."+name, "a string, an integer, a boolean or null")
		case name != "value" && value[0] != '"':
			return strictjson.WrongShape(path+"."+name, "a string")
		}
	}
	if missing != nil {
		return strictjson.Missing(missing...)
	}
	return nil
}

func isPropertyValue(value string) bool {
	switch value[0] {
	case '"', 't', 'f', 'n':
		return true
	}
	return strings.Trim(value, "-0123456789") == "" // of all JSON values, only integers
}
