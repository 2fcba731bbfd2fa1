package match

import (
	"strconv"
	"strings"

	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/pushrule"
	"github.com/pushfx/pushfx/module/strictjson"
)

type operation uint8

const (
	never           operation = iota // an unknown kind, or a required member is missing
	matchesWhole                     // event_match
	matchesWords                     // event_match of content.body
	isUser                           // event_match with the user's id
	propertyIs                       // event_property_is
	propertyHas                      // event_property_contains
	propertyIsUser                   // event_property_is with the user's id
	propertyHasUser                  // event_property_contains with the user's id
	displayName                      // contains_display_name
	memberCount                      // room_member_count
	mayNotify                        // sender_notification_permission
	hasPermission                    // recipient_permission
	withoutMentions                  // legacy rules: the event has no m.mentions
	sameText                         // room and sender rules: the property is exactly this string
)

type condition struct {
	op     operation
	key    key
	glob   glob
	value  value  // for event_property_is and event_property_contains
	text   string // the notification or action, the value for sameText, or a content rule's pattern
	count  comparison
	source pushrule.Condition // empty for a condition that the kind of the rule implies
}

type comparison struct {
	least, most int
}

func (c comparison) holds(n int) bool { return c.least <= n && n <= c.most }

type subject struct {
	event *Event
	facts Facts
	meter meter

	notes *[]note // the outcomes of conditions about the user; nil: not recorded

	named    answer // whether the body has the display name
	foldedOf *property
	folded   string // the folded text of the property foldedOf; only for long texts

	permission *condition // the last hasPermission condition
	needed     int64      // the power level that it requires in the room
	isNone     bool       // the room has no level for its action
}

type answer uint8

const (
	notAsked answer = iota
	yes
	no
)

func newSubject(event *Event, facts Facts) subject {
	return subject{event: event, facts: facts, meter: meter{left: maxWork}}
}

func (s *subject) setUser(user mxid.UserID, displayName string, power *int64) {
	s.facts.User, s.facts.DisplayName, s.facts.Power = user, displayName, power
	s.meter, s.named = meter{left: maxWork}, notAsked
}

type note struct {
	condition *condition
	held      bool
}

func (s *subject) note(c *condition, holds bool) bool {
	if s.notes != nil {
		*s.notes = append(*s.notes, note{c, holds})
	}
	return holds
}

func (s *subject) agrees(notes []note) bool {
	for i := range notes {
		s.meter.spend(notes[i].condition.work())
		if notes[i].condition.holds(s) != notes[i].held {
			return false
		}
	}
	return true
}

func (c *condition) work() int { return conditionWork + nameWork*len(c.key.parts) }

func (c *condition) holds(s *subject) bool {
	switch c.op {
	case matchesWhole:
		p := s.event.find(&c.key)
		return p != nil && p.value.kind == textual && s.matchesWhole(&c.glob, p)
	case matchesWords:
		b := s.event.body()
		return b != nil && c.glob.matchWords(b, &s.meter)
	case isUser:
		text, found := s.event.text(&c.key)
		return found && s.note(c, strings.EqualFold(text, string(s.facts.User)))
	case sameText:
		text, found := s.event.text(&c.key)
		return found && text == c.text
	case withoutMentions:
		return s.event.slot(slotMentions) == nil
	case displayName:
		b := s.event.body()
		return b != nil && s.note(c, s.hasDisplayName(b))
	case memberCount:
		return s.facts.Room.MemberCount > 0 && c.count.holds(s.facts.Room.MemberCount)
	case mayNotify:
		return s.facts.Room.Power != nil && s.facts.Room.Power.mayNotify(c.text)
	case hasPermission:
		return s.note(c, s.hasPermission(c))
	case never:
		return false
	}
	return c.holdsForProperty(s)
}

func (c *condition) holdsForProperty(s *subject) bool {
	p := s.event.find(&c.key)
	if p == nil {
		return false
	}
	switch c.op {
	case propertyIs:
		return p.value == c.value
	case propertyHas:
		return s.event.contains(p, c.value)
	}
	user := value{kind: textual, text: string(s.facts.User)}
	if c.op == propertyIsUser {
		return s.note(c, p.value == user)
	}
	return s.note(c, s.event.contains(p, user))
}

// Texts of up to stackBytes are folded without an allocation.
const stackBytes = 256

func (s *subject) matchesWhole(g *glob, p *property) bool {
	text := p.value.text
	switch {
	case g.literal:
		s.meter.spend(min(len(text), len(g.pattern)))
		return equalsFolded(text, g.pattern)
	case len(text) <= stackBytes:
		s.meter.spend(len(text))
		var space [stackBytes]byte
		return g.matchWhole(asText(appendFolded(space[:0], text)), &s.meter)
	case s.foldedOf != p:
		s.meter.spend(len(text))
		s.foldedOf, s.folded = p, fold(text)
	}
	return g.matchWhole(s.folded, &s.meter)
}

