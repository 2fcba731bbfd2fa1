package pushrule

import (
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/strictjson"
)

// masterID is the first rule of every set.
const masterID = ".m.rule.master"

// The default rules that MSC4210 removed from the specification.
const (
	legacyDisplayName = ".m.rule.contains_display_name" // override
	legacyRoomNotif   = ".m.rule.roomnotif"             // override
	legacyUserName    = ".m.rule.contains_user_name"    // content
)

// IsLegacy reports whether id is one of the three rules that MSC4210 removed. The
// service never serves them.
func IsLegacy(id string) bool {
	return id == legacyDisplayName || id == legacyRoomNotif || id == legacyUserName
}

// HasLegacy reports whether the set has a legacy rule, see [IsLegacy].
func (s *Ruleset) HasLegacy() bool { return s.doc.legacy }

// ServerDefault returns the user's default rules of the Matrix specification, v1.17 and
// later, in its order.
func ServerDefault(user mxid.UserID) Ruleset { return Ruleset{specified(user).document(nil)} }

func specified(user mxid.UserID) (l lists) {
	id := strictjson.AppendString(nil, string(user))
	l[Override.index()] = []Rule{
		defaultRule(masterID, disabled, nil, nil),
		defaultRule(".m.rule.suppress_notices", enabled, nil,
			conditions(eventMatch("content.msgtype", "m.notice"))),
		defaultRule(".m.rule.invite_for_me", enabled, actions(notify, soundDefault), conditions(
			eventMatch("type", "m.room.member"),
			eventMatch("content.membership", "invite"),
			eventMatch("state_key", string(user)))),
		defaultRule(".m.rule.member_event", enabled, nil,
			conditions(eventMatch("type", "m.room.member"))),
		defaultRule(".m.rule.is_user_mention", enabled, actions(notify, soundDefault, highlight),
			conditions(eventProperty("event_property_contains", `content.m\.mentions.user_ids`, string(id)))),
		defaultRule(".m.rule.is_room_mention", enabled, actions(notify, highlight), conditions(
			eventProperty("event_property_is", `content.m\.mentions.room`, "true"),
			`{"kind":"sender_notification_permission","key":"room"}`)),
		defaultRule(".m.rule.tombstone", enabled, actions(notify, highlight),
			conditions(eventMatch("type", "m.room.tombstone"), eventMatch("state_key", ""))),
		defaultRule(".m.rule.reaction", enabled, nil,
			conditions(eventMatch("type", "m.reaction"))),
		defaultRule(".m.rule.room.server_acl", enabled, nil,
			conditions(eventMatch("type", "m.room.server_acl"), eventMatch("state_key", ""))),
		defaultRule(".m.rule.suppress_edits", enabled, nil,
			conditions(eventProperty("event_property_is", `content.m\.relates_to.rel_type`, `"m.replace"`))),
	}
	l[Underride.index()] = []Rule{
		defaultRule(".m.rule.call", enabled, actions(notify, soundRing),
			conditions(eventMatch("type", "m.call.invite"))),
		defaultRule(".m.rule.encrypted_room_one_to_one", enabled, actions(notify, soundDefault),
			conditions(twoMembers, eventMatch("type", "m.room.encrypted"))),
		defaultRule(".m.rule.room_one_to_one", enabled, actions(notify, soundDefault),
			conditions(twoMembers, eventMatch("type", "m.room.message"))),
		defaultRule(".m.rule.message", enabled, actions(notify),
			conditions(eventMatch("type", "m.room.message"))),
		defaultRule(".m.rule.encrypted", enabled, actions(notify),
			conditions(eventMatch("type", "m.room.encrypted"))),
	}
	return l
}

type state bool

const (
	enabled  state = true
	disabled state = false
)

const (
	notify       Action = `"notify"`
	soundDefault Action = `{"set_tweak":"sound","value":"default"}`
	soundRing    Action = `{"set_tweak":"sound","value":"ring"}`
	highlight    Action = `{"set_tweak":"highlight"}`

	twoMembers Condition = `{"kind":"room_member_count","is":"2"}`
)

func defaultRule(id string, is state, do []Action, when []Condition) Rule {
	return Rule{ID: id, Default: true, Enabled: bool(is), Actions: do, Conditions: when}
}

func actions(list ...Action) []Action          { return list }
func conditions(list ...Condition) []Condition { return list }

func eventMatch(key, pattern string) Condition {
	b := strictjson.AppendString([]byte(`{"kind":"event_match","key":`), key)
	b = strictjson.AppendString(append(b, `,"pattern":`...), pattern)
	return Condition(append(b, '}'))
}

func eventProperty(kind, key, value string) Condition {
	b := strictjson.AppendString([]byte(`{"kind":"`+kind+`","key":`), key)
	b = append(append(b, `,"value":`...), value...)
	return Condition(append(b, '}'))
}
