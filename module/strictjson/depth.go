package strictjson

// Depth returns how deep the arrays and objects of a JSON text nest, without
// otherwise parsing it; 0 for a text without any. It looks at every byte once
// and needs no memory, so that it can guard a parser.
func Depth(text string) int {
	depth, deepest := 0, 0
	inString := false
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case inString && c == '\\':
			i++
		case c == '"':
			inString = !inString
		case inString:
		case c == '{' || c == '[':
			depth++
			deepest = max(deepest, depth)
		case c == '}' || c == ']':
			depth--
		}
	}
	return deepest
}