// hasDisplayName evaluates contains_display_name, at most once for a user and event.
// The characters * and ? in the name have no special meaning.
func (s *subject) hasDisplayName(b *body) bool {
	if s.named == notAsked {
		s.named = no
		if name := s.facts.DisplayName; name != "" && b.contains(name, &s.meter) {
			s.named = yes
		}
	}
	return s.named == yes
}

func (b *body) contains(text string, m *meter) bool {
	m.spend(len(text))
	var space [stackBytes]byte
	folded := asText(appendFolded(space[:0], text))
	s := literalSegment(folded)
	where := search{b.folded, b, m}
	return where.first(&s, 0, startBounded|endBounded) >= 0
}

// conditionKinds sets the operation of a condition of each kind. A condition whose operation
// is not set never matches: its kind is unknown, or it lacks a member.
var conditionKinds = map[string]func(c *condition, members conditionMembers, owner mxid.UserID){
	"event_match": (*condition).setPattern,
	"event_property_is": func(c *condition, members conditionMembers, owner mxid.UserID) {
		c.setValue(members, propertyIs, propertyIsUser, owner)
	},
	"event_property_contains": func(c *condition, members conditionMembers, owner mxid.UserID) {
		c.setValue(members, propertyHas, propertyHasUser, owner)
	},
	"contains_display_name": func(c *condition, _ conditionMembers, _ mxid.UserID) { c.op = displayName },
	"room_member_count":     func(c *condition, members conditionMembers, _ mxid.UserID) { c.setCount(members.is) },
	"sender_notification_permission": func(c *condition, members conditionMembers, _ mxid.UserID) {
		c.setLevel(members, mayNotify)
	},
	"recipient_permission":                    setRecipientPermission, // MSC4506
	"org.matrix.msc4506.recipient_permission": setRecipientPermission,
}

func setRecipientPermission(c *condition, members conditionMembers, _ mxid.UserID) {
	c.setLevel(members, hasPermission)
}

// newCondition compiles a condition. A comparison with the owner's id becomes a
// comparison with the id of the evaluated user, unless the JSON writes the id with
// unnecessary escapes.
func newCondition(source pushrule.Condition, owner mxid.UserID) condition {
	c := condition{source: source}
	members := readCondition(source)
	if members.key.kind == textual {
		c.key = parseKey(members.key.text)
	}
	if set, known := conditionKinds[members.kind]; known {
		set(&c, members, owner)
	}
	return c
}

type conditionMembers struct {
	kind                    string
	key, pattern, value, is value
	patternText, valueText  string // the JSON of pattern and value
}

func readCondition(source pushrule.Condition) (members conditionMembers) {
	w := strictjson.Walk(string(source))
	if w.Next() != '{' {
		return conditionMembers{}
	}
	for name := range w.Object() {
		if c := w.Next(); c == '{' || c == '[' {
			continue
		}
		start := w.Offset()
		switch name {
		case "kind":
			members.kind = readScalar(&w).text
		case "key":
			members.key = readScalar(&w)
		case "pattern":
			members.pattern = readScalar(&w)
			members.patternText = string(source[start:w.Offset()])
		case "value":
			members.value = readScalar(&w)
			members.valueText = string(source[start:w.Offset()])
		case "is":
			members.is = readScalar(&w)
		}
	}
	return members
}

func (c *condition) setPattern(members conditionMembers, owner mxid.UserID) {
	if members.key.kind != textual || members.pattern.kind != textual {
		return
	}
	c.glob = newGlob(members.pattern.text)
	switch {
	case c.key.slot == slotBody:
		c.op = matchesWords
	case owner != "" && members.patternText == quote(string(owner)) && c.glob.literal:
		c.op = isUser
	default:
		c.op = matchesWhole
	}
}

func (c *condition) setValue(members conditionMembers, exact, user operation, owner mxid.UserID) {
	c.value = members.value
	switch {
	case members.key.kind != textual || !members.value.isScalar():
	case owner != "" && members.valueText == quote(string(owner)):
		c.op = user
	default:
		c.op = exact
	}
}

func (c *condition) setLevel(members conditionMembers, op operation) {
	if members.key.kind == textual {
		c.op, c.text = op, members.key.text
	}
}

func (c *condition) isPersonal() bool {
	return c.op == isUser || c.op == propertyIsUser || c.op == propertyHasUser
}

// setCount reads the member "is" of room_member_count: an optional comparison (the
// default is ==) and digits.
func (c *condition) setCount(is value) {
	const endless = int(^uint(0) >> 1)
	digits := strings.TrimLeft(is.text, "=<>")
	if is.kind != textual || digits == "" || strings.Trim(digits, "0123456789") != "" {
		return
	}
	n, err := strconv.Atoi(digits)
	if err != nil {
		n = endless // more than any room has
	}
	c.op = memberCount
	switch is.text[:len(is.text)-len(digits)] {
	case "", "==":
		c.count = comparison{n, n}
	case "<":
		c.count = comparison{0, n - 1}
	case "<=":
		c.count = comparison{0, n}
	case ">":
		c.count = comparison{n, endless}
		if n < endless {
			c.count.least++
		}
	case ">=":
		c.count = comparison{n, endless}
	default:
		c.op = never
	}
}
