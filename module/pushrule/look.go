package pushrule

import "github.com/pushfx/pushfx/module/strictjson"

// look is a quick way to read a set. It looks at no more than is needed to tell
// that the text is one; where it does not say ok, [ReadRuleset] tells why.
func look(text string) (s Ruleset, ok bool) {
	if !strictjson.Valid(text) {
		return Ruleset{}, false
	}
	w := strictjson.Walk(text)
	if w.Next() != '{' {
		return Ruleset{}, false
	}
	s = Ruleset{text: text}
	next := 0 // the kind that the service writes next
	for name := range w.Object() {
		kind := Kind(name)
		i := kind.index()
		s.loose = s.loose || next < kindCount && i != next
		next++
		if i >= 0 && !s.lookAtList(&w, kind) {
			return Ruleset{}, false
		}
	}
	s.loose = s.loose || next < kindCount
	s.plain = !s.loose && isPlain(text, s.Len())
	return s, true
}

func (s *Ruleset) lookAtList(w *strictjson.Walker, kind Kind) (ok bool) {
	if w.Next() != '[' {
		return false
	}
	for range w.Array() {
		if w.Next() != '{' || !s.lookAtRule(w, kind) {
			return false
		}
	}
	return true
}

// The members of a rule, as bits.
const (
	hasID = 1 << iota
	hasDefault
	hasEnabled
	hasActions
	hasPattern
	hasConditions
)

// lookAtRule checks what [readRule] checks.
func (s *Ruleset) lookAtRule(w *strictjson.Walker, kind Kind) (ok bool) {
	members, fits := 0, true
	for name := range w.Object() {
		next := w.Next()
		switch name {
		case "rule_id":
			members |= hasID
			if fits = fits && next == '"'; fits {
				s.legacy = s.legacy || IsLegacy(w.String())
			}
		case "default":
			members |= hasDefault
			fits = fits && (next == 't' || next == 'f')
		case "enabled":
			members |= hasEnabled
			fits = fits && (next == 't' || next == 'f')
		case "actions":
			members |= hasActions
			fits = fits && next == '['
		case "pattern":
			members |= hasPattern
			fits = fits && (next == '"' || !kind.HasPattern())
		case "conditions":
			members |= hasConditions
			fits = fits && (next == '[' || !kind.HasConditions())
		}
	}
	required := hasID | hasDefault | hasEnabled | hasActions
	if kind.HasPattern() {
		required |= hasPattern
	}
	s.loose = s.loose || kind.HasConditions() && members&hasConditions == 0
	return fits && members&required == required
}
