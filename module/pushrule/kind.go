package pushrule

// Kind is a kind of push rule (Matrix specification, "Push Rules").
type Kind string

// The kinds, in order of evaluation.
const (
	Override  Kind = "override"  // conditional rules, before all others
	Content   Kind = "content"   // a pattern on the message body
	Room      Kind = "room"      // one room, the rule id is the room id
	Sender    Kind = "sender"    // one sender, the rule id is the user id
	Underride Kind = "underride" // conditional rules, after all others
)

const kindCount = 5

// Kinds returns the five kinds in order of evaluation.
func Kinds() [kindCount]Kind { return [kindCount]Kind{Override, Content, Room, Sender, Underride} }

// Valid reports whether k is one of the five kinds.
func (k Kind) Valid() bool { return k.index() >= 0 }

// HasConditions reports whether rules of this kind have conditions.
func (k Kind) HasConditions() bool { return k == Override || k == Underride }

// HasPattern reports whether rules of this kind have a pattern.
func (k Kind) HasPattern() bool { return k == Content }

// index returns the index in [Kinds], or -1.
func (k Kind) index() int {
	for i, kind := range Kinds() {
		if k == kind {
			return i
		}
	}
	return -1
}
