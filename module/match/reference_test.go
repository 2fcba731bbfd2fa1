package match_test

import (
	"encoding/json"
	"math/big"
	"regexp"
	"strconv"
	"strings"

	"github.com/pushfx/pushfx/module/match"
	"github.com/pushfx/pushfx/module/pushrule"
)

// reference is a naive evaluator that follows the sentences of the specification.
type reference struct {
	event   map[string]any
	facts   match.Facts
	dialect dialect
}

// decode keeps all digits of numbers.
func decode(text string) (v any) {
	decoder := json.NewDecoder(strings.NewReader(text))
	decoder.UseNumber()
	if err := decoder.Decode(&v); err != nil {
		panic(err)
	}
	return v
}

func referenceRule(set, event string, facts match.Facts) (kind pushrule.Kind, id string) {
	r := reference{event: decode(event).(map[string]any), facts: facts}
	// "Homeservers MUST NOT notify the Push Gateway for events that the user
	// has sent themselves."
	if r.event["sender"] == string(facts.User) {
		return "", ""
	}
	kinds, _ := decode(set).(map[string]any)
	for _, kind := range []string{"override", "content", "room", "sender", "underride"} {
		rules, _ := kinds[kind].([]any)
		for _, rule := range rules {
			if rule := rule.(map[string]any); r.matches(kind, rule) {
				return pushrule.Kind(kind), rule["rule_id"].(string)
			}
		}
	}
	return "", ""
}

func (r reference) matches(kind string, rule map[string]any) bool {
	if r.dialect.hides(kind, rule) {
		return false
	}
	// "Disabled rules never match."
	if rule["enabled"] != true {
		return false
	}
	content, _ := r.event["content"].(map[string]any)
	if _, mentions := content["m.mentions"]; mentions && pushrule.IsLegacy(rule["rule_id"].(string)) {
		return false
	}
	switch kind {
	case "content":
		return r.holds(map[string]any{"kind": "event_match", "key": "content.body", "pattern": rule["pattern"]})
	case "room":
		return r.event["room_id"] == rule["rule_id"]
	case "sender":
		return r.event["sender"] == rule["rule_id"]
	}
	// "A rule with no conditions always matches."
	conditions, _ := rule["conditions"].([]any)
	for _, condition := range conditions {
		if c, _ := condition.(map[string]any); !r.holds(c) {
			return false
		}
	}
	return true
}

func (r reference) holds(c map[string]any) bool {
	kind, _ := c["kind"].(string)
	holds := referenceConditions[kind]
	// "Unrecognised conditions MUST NOT match any events"
	return holds != nil && holds(r, c)
}

var referenceConditions = map[string]func(r reference, c map[string]any) bool{
	"event_match": func(r reference, c map[string]any) bool {
		key, isKey := c["key"].(string)
		pattern, isPattern := c["pattern"].(string)
		value, isString := r.property(key).(string)
		if !isKey || !isPattern || !isString {
			return false
		}
		if key == "content.body" {
			return r.dialect.words(pattern, value)
		}
		return r.dialect.glob([]rune(pattern), []rune(value))
	},
	"event_property_is": func(r reference, c map[string]any) bool {
		key, isKey := c["key"].(string)
		return isKey && r.dialect.equal(r.property(key), member(c, "value"))
	},
	"event_property_contains": func(r reference, c map[string]any) bool {
		key, isKey := c["key"].(string)
		list, _ := r.property(key).([]any)
		for _, element := range list {
			if isKey && r.dialect.equal(element, member(c, "value")) {
				return true
			}
		}
		return false
	},
	"contains_display_name": func(r reference, _ map[string]any) bool {
		body, isString := r.property("content.body").(string)
		name := strings.NewReplacer("*", "\ue000", "?", "\ue001") // characters that occur in no test
		return isString && r.facts.DisplayName != "" &&
			r.dialect.words(name.Replace(r.facts.DisplayName), name.Replace(body))
	},
	"room_member_count": func(r reference, c map[string]any) bool {
		is, _ := c["is"].(string)
		return r.facts.Room.MemberCount > 0 && referenceCount(is, r.facts.Room.MemberCount)
	},
	"sender_notification_permission": func(r reference, c map[string]any) bool {
		key, isKey := c["key"].(string)
		return isKey && r.mayNotify(key)
	},
	"recipient_permission":                    reference.hasPermission,
	"org.matrix.msc4506.recipient_permission": reference.hasPermission,
}

type missing struct{}

