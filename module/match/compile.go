package match

import (
	"slices"

	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/pushrule"
)

// Rules is a compiled rule set. It never changes and is safe for concurrent use.
type Rules struct {
	rules     []rule           // in the order in which they are checked
	unindexed []int32          // those that have to be tested one by one, in order
	work      int              // of testing the conditions of the unindexed rules
	rooms     map[string]int32 // room rules by room
	senders   map[string]int32 // sender rules by sender
	bodies    bodyIndex        // rules that ask for something in the body
	owner     mxid.UserID      // whose id is the user's in the conditions' texts
	personal  int              // conditions that compare with the id of the user
	shared    bool             // whether other users have the same set
}

// rule is a rule of any kind. Content, room and sender rules have the condition that
// their kind implies.
type rule struct {
	kind       pushrule.Kind
	id         string
	enabled    bool
	conditions []condition
	outcome    outcome
}

// Compile compiles a rule set. Conditions of unknown kinds, or without a member that
// their kind needs, match nothing (Matrix specification, "Conditions"); the other rules
// work. For many users, see [Cache].
func Compile(set pushrule.Ruleset) *Rules { return compile(set, "") }

// compile is [Compile] for a shared set: in its conditions, the owner's id stands for
// the id of the evaluation's user.
func compile(set pushrule.Ruleset, owner mxid.UserID) *Rules {
	r := &Rules{owner: owner}
	for _, kind := range pushrule.Kinds() {
		list := set.List(kind)
		r.rules = slices.Grow(r.rules, len(list))
		for _, source := range list {
			r.add(newRule(kind, source, owner))
		}
	}
	r.bodies.build(r.rules)
	return r
}

func newRule(kind pushrule.Kind, source pushrule.Rule, owner mxid.UserID) rule {
	return rule{
		kind: kind, id: source.ID, enabled: source.Enabled,
		conditions: newConditions(kind, source, owner), outcome: readOutcome(source.Actions),
	}
}

// newConditions returns the conditions of a rule, or the condition that its kind
// implies (Matrix specification, "Push Rules").
func newConditions(kind pushrule.Kind, source pushrule.Rule, owner mxid.UserID) (conditions []condition) {
	if pushrule.IsLegacy(source.ID) {
		conditions = append(conditions, condition{op: withoutMentions})
	}
	switch kind {
	case pushrule.Content:
		return append(conditions, condition{
			op: matchesWords, key: wellKnown[slotBody], glob: newGlob(source.Pattern), text: source.Pattern,
		})
	case pushrule.Room:
		return append(conditions, sameProperty(slotRoomID, source.ID))
	case pushrule.Sender:
		return append(conditions, sameProperty(slotSender, source.ID))
	}
	conditions = slices.Grow(conditions, len(source.Conditions))
	for _, c := range source.Conditions {
		conditions = append(conditions, newCondition(c, owner))
	}
	return conditions
}

// sameProperty returns the condition that a property equals a text.
func sameProperty(at slot, text string) condition {
	return condition{op: sameText, key: wellKnown[at], text: text}
}

// add appends a rule.
func (r *Rules) add(added rule) {
	at := int32(len(r.rules))
	r.rules = append(r.rules, added)
	for i := range added.conditions {
		if added.conditions[i].isPersonal() {
			r.personal++
		}
	}
	switch {
	case !added.enabled || added.neverMatches():
	case added.kind == pushrule.Room:
		r.rooms = addFirst(r.rooms, added.id, at)
	case added.kind == pushrule.Sender:
		r.senders = addFirst(r.senders, added.id, at)
	case added.bodyCondition() == nil:
		r.unindexed = append(r.unindexed, at)
		r.work += added.work()
	}
}

// addFirst keeps the first rule of each id. Only damaged sets have several.
func addFirst(rules map[string]int32, id string, at int32) map[string]int32 {
	if rules == nil {
		rules = map[string]int32{}
	}
	if _, found := rules[id]; !found {
		rules[id] = at
	}
	return rules
}

func (r *rule) neverMatches() bool {
	for i := range r.conditions {
		if r.conditions[i].op == never {
			return true
		}
	}
	return false
}

// work returns the cost of the conditions, without the matching of patterns.
func (r *rule) work() (units int) {
	for i := range r.conditions {
		units += r.conditions[i].work()
	}
	return units
}

// bodyCondition returns the condition on the body that the index uses, or nil.
func (r *rule) bodyCondition() *condition {
	for i := range r.conditions {
		if r.conditions[i].op == matchesWords {
			return &r.conditions[i]
		}
	}
	return nil
}

// holds reports whether all conditions hold.
func (r *rule) holds(s *subject) bool {
	for i := range r.conditions {
		if !r.conditions[i].holds(s) {
			return false
		}
	}
	return true
}
