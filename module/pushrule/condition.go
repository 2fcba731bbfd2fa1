package pushrule

import (
	"strings"

	"github.com/pushfx/pushfx/module/strictjson"
)

// Condition is the JSON text of one condition, an object (Matrix
// specification, "Conditions"). Conditions are kept and returned as they came,
// unknown kinds and extra keys included.
type Condition string

// MarshalJSON returns the condition's text.
func (c Condition) MarshalJSON() ([]byte, error) { return []byte(c), nil }

// readConditions reads a submitted list of conditions. Each is an object with a
// kind and, where the specification defines the kind, with what it requires of
// it: strict client libraries drop the whole set of a user when they meet a
// condition that lacks something.
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

// requiredMembers are what a condition needs beside its kind (Matrix
// specification, "Conditions"); none for a kind that the specification does not
// define.
func requiredMembers(kind string) []string {
	switch kind {
	case "event_match":
		return []string{"key", "pattern"}
	case "event_property_is", "event_property_contains":
		return []string{"key", "value"}
	case "room_member_count":
		return []string{"is"}
	case "sender_notification_permission":
		return []string{"key"}
	}
	return nil
}

// checkCondition checks the text of an object; path names it in errors.
func checkCondition(text, path string) error {
	members := map[string]string{}
	w := strictjson.Walk(text)
	for name := range w.Object() {
		members[name] = w.Skip()
	}
	kind := strictjson.Walk(members["kind"])
	var missing []string
	for _, name := range append([]string{"kind"}, requiredMembers(kind.String())...) {
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

// isPropertyValue reports whether a JSON value is of a type that the property of
// an event can be compared with.
func isPropertyValue(value string) bool {
	switch value[0] {
	case '"', 't', 'f', 'n':
		return true
	}
	return strings.Trim(value, "-0123456789") == "" // of all JSON values, only integers
}
