package match_test

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strings"

	"github.com/pushfx/pushfx/module/match"
)

// generator makes events and rule sets that often match each other.
type generator struct{ *rand.Rand }

func newGenerator(seed uint64) generator { return generator{rand.New(rand.NewPCG(seed, 1))} }

func pick[T any](g generator, list ...T) T { return list[g.IntN(len(list))] }

func (g generator) word() string {
	return pick(g, "foo", "Foo", "bar", "BAR", "foobar", "a", "aa", "b", "_", "x1", "c++", "café", "CAFÉ", "naïve", "@room", "@",
		"привет", "ПРИВЕТ", "日本", "⚡️", "👩‍💻", "ß", "ẞ", "ſ", "K", "k", "s", "İ", "i", "ı", "Σ", "σ", "ς", "-", ".", ",", "!", "\\", "[a-z]", "$")
}

func (g generator) space() string {
	return pick(g, " ", " ", " ", "", "", "\n", "-", "  ", "\u00a0", "\u2028")
}

func (g generator) body() string {
	var b strings.Builder
	for range g.IntN(7) {
		b.WriteString(g.word() + g.space())
	}
	return b.String()
}

func (g generator) pattern() string {
	var b strings.Builder
	for range 1 + g.IntN(3) {
		b.WriteString(pick(g, "", "", "", "*", "?", "??", "*?", "**"))
		b.WriteString(g.word())
		b.WriteString(pick(g, "", "", "", " ", "*", "?", "*?*"))
	}
	return pick(g, b.String(), b.String(), b.String(), g.word(), g.word(), "", "*", "?")
}

func (g generator) scalar() any {
	return pick[any](g, nil, true, false, 0, 1, -1, 13, json.Number("9007199254740991"), json.Number("-9007199254740991"),
		json.Number("9007199254740992"), json.Number("1.5"), json.Number("1.0"), json.Number("1e2"), 100, "1", "true", "", "foo", "Foo", "@alice:example.org")
}

