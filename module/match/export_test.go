package match

import (
	"maps"
	"slices"

	"github.com/pushfx/pushfx/module/pushrule"
)

// ConditionKinds returns the kinds of conditions that may match.
func ConditionKinds() []string { return slices.Sorted(maps.Keys(conditionKinds)) }

// MayMatch reports whether a condition has a known kind and the members that it needs.
func MayMatch(c pushrule.Condition) bool {
	compiled := newCondition(c, "")
	return compiled.op != never
}
