package match_test

import (
	"encoding/json"
	"strconv"
	"strings"
	"unicode/utf16"
)

// dialect is a reading of the specification. The zero value is the reference's reading;
// each member is a deviation of matrix-js-sdk.
type dialect struct {
	outside    bool // a word boundary is a neighbor of the match, never its first or last character
	lineBreaks bool // * matches no line breaks
	dots       bool // ? matches only a dot
	upperCase  bool // characters are equal if JavaScript's regular expressions treat them as equal
	floats     bool // numbers are compared as floating-point numbers
	senders    bool // sender rules compare user_id
	emptyKeys  bool // an empty key or pattern counts as missing
	fifty      bool // every notification has the default level 50
	insides    bool // keys lead into strings and arrays
	released   bool // kinds of conditions that only a proposal has match nothing
}

type quirk struct {
	name   string
	reason string // the sentence of the specification that it violates
	only   dialect
}

var quirks = []quirk{
	{"boundary", `"substring ... which starts and ends at a word boundary": @room starts with one, after whatever character`, dialect{outside: true}},
	{"line break", `"The character * matches zero or more characters"; a line break is one`, dialect{lineBreaks: true}},
	{"question mark", `"? matches exactly one character"; in matrix-js-sdk, only a dot`, dialect{dots: true}},
	{"case", `"The exact meaning of case insensitive is defined by the implementation of the homeserver", which is simple case folding here`, dialect{upperCase: true}},
	{"numbers", `"integers in the range of [-(2**53)+1, (2**53)-1]": fractions and larger integers do not match`, dialect{floats: true}},
	{"sender rules", `"messages from a specific Matrix user ID", which is in sender; events have no user_id`, dialect{senders: true}},
	{"empty", `a property's name, and a pattern, may be empty`, dialect{emptyKeys: true}},
	{"other levels", `the schema of m.room.power_levels has a default, 50, for "room" alone`, dialect{fifty: true}},
	{"insides", `a path is of "property names": strings and arrays have none`, dialect{insides: true}},
	{"proposals", `none: recipient_permission is of a proposal, MSC4506`, dialect{released: true}},
}

var jsSDK = dialect{
	outside: true, lineBreaks: true, dots: true, upperCase: true,
	floats: true, senders: true, emptyKeys: true, fifty: true, insides: true, released: true,
}

func (d dialect) hides(kind string, rule map[string]any) bool {
	return d.senders && kind == "sender" || d.emptyKeys && kind == "content" && rule["pattern"] == "" ||
		d.emptyKeys && hasEmptyKey(rule)
}

func hasEmptyKey(rule map[string]any) bool {
	conditions, _ := rule["conditions"].([]any)
	for _, condition := range conditions {
		if c, _ := condition.(map[string]any); c["key"] == "" {
			return true
		}
	}
	return false
}

func (d dialect) any(r rune) bool {
	return !d.lineBreaks || !strings.ContainsRune("\n\r\u2028\u2029", r)
}

func (d dialect) one(r rune) bool { return !d.dots || r == '.' }

func (d dialect) same(a, b rune) bool {
	if d.upperCase {
		return jsCanonical(a) == jsCanonical(b)
	}
	return strings.EqualFold(string(a), string(b))
}

// jsCanonical is ECMAScript's "Canonicalize" without the flag u: it returns the upper
// case if that is one character and does not turn r into ASCII.
func jsCanonical(r rune) rune {
	upper := []rune(strings.ToUpper(string(r)))
	if r == 'ß' || len(upper) != 1 || r >= 128 && upper[0] < 128 {
		return r
	}
	return upper[0]
}

func float(number json.Number) float64 {
	f, err := strconv.ParseFloat(string(number), 64)
	if err != nil {
		panic(err)
	}
	return f
}

// inside returns a property of a string or an array, as JavaScript does.
func (d dialect) inside(of any, name string) (v any, found bool) {
	if !d.insides {
		return nil, false
	}
	switch of := of.(type) {
	case string:
		if name == "length" {
			return json.Number(strconv.Itoa(len(utf16.Encode([]rune(of))))), true
		}
		if units := utf16.Encode([]rune(of)); name == "0" && len(units) > 0 {
			return string(utf16.Decode(units[:1])), true
		}
	case []any:
		if name == "length" {
			return json.Number(strconv.Itoa(len(of))), true
		}
		if name == "0" && len(of) > 0 {
			return of[0], true
		}
	}
	return nil, false
}