// name returns a part of a path, plain and escaped as in a key.
func (g generator) name() (name, escaped string) {
	names := []string{"foo", "m.foo", `back\slash`, `m.\x`, "", "Foo", "body"}
	name = pick(g, names...)
	return name, strings.NewReplacer(`\`, `\\`, ".", `\.`).Replace(name)
}

func (g generator) value(depth int) any {
	switch n := g.IntN(8); {
	case n == 0 && depth > 0:
		return g.object(depth - 1)
	case n == 1:
		list := []any{}
		for range g.IntN(4) {
			list = append(list, g.scalar())
		}
		return append(list, []any{}, map[string]any{"foo": "foo"})
	case n == 2:
		return g.body()
	}
	return g.scalar()
}

func (g generator) object(depth int) map[string]any {
	object := map[string]any{}
	for range g.IntN(4) {
		name, _ := g.name()
		object[name] = g.value(depth)
	}
	return object
}

func (g generator) event() map[string]any {
	content := g.object(2)
	content["msgtype"] = pick(g, "m.text", "m.notice", "M.TEXT")
	if g.IntN(8) > 0 {
		content["body"] = g.body()
	}
	if g.IntN(3) == 0 {
		content["n"] = pick[any](g, json.Number("9007199254740993"), json.Number("1.5"), "a\nb", []any{1}, 7)
	}
	if g.IntN(4) == 0 {
		content["m.mentions"] = map[string]any{
			"room": pick[any](g, true, false, "true"), "user_ids": []any{pick(g, "@alice:example.org", "@bob:example.org")},
		}
	}
	if g.IntN(6) == 0 {
		content["m.relates_to"] = map[string]any{"rel_type": pick(g, "m.replace", "m.thread")}
	}
	event := map[string]any{
		"type": pick(g, "m.room.message", "m.room.message", "m.room.encrypted", "m.room.member", "m.reaction"), "content": content,
		"room_id": pick(g, "!a:example.org", "!b:example.org"), "event_id": "$e",
		"sender": pick(g, "@bob:example.org", "@bob:example.org", "@carol:example.org", "@alice:example.org"),
	}
	if g.IntN(3) == 0 {
		event["state_key"] = pick(g, "", "@alice:example.org", "@ALICE:example.org")
		content["membership"] = "invite"
	}
	return event
}

func (g generator) key() string {
	if g.IntN(3) == 0 {
		return pick(g, "content.body", "content.body", "content.msgtype", "type", "sender", "room_id", "state_key", "content",
			"content.nothing", `content.m\.mentions.user_ids`, `content.m\.relates_to.rel_type`, "content..foo", `content.\foo`, `content.foo\`, "", "content.body.length", "content.foo.0", "type.length")
	}
	key := "content"
	for range 1 + g.IntN(2) {
		_, escaped := g.name()
		key += "." + escaped
	}
	return key
}

func (g generator) condition() map[string]any {
	if g.IntN(12) == 0 {
		return pick(g,
			map[string]any{"kind": "event_property_is", "key": "content.n", "value": pick[any](g, json.Number("9007199254740992"), json.Number("1.5"), 7)},
			map[string]any{"kind": "event_property_is", "key": "content.n.length", "value": pick(g, 1, 3)},
			map[string]any{"kind": "event_match", "key": "content.n", "pattern": pick(g, "A*b", "*", "a?b")})
	}
	kind := pick(g, "event_match", "event_match", "event_match", "event_property_is", "event_property_is", "event_property_contains",
		"contains_display_name", "room_member_count", "sender_notification_permission", "recipient_permission", "org.matrix.msc4506.recipient_permission",
		"org.example.unknown")
	c := map[string]any{"kind": kind}
	switch kind {
	case "event_match":
		c["key"], c["pattern"] = g.key(), g.pattern()
		if g.IntN(2) == 0 {
			c["key"] = "content.body"
		} else if g.IntN(3) == 0 {
			c["pattern"] = pick(g, "m.room.message", "m.text", "M.T?XT", "m.*", "*", "@alice:example.org", "!a:example.org")
		}
	case "event_property_is", "event_property_contains":
		c["key"], c["value"] = g.key(), g.scalar()
	case "room_member_count":
		c["is"] = pick(g, "2", "==2", "<3", ">2", ">=10", "<=2", "02", "=2", "", ">", "<>2", " 2", "-1", "99999999999999999999", "<99999999999999999999")
	case "sender_notification_permission":
		c["key"] = pick(g, "room", "room", "other", "third")
	case "recipient_permission", "org.matrix.msc4506.recipient_permission":
		c["key"] = pick[any](g, "invite", "invite", "kick", "ban", "redact", "other", 7)
	}
	if g.IntN(20) == 0 {
		delete(c, pick(g, "key", "pattern", "value", "is"))
	}
	return c
}

func (g generator) rule(kind string, n int) map[string]any {
	rule := map[string]any{
		"rule_id": fmt.Sprintf("%s%d", kind, n), "default": false, "enabled": g.IntN(8) > 0,
		"actions": pick(g, []any{"notify"}, []any{}, []any{"dont_notify"},
			[]any{"notify", map[string]any{"set_tweak": "sound", "value": "default"}, map[string]any{"set_tweak": "highlight"}}),
	}
	switch kind {
	case "override", "underride":
		conditions := []any{}
		for range pick(g, 0, 1, 1, 1, 2, 2, 3) {
			conditions = append(conditions, g.condition())
		}
		if len(conditions) == 0 && g.IntN(4) > 0 {
			conditions = append(conditions, g.condition())
		}
		rule["conditions"] = conditions
		if g.IntN(20) == 0 {
			rule["rule_id"] = pick(g, ".m.rule.contains_display_name", ".m.rule.roomnotif")
		}
	case "content":
		rule["pattern"] = g.pattern()
	case "room":
		rule["rule_id"] = pick(g, "!a:example.org", "!c:example.org", "!A:example.org", "!*")
	case "sender":
		rule["rule_id"] = pick(g, "@bob:example.org", "@nobody:example.org", "@BOB:example.org")
	}
	return rule
}

func (g generator) set() map[string]any {
	set := map[string]any{}
	for _, kind := range []string{"override", "content", "room", "sender", "underride"} {
		rules := []any{}
		for n := range g.IntN(6) {
			rules = append(rules, g.rule(kind, n))
		}
		set[kind] = rules
	}
	return set
}

func (g generator) facts() match.Facts {
	facts := match.Facts{
		User: "@alice:example.org", DisplayName: pick(g, "", "foo", "Foo Bar", "a", "café", "f*", "⚡️"),
		Room: match.Room{MemberCount: pick(g, 0, 1, 2, 3, 10)},
	}
	if g.IntN(4) > 0 {
		facts.Room.Power = &match.Power{
			Sender: pick[int64](g, 0, 49, 50, 100, -1), SenderCreator: g.IntN(10) == 0,
			Notifications: pick(g, nil, map[string]int64{"room": 20}, map[string]int64{"room": 100, "other": 10}),
			Permissions:   pick(g, nil, map[string]int64{"invite": 20}, map[string]int64{"kick": 0, "other": 0}),
		}
	}
	if g.IntN(4) > 0 {
		level := pick[int64](g, -1, 0, 19, 20, 50)
		facts.Power = &level
	}
	return facts
}

func encode(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return string(b)
}
