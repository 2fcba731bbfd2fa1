package strictjson

import "github.com/go-json-experiment/json/jsontext"

// AppendString appends s as a JSON string, with only the escapes that JSON needs.
// Invalid UTF-8 becomes U+FFFD.
func AppendString(dst []byte, s string) []byte {
	dst, _ = jsontext.AppendQuote(dst, s) // the error only reports invalid UTF-8
	return dst
}

// AppendMember appends a name and a colon, after a comma unless dst ends in an opening
// brace.
func AppendMember(dst []byte, name string) []byte {
	if n := len(dst); n > 0 && dst[n-1] != '{' {
		dst = append(dst, ',')
	}
	return append(AppendString(dst, name), ':')
}

// AppendArray appends an array of JSON texts, unchanged.
func AppendArray[S ~string](dst []byte, texts []S) []byte {
	dst = append(dst, '[')
	for i, text := range texts {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = append(dst, text...)
	}
	return append(dst, ']')
}

// AppendMembers appends members with their original JSON texts.
func AppendMembers(dst []byte, members []Member) []byte {
	for _, m := range members {
		dst = append(AppendMember(dst, m.Name), m.Value...)
	}
	return dst
}
