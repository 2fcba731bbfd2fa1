package mail

import (
	"slices"
	"strings"

	"github.com/pushfx/pushfx/module/delivery/channel"
	"github.com/pushfx/pushfx/module/delivery/content"
	"github.com/pushfx/pushfx/module/match"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/pushrule"
	"github.com/pushfx/pushfx/module/strictjson"
)

// stored is an event as the log has it. Its room and its user are no more known than they were stored: not the
// number of members, names and power levels.
type stored struct {
	text string
	has  has
}

// has says which properties of an event are stored, besides its ids.
type has struct{ names, content, stateKey bool }

func readStored(user mxid.UserID, m channel.Notification) (e stored) {
	_, members, rest := content.Split(m.Text)
	e.has = has{members != "", rest != "", content.MemberOf("{"+members+"}", "user_is_target") == "true"}
	if members == "" {
		members = string(content.AppendIDs(nil, m.Meta.Event, m.Meta.Room))
	}
	text := []byte("{" + members)
	if e.has.stateKey {
		text = strictjson.AppendString(strictjson.AppendMember(text, "state_key"), string(user))
	}
	if e.has.content {
		text = append(append(text, ','), rest...)
	}
	e.text = string(append(text, '}'))
	return e
}

// knows reports whether it is certain that a condition holds, or does not.
func (h has) knows(c pushrule.Condition) bool {
	switch content.ReadText(content.MemberOf(string(c), "kind")) {
	case "event_match", "event_property_is", "event_property_contains":
	default:
		return false
	}
	switch key := content.ReadText(content.MemberOf(string(c), "key")); key {
	case "event_id", "room_id":
		return true
	case "type", "sender":
		return h.names
	case "state_key":
		return h.stateKey
	default:
		return h.content && strings.HasPrefix(key, "content.")
	}
}

// Muted implements [channel.Collector]: push rules do not notify of an event, or not by mail.
// In doubt they do: of the conditions that cannot be evaluated any more, those of a rule that
// notifies hold, and those of another rule do not.
func (c *collector) Muted(rules pushrule.Ruleset, all []channel.Notification) []bool {
	muted, compiled := make([]bool, len(all)), map[has]*match.Rules{}
	for i, m := range all {
		e := readStored(c.to.User, m)
		if compiled[e.has] == nil {
			compiled[e.has] = compile(rules, e.has)
		}
		event, err := match.ReadEvent(e.text)
		if err != nil {
			continue
		}
		result := compiled[e.has].Evaluate(event, match.Facts{User: c.to.User})
		muted[i] = !result.Notify() && !result.Incomplete()
	}
	return muted
}

// compile compiles the rules for events that have some properties. All become override rules in the
// order of evaluation, so that each has conditions.
func compile(rules pushrule.Ruleset, h has) *match.Rules {
	text := []byte(`{"override":[`)
	for _, kind := range pushrule.Kinds() {
		for _, rule := range rules.List(kind) {
			mails := isMailed(rule.Actions)
			all := conditionsOf(kind, rule)
			known := slices.DeleteFunc(slices.Clone(all), func(c pushrule.Condition) bool { return !h.knows(c) })
			if isForPushes(rule.ID) || !mails && len(known) < len(all) {
				continue
			}
			rule.Conditions, rule.Actions = known, nil
			if mails {
				rule.Actions = []pushrule.Action{`"notify"`}
			}
			if !strings.HasSuffix(string(text), "[") {
				text = append(text, ',')
			}
			text = rule.AppendJSON(text, pushrule.Override)
		}
	}
	set, _ := pushrule.Read(string(append(text, "]}"...))) // it was read before
	return match.Compile(set)
}

// conditionsOf returns the conditions of a rule, or the one that its kind implies (Matrix specification,
// "Push Rules").
func conditionsOf(kind pushrule.Kind, rule pushrule.Rule) []pushrule.Condition {
	condition := func(kind, key, name, value string) []pushrule.Condition {
		text := content.AppendString(content.AppendString([]byte{'{'}, "kind", kind), "key", key)
		return []pushrule.Condition{pushrule.Condition(append(content.AppendString(text, name, value), '}'))}
	}
	switch kind {
	case pushrule.Content:
		return condition("event_match", "content.body", "pattern", rule.Pattern)
	case pushrule.Room:
		return condition("event_property_is", "room_id", "value", rule.ID)
	case pushrule.Sender:
		return condition("event_property_is", "sender", "value", rule.ID)
	}
	return rule.Conditions
}

// isForPushes recognizes the rule of [pushrule.EncryptedEvents]: MSC4028 wants its events to be
// pushed to phones, which decrypt them, and not to be mailed.
func isForPushes(rule string) bool {
	unstable := pushrule.EncryptedEvents.Rules[0].ID
	return rule == unstable || rule == pushrule.EncryptedEvents.StableIDs[unstable]
}

// isMailed reports whether actions notify without the tweak dont_email (MSC4062).
func isMailed(actions []pushrule.Action) bool {
	notify, mail := false, true
	for _, action := range actions {
		notify = notify || content.ReadText(string(action)) == "notify"
		switch content.ReadText(content.MemberOf(string(action), "set_tweak")) {
		case "dont_email", "org.matrix.msc4062.dont_email":
			value := content.MemberOf(string(action), "value")
			mail = value != "" && value != "true"
		}
	}
	return notify && mail
}