func member(object map[string]any, name string) any {
	if v, found := object[name]; found {
		return v
	}
	return missing{}
}

// property follows a path: "any literal dot or backslash found in a property
// name should be escaped with a backslash ... Other escape sequences are left
// as-is".
func (r reference) property(path string) any {
	const dot, backslash = "\ue002", "\ue003"
	path = strings.NewReplacer(`\\`, backslash, `\.`, dot).Replace(path)
	var at any = r.event
	for part := range strings.SplitSeq(path, ".") {
		name := strings.NewReplacer(backslash, `\`, dot, ".").Replace(part)
		if inside, found := r.dialect.inside(at, name); found {
			at = inside
			continue
		}
		object, _ := at.(map[string]any)
		at = member(object, name)
	}
	return at
}

// equal compares "strings, integers in the range of [-(2**53)+1, (2**53)-1],
// booleans, and null".
func (d dialect) equal(a, b any) bool {
	switch a := a.(type) {
	case nil, bool, string:
		return a == b
	case json.Number:
		b, isNumber := b.(json.Number)
		if !isNumber {
			return false
		}
		if d.floats {
			return float(a) == float(b)
		}
		x, y := referenceInteger(a), referenceInteger(b)
		return x != nil && y != nil && x.Cmp(y) == 0
	}
	return false
}

func referenceInteger(number json.Number) *big.Int {
	if _, err := strconv.ParseFloat(string(number), 64); err != nil {
		return nil // far out of range
	}
	rational, ok := new(big.Rat).SetString(string(number))
	if !ok || !rational.IsInt() {
		return nil
	}
	if limit := big.NewInt(1<<53 - 1); rational.Num().CmpAbs(limit) > 0 {
		return nil
	}
	return rational.Num()
}

func (d dialect) glob(pattern, value []rune) bool {
	switch {
	case len(pattern) == 0:
		return len(value) == 0
	case pattern[0] == '*':
		return d.glob(pattern[1:], value) || len(value) > 0 && d.any(value[0]) && d.glob(pattern, value[1:])
	case len(value) == 0:
		return false
	case pattern[0] == '?' && d.one(value[0]) || pattern[0] != '?' && d.same(pattern[0], value[0]):
		return d.glob(pattern[1:], value[1:])
	}
	return false
}

// words tries "any substring of the value of the property which starts and
// ends at a word boundary".
func (d dialect) words(pattern, body string) bool {
	value := []rune(body)
	word := func(at int) bool {
		return at >= 0 && at < len(value) && strings.ContainsRune("_0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz", value[at])
	}
	starts := func(at int) bool { return !word(at-1) || !d.outside && !word(at) }
	ends := func(at int) bool { return !word(at) || !d.outside && !word(at-1) }
	for start := range len(value) + 1 {
		for end := start; end <= len(value); end++ {
			if starts(start) && ends(end) && d.glob([]rune(pattern), value[start:end]) {
				return true
			}
		}
	}
	return false
}

var count = regexp.MustCompile(`^(==|<=|>=|<|>|)([0-9]+)$`)

func referenceCount(is string, members int) bool {
	parts := count.FindStringSubmatch(is)
	if parts == nil {
		return false
	}
	limit, _ := new(big.Int).SetString(parts[2], 10)
	order := big.NewInt(int64(members)).Cmp(limit)
	switch parts[1] {
	case "<":
		return order < 0
	case "<=":
		return order <= 0
	case ">":
		return order > 0
	case ">=":
		return order >= 0
	}
	return order == 0
}

func (r reference) mayNotify(key string) bool {
	power := r.facts.Room.Power
	if power == nil {
		return false
	}
	level, found := power.Notifications[key]
	if !found && (key == "room" || r.dialect.fifty) {
		level, found = 50, true
	}
	return found && (power.SenderCreator || power.Sender >= level)
}

// hasPermission follows MSC4506: the recipient's power level is compared with the level
// for the action that key names, with the defaults of m.room.power_levels.
func (r reference) hasPermission(c map[string]any) bool {
	levels := map[any]int64{"invite": 0, "kick": 50, "ban": 50, "redact": 50}
	level, isAction := levels[c["key"]]
	if !isAction || r.dialect.released || r.facts.Power == nil || r.facts.Room.Power == nil {
		return false
	}
	if ofRoom, found := r.facts.Room.Power.Permissions[c["key"].(string)]; found {
		level = ofRoom
	}
	return *r.facts.Power >= level
}
