package pushrule

import (
	"errors"
	"fmt"

	"github.com/pushfx/pushfx/module/fault"
)

// Limits are the limits of users' rules. The service checks them when it puts a rule or
// sets actions, but not when it reads, disables or deletes.
type Limits struct {
	MaxSetBytes     int // bytes of one user's set, as JSON, at most 1 MiB; default 256 KiB, about 2,700 room rules
	MaxRules        int // rules of all kinds in one user's set, defaults included; default 10,000
	MaxRuleIDBytes  int // bytes of a rule id; default 1,024
	MaxPatternBytes int // bytes of a content rule's pattern; default 1,024
	MaxConditions   int // conditions of one rule; default 100
	MaxActions      int // actions of one rule; default 100
}

// DefaultLimits returns the defaults.
func DefaultLimits() Limits {
	return Limits{
		MaxSetBytes: 256 << 10, MaxRules: 10_000, MaxRuleIDBytes: 1024, MaxPatternBytes: 1024, MaxConditions: 100, MaxActions: 100,
	}
}

// maxSetBytes bounds how long a change of a set keeps Redis busy: for 1.2 ms.
const maxSetBytes = 1 << 20

// Validate joins an error for each limit that is not positive, or too large.
func (l Limits) Validate() error {
	var faults []error
	for _, limit := range []struct {
		name  string
		value int
	}{
		{"MaxSetBytes", l.MaxSetBytes},
		{"MaxRules", l.MaxRules},
		{"MaxRuleIDBytes", l.MaxRuleIDBytes},
		{"MaxPatternBytes", l.MaxPatternBytes},
		{"MaxConditions", l.MaxConditions},
		{"MaxActions", l.MaxActions},
	} {
		if limit.value < 1 {
			faults = append(faults, fmt.Errorf("%s is %d, want at least 1", limit.name, limit.value))
		}
	}
	if l.MaxSetBytes > maxSetBytes {
		faults = append(faults, fmt.Errorf("MaxSetBytes is %d, want at most %d", l.MaxSetBytes, maxSetBytes))
	}
	return errors.Join(faults...)
}

// CheckDraft refuses a rule over a limit: sizes with [fault.TooLarge], counts with
// [fault.InvalidParam].
func (l Limits) CheckDraft(id string, d Draft) error {
	switch {
	case len(id) > l.MaxRuleIDBytes:
		return fault.New(fault.TooLarge, fmt.Sprintf("Rule ID longer than %d bytes.", l.MaxRuleIDBytes))
	case len(d.Pattern) > l.MaxPatternBytes:
		return fault.New(fault.TooLarge, fmt.Sprintf("Pattern longer than %d bytes.", l.MaxPatternBytes))
	case len(d.Conditions) > l.MaxConditions:
		return fault.New(fault.InvalidParam, fmt.Sprintf("A push rule has at most %d conditions.", l.MaxConditions))
	}
	return l.CheckActions(d.Actions)
}

// CheckActions refuses a list over the limit with [fault.InvalidParam].
func (l Limits) CheckActions(actions []Action) error {
	if len(actions) > l.MaxActions {
		return fault.New(fault.InvalidParam, fmt.Sprintf("A push rule has at most %d actions.", l.MaxActions))
	}
	return nil
}

// CheckSet refuses an edit that makes a set larger than a limit: in bytes with
// [fault.TooLarge], in rules with [fault.InvalidParam]. A set over a limit may change
// without growing. The edit must add rules or replace rules, not both.
func (l Limits) CheckSet(before, after Ruleset) error {
	if size := len(after.JSON()); size > l.MaxSetBytes && size > len(before.JSON()) {
		return l.tooLarge()
	}
	if len(after.JSON()) < len(before.JSON())+leastRule { // no rule was added
		return nil
	}
	return l.checkCount(before, after)
}

func (l Limits) checkCount(before, after Ruleset) error {
	if len(after.JSON())/leastRule <= l.MaxRules { // avoids counting the rules
		return nil
	}
	if n := after.Len(); n > l.MaxRules && n > before.Len() {
		return l.tooMany()
	}
	return nil
}

func (l Limits) tooLarge() error {
	return fault.New(fault.TooLarge, fmt.Sprintf("Push rules larger than %d bytes.", l.MaxSetBytes))
}

func (l Limits) tooMany() error {
	return fault.New(fault.InvalidParam, fmt.Sprintf("A user has at most %d push rules.", l.MaxRules))
}

// leastRule is the size of the smallest rule, in bytes.
const leastRule = len(`{"rule_id":"","default":true,"enabled":true,"actions":[]}`)
