package match

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"

	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/pushrule"
	"github.com/pushfx/pushfx/module/strictjson"
)

// Verdict is the outcome of a rule.
type Verdict string

// The outcomes of a rule.
const (
	Decides  Verdict = "decides"  // the first rule that matches
	Matches  Verdict = "matches"  // matches, but an earlier rule decides
	Fails    Verdict = "fails"    // a condition does not hold
	Disabled Verdict = "disabled" // the user turned it off; it was not tested
)

// Explanation tells why an evaluation has its result.
type Explanation struct {
	Own    bool              `json:"own"`    // the user sent the event, so no rule applies
	Rules  []RuleExplanation `json:"rules"`  // every rule, in order of evaluation
	Result Result            `json:"result"` // what [Rules.Evaluate] returns
}

// RuleExplanation tells whether a rule matches. If the rule fails, Condition is the
// first condition that does not hold; it may be the condition that the rule's kind
// implies.
type RuleExplanation struct {
	Kind      pushrule.Kind      `json:"kind"`
	RuleID    string             `json:"rule_id"`
	Verdict   Verdict            `json:"verdict"`
	Condition pushrule.Condition `json:"condition,omitempty"`
	Saw       string             `json:"saw,omitempty"` // the value that the condition found: JSON, or words; long values are cut
}

// Explain evaluates every rule, for people: the wording of its texts may change.
func (r *Rules) Explain(event *Event, facts Facts) Explanation {
	s := newSubject(event, facts)
	s.meter.left = explainWork
	e := Explanation{Own: s.isOwn(), Result: r.Evaluate(event, facts)}
	decided := e.Own
	for i := range r.rules {
		explained := r.explainRule(i, &s, e.Result)
		if explained.Verdict == Matches && !decided {
			explained.Verdict, decided = Decides, true
		}
		e.Rules = append(e.Rules, explained)
	}
	return e
}

func (r *Rules) explainRule(at int, s *subject, result Result) RuleExplanation {
	rule := &r.rules[at]
	e := RuleExplanation{Kind: rule.kind, RuleID: rule.id, Verdict: Matches}
	if !rule.enabled {
		e.Verdict = Disabled
		return e
	}
	if result.Matched() && result.rule == r.copies[at].Load() {
		return e
	}
	for i := range rule.conditions {
		c := &rule.conditions[i]
		s.meter.exhausted = false
		if c.holds(s) {
			continue
		}
		e.Verdict, e.Condition, e.Saw = Fails, r.sourceOf(c, s.facts.User), c.saw(s)
		if s.meter.exhausted {
			e.Saw = "it was not tested: the rules reached the work limit for one event"
		}
		break
	}
	return e
}

func (r *Rules) sourceOf(c *condition, user mxid.UserID) pushrule.Condition {
	switch {
	case c.source == "" && c.op == matchesWords:
		return impliedCondition("event_match", c, "pattern")
	case c.source == "" && c.op == sameText:
		return impliedCondition("event_property_is", c, "value")
	case !c.isPersonal():
		return c.source
	}
	return pushrule.Condition(strings.ReplaceAll(string(c.source), quote(string(r.owner)), quote(string(user))))
}

func quote(text string) string { return string(strictjson.AppendString(nil, text)) }

func impliedCondition(kind string, c *condition, member string) pushrule.Condition {
	return pushrule.Condition(`{"kind":"` + kind + `","key":"` + c.key.path() + `","` + member + `":` + quote(c.text) + `}`)
}

// saw describes the value that a failed condition found.
func (c *condition) saw(s *subject) string {
	room := s.facts.Room
	switch c.op {
	case never:
		return "its kind is unknown, or a required member is missing"
	case withoutMentions:
		return `the event has content.m\.mentions, which turns this rule off`
	case displayName:
		return s.sawForDisplayName()
	case memberCount:
		if room.MemberCount <= 0 {
			return "the number of members is unknown"
		}
		return "the room has " + strconv.Itoa(room.MemberCount) + " members"
	case mayNotify:
		return room.sawForPower(c.text)
	case hasPermission:
		return s.facts.sawForPermission(c.text)
	}
	return c.key.path() + " is " + s.event.show(s.event.find(&c.key))
}

