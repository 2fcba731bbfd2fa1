package match

import (
	"cmp"
	"strconv"
	"strings"

	"github.com/pushfx/pushfx/module/strictjson"
)

// maxInteger and its negative are the limits of integers (Matrix specification,
// appendices, "Canonical JSON").
const maxInteger = 1<<53 - 1

type valueKind uint8

const (
	compound valueKind = iota // an object, or a number that is invalid in canonical JSON
	null
	falsehood
	truth
	integer
	textual
	array
)

type value struct {
	kind   valueKind
	number int64  // of an integer
	text   string // of a string, or of a number that is invalid in canonical JSON
}

// isScalar reports whether event_property_is and event_property_contains can compare v.
func (v value) isScalar() bool { return v.kind != compound && v.kind != array }

func (v value) compare(w value) int {
	return cmp.Or(cmp.Compare(v.kind, w.kind), cmp.Compare(v.number, w.number), strings.Compare(v.text, w.text))
}

// readScalar reads a value that is neither an object nor an array.
func readScalar(w *strictjson.Walker) value {
	switch w.Next() {
	case '"':
		return value{kind: textual, text: w.String()}
	case 't':
		w.Skip()
		return value{kind: truth}
	case 'f':
		w.Skip()
		return value{kind: falsehood}
	case 'n':
		w.Skip()
		return value{kind: null}
	}
	return readNumber(w.Skip())
}

func readNumber(number string) value {
	digits, negative := strings.CutPrefix(number, "-")
	n, ok := readShort(digits)
	if !ok {
		n, ok = readScientific(digits)
	}
	if !ok || n > maxInteger {
		return value{kind: compound, text: number}
	}
	if negative {
		n = -n
	}
	return value{kind: integer, number: n}
}

func readShort(digits string) (n int64, ok bool) {
	if len(digits) > 16 {
		return 0, false
	}
	for i := range len(digits) {
		d := digits[i] - '0'
		if d > 9 {
			return 0, false
		}
		n = n*10 + int64(d)
	}
	return n, true
}

// readScientific reads an integer of up to 16 digits, in any notation, such as 10.0 or
// 1e1.
func readScientific(number string) (n int64, ok bool) {
	mantissa, exponent, scaled := number, "", false
	if i := strings.IndexAny(number, "eE"); i >= 0 {
		mantissa, exponent, scaled = number[:i], number[i+1:], true
	}
	whole, fraction, _ := strings.Cut(mantissa, ".")
	digits := strings.TrimLeft(whole+fraction, "0")
	significant := strings.TrimRight(digits, "0")
	if significant == "" {
		return 0, true
	}
	power := len(digits) - len(significant) - len(fraction)
	if scaled {
		e, err := strconv.ParseInt(exponent, 10, 32)
		if err != nil {
			return 0, false // far too large, or far too small to be an integer
		}
		power += int(e)
	}
	if power < 0 || len(significant)+power > 16 {
		return 0, false
	}
	return readShort(significant + strings.Repeat("0", power))
}
