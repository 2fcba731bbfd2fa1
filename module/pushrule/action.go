package pushrule

import "github.com/pushfx/pushfx/module/strictjson"

// Action is the JSON text of an action, a string or an object (Matrix specification,
// "Actions"). It stays as the client sent it, even if unknown or historical
// ("dont_notify", "coalesce").
type Action string

// MarshalJSON returns the action's text.
func (a Action) MarshalJSON() ([]byte, error) { return []byte(a), nil }

// ReadActions reads a submitted list: strings, and objects in which set_tweak, if
// present, is a string. The list is never nil.
func ReadActions(r *strictjson.Reader) ([]Action, error) {
	return readList[Action](r, func() (string, error) {
		switch {
		case r.IsString():
			return r.Value()
		case r.IsObject():
			return readTweak(r)
		}
		return "", r.Mismatch("a string or an object")
	})
}

func readTweak(r *strictjson.Reader) (string, error) {
	path := r.Path()
	text, err := r.Value()
	if err != nil {
		return "", err
	}
	w := strictjson.Walk(text)
	for name := range w.Object() {
		if name == "set_tweak" && w.Next() != '"' {
			return "", strictjson.WrongShape(path+".set_tweak", "a string")
		}
	}
	return text, nil
}

// AppendActions appends the list as a JSON array.
func AppendActions(dst []byte, actions []Action) []byte {
	return strictjson.AppendArray(dst, actions)
}