func (s *subject) sawForDisplayName() string {
	if s.facts.DisplayName == "" {
		return "the user has no display name, or it is unknown"
	}
	body := s.event.slot(slotBody)
	return "the display name is " + show(s.facts.DisplayName) + ", content.body is " + s.event.show(body)
}

func (r Room) sawForPower(notification string) string {
	if r.Power == nil {
		return "the sender's power level is unknown"
	}
	needed, found := r.Power.needed(notification)
	if !found {
		return "the room has no level for the notification " + show(notification)
	}
	return fmt.Sprintf("the sender has power level %d, %d is needed", r.Power.Sender, needed)
}

func (f *Facts) sawForPermission(action string) string {
	if f.Room.Power == nil {
		return "the room's power levels are unknown"
	}
	needed, found := f.Room.Power.neededFor(action)
	switch {
	case !found:
		return show(action) + " is none of ban, invite, kick and redact"
	case f.Power == nil:
		return "the user's power level is unknown"
	}
	return fmt.Sprintf("the user has power level %d, %d is needed to %s", *f.Power, needed, action)
}

var escape = strings.NewReplacer(`\`, `\\`, ".", `\.`)

func (k *key) path() string {
	names := make([]string, len(k.parts))
	for i, part := range k.parts {
		names[i] = escape.Replace(part)
	}
	return strings.Join(names, ".")
}

func (e *Event) show(p *property) string {
	if p == nil {
		return "missing"
	}
	if p.value.kind != array {
		return p.value.show()
	}
	elements := []string{}
	for _, element := range e.elementsOf(p) {
		elements = append(elements, element.show())
	}
	return cut("[" + strings.Join(elements, ",") + "]")
}

func (v value) show() string {
	switch v.kind {
	case null:
		return "null"
	case falsehood:
		return "false"
	case truth:
		return "true"
	case integer:
		return strconv.FormatInt(v.number, 10)
	case textual:
		return show(v.text)
	}
	return "an object or a number that is no integer"
}

func show(text string) string { return cut(quote(text)) }

// shownBytes is the length at which values are cut.
const shownBytes = 160

func cut(text string) string {
	if len(text) <= shownBytes {
		return text
	}
	return strings.ToValidUTF8(text[:shownBytes], "") + "…"
}

// String writes a line for each rule, and the actions.
func (e Explanation) String() string {
	var b strings.Builder
	if e.Own {
		b.WriteString("the event is the user's own\n")
	}
	for _, rule := range e.Rules {
		fmt.Fprintf(&b, "%s %s: %s", rule.Kind, rule.RuleID, rule.Verdict)
		if rule.Verdict == Fails {
			fmt.Fprintf(&b, ": %s, not %s", rule.Saw, rule.Condition)
		}
		b.WriteByte('\n')
	}
	fmt.Fprintf(&b, "actions: %s\n", pushrule.AppendActions(nil, e.Result.Actions()))
	return b.String()
}

// MarshalJSON returns an object with kind, rule_id (both empty if no rule matches),
// actions, notify, highlight and sound.
func (r Result) MarshalJSON() ([]byte, error) {
	kind, id := r.Rule()
	actions := r.Actions()
	if actions == nil {
		actions = []pushrule.Action{}
	}
	return json.Marshal(struct {
		Kind      pushrule.Kind     `json:"kind"`
		RuleID    string            `json:"rule_id"`
		Actions   []pushrule.Action `json:"actions"`
		Notify    bool              `json:"notify"`
		Highlight bool              `json:"highlight"`
		Sound     string            `json:"sound"`
	}{kind, id, actions, r.Notify(), r.Highlight(), r.Sound()})
}
