package strictjson

import (
	"bytes"

	"github.com/go-json-experiment/json/jsontext"
)

// Equal reports whether two texts of JSON have the same value, however they are
// written: with other space, escapes, digits or order of members (RFC 8785).
func Equal(a, b string) bool {
	if a == b {
		return true
	}
	x, y := jsontext.Value(a), jsontext.Value(b)
	return x.Canonicalize() == nil && y.Canonicalize() == nil && bytes.Equal(x, y)
}
