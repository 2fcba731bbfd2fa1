package pushrule

import "github.com/pushfx/pushfx/module/strictjson"

// Condition is the JSON text of one condition, an object (Matrix
// specification, "Conditions"). Conditions are kept and returned as they came,
// unknown kinds and extra keys included.
type Condition string

// MarshalJSON returns the condition's text.
func (c Condition) MarshalJSON() ([]byte, error) { return []byte(c), nil }

// readConditions reads a submitted list of conditions: objects whose kind,
// where there is one, is a string. Client libraries that read the set later
// fail as a whole on a kind of another type.
func readConditions(r *strictjson.Reader) ([]Condition, error) {
	return readList[Condition](r, func() (string, error) {
		if !r.IsObject() {
			return "", r.Mismatch("an object")
		}
		return readTagged(r, "kind")
	})
}
