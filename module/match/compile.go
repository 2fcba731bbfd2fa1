package match

import (
	"slices"
	"sync/atomic"

	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/pushrule"
)

// Rules is a compiled rule set. It never changes and is safe for concurrent use.
type Rules struct {
	rules     []rule           // in order of evaluation
	unindexed []int32          // rules to test one by one, in order
	work      int              // cost of the unindexed rules
	rooms     map[string]int32 // room rules by room
	senders   map[string]int32 // sender rules by sender
	bodies    bodyIndex        // rules with a condition on words of the body
	owner     mxid.UserID      // the user whose set was compiled; empty: unknown
	personal  int              // number of conditions that compare with the user's id
	shared    bool             // whether a [Cache] may give the set to many users

	copies []atomic.Pointer[matched] // by rule, of those that matched
}

// For content, room and sender rules, conditions contains the condition that the kind
// implies.
type rule struct {
	kind       pushrule.Kind
	id         string
	enabled    bool
	conditions []condition
	outcome    outcome
}

// Compile compiles a rule set. A condition with an unknown kind or without a required
// member matches nothing (Matrix specification, "Conditions"). The other rules work.
// For many users, use a [Cache].
func Compile(set pushrule.Ruleset) *Rules { return compile(set, "") }

// compile compiles a set so that users can share it: a comparison with the owner's id
// in a condition becomes a comparison with the id of the evaluated user.
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
	r.copies = make([]atomic.Pointer[matched], len(r.rules))
	return r
}

func newRule(kind pushrule.Kind, source pushrule.Rule, owner mxid.UserID) rule {
	return rule{
		kind: kind, id: source.ID, enabled: source.Enabled,
		conditions: newConditions(kind, source, owner), outcome: readOutcome(source.Actions),
	}
}

// newConditions returns the conditions of an override or underride rule, or the
// condition that another kind implies (Matrix specification, "Push Rules"). A legacy
// rule has one more.
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

func sameProperty(at slot, text string) condition {
	return condition{op: sameText, key: wellKnown[at], text: text}
}

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

// addFirst keeps the first rule of each id. Only damaged sets repeat ids.
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

func (r *rule) work() (units int) {
	for i := range r.conditions {
		units += r.conditions[i].work()
	}
	return units
}

func (r *rule) bodyCondition() *condition {
	for i := range r.conditions {
		if r.conditions[i].op == matchesWords {
			return &r.conditions[i]
		}
	}
	return nil
}

func (r *rule) holds(s *subject) bool {
	for i := range r.conditions {
		if !r.conditions[i].holds(s) {
			return false
		}
	}
	return true
}
