package match_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/pushfx/pushfx/module/match"
	"github.com/pushfx/pushfx/module/pushrule"
)

func rule(id, members string) string {
	if !strings.Contains(members, `"enabled"`) {
		members = `"enabled":true,` + members
	}
	if !strings.Contains(members, `"actions"`) {
		members += `,"actions":[]`
	}
	return `{"rule_id":` + encode(id) + `,"default":false,` + members + `}`
}

func TestRulesAreCheckedInOrder(t *testing.T) {
	t.Parallel()
	const message = `{"type":"m.room.message","room_id":"!r:b.c","sender":"@bob:b.c","content":{"body":"It's time for tea"}}`
	const always = `"conditions":[]`
	never := func(members string) string { return `"conditions":[{"kind":"org.example.unknown"}],` + members }
	for name, test := range map[string]struct {
		set  map[string][]string
		want string
	}{
		"none":                                     {nil, ""},
		"override is first":                        {map[string][]string{"override": {rule("o", always)}, "content": {rule("c", `"pattern":"tea"`)}, "underride": {rule("u", always)}}, "override o"},
		"then content":                             {map[string][]string{"content": {rule("c", `"pattern":"tea"`)}, "room": {rule("!r:b.c", `"x":1`)}}, "content c"},
		"then room":                                {map[string][]string{"room": {rule("!r:b.c", `"x":1`)}, "sender": {rule("@bob:b.c", `"x":1`)}}, "room !r:b.c"},
		"then sender":                              {map[string][]string{"sender": {rule("@bob:b.c", `"x":1`)}, "underride": {rule("u", always)}}, "sender @bob:b.c"},
		"then underride":                           {map[string][]string{"underride": {rule("u", always)}}, "underride u"},
		"the first of a kind":                      {map[string][]string{"content": {rule("2", `"pattern":"time"`), rule("1", `"pattern":"tea"`)}}, "content 2"},
		"what is disabled does not match":          {map[string][]string{"override": {rule("o", `"enabled":false,`+always)}, "room": {rule("!r:b.c", `"enabled":false`)}, "underride": {rule("u", always)}}, "underride u"},
		"what cannot match does not stop others":   {map[string][]string{"override": {rule("o", never(`"x":1`)), rule("p", `"conditions":[1,null,"x",{}]`)}, "content": {rule("c", `"pattern":"["`), rule("d", `"pattern":"tea"`)}}, "content d"},
		"no conditions is always":                  {map[string][]string{"override": {rule("o", `"x":1`)}}, "override o"},
		"another room":                             {map[string][]string{"room": {rule("!R:b.c", `"x":1`), rule("!*", `"x":1`)}}, ""},
		"another sender":                           {map[string][]string{"sender": {rule("@Bob:b.c", `"x":1`), rule("*", `"x":1`)}}, ""},
		"a keyword with another condition":         {map[string][]string{"override": {rule("o", `"conditions":[{"kind":"event_match","key":"content.body","pattern":"tea"},{"kind":"event_match","key":"room_id","pattern":"!other:b.c"}]`), rule("p", `"conditions":[{"kind":"event_match","key":"room_id","pattern":"!r:b.c"},{"kind":"event_match","key":"content.body","pattern":"TEA"}]`)}}, "override p"},
		"two keywords":                             {map[string][]string{"underride": {rule("o", `"conditions":[{"kind":"event_match","key":"content.body","pattern":"tea"},{"kind":"event_match","key":"content.body","pattern":"coffee"}]`), rule("p", `"conditions":[{"kind":"event_match","key":"content.body","pattern":"tea"},{"kind":"event_match","key":"content.body","pattern":"t*e"}]`)}}, "underride p"},
		"a rule with a keyword, one without":       {map[string][]string{"override": {rule("o", `"conditions":[{"kind":"event_match","key":"type","pattern":"m.*"}]`), rule("p", `"conditions":[{"kind":"event_match","key":"content.body","pattern":"tea"}]`)}}, "override o"},
		"the deprecated rules work":                {map[string][]string{"override": {rule(".m.rule.contains_display_name", `"conditions":[{"kind":"contains_display_name"}]`)}}, "override .m.rule.contains_display_name"},
		"the deprecated content rule works":        {map[string][]string{"content": {rule(".m.rule.contains_user_name", `"pattern":"time"`)}}, "content .m.rule.contains_user_name"},
		"an unknown kind of rule is not looked at": {map[string][]string{"postcontent": {rule("x", always)}}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			set := map[string]json.RawMessage{}
			for kind, rules := range test.set {
				set[kind] = json.RawMessage("[" + strings.Join(rules, ",") + "]")
			}
			facts := match.Facts{User: "@alice:b.c", DisplayName: "tea"}
			kind, id := match.Compile(readSet(t, encode(set))).Evaluate(readEvent(t, message), facts).Rule()
			if got := strings.TrimSpace(string(kind) + " " + id); got != test.want {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
}

func TestLegacyRulesIgnoreEventsWithMentions(t *testing.T) {
	t.Parallel()
	set := readSet(t, `{"override":[`+rule(".m.rule.contains_display_name", `"conditions":[{"kind":"contains_display_name"}]`)+`,`+
		rule(".m.rule.roomnotif", `"conditions":[{"kind":"event_match","key":"content.body","pattern":"@room"}]`)+`],
		"content":[`+rule(".m.rule.contains_user_name", `"pattern":"alice"`)+`]}`)
	rules := match.Compile(set)
	facts := match.Facts{User: "@alice:b.c", DisplayName: "Al"}
	for _, body := range []string{"hi Al", "@room", "alice"} {
		for mentions, want := range map[string]bool{"": true, `,"m.mentions":{}`: false, `,"m.mentions":null`: false, `,"m":{"mentions":{}}`: true} {
			event := readEvent(t, `{"content":{"body":"`+body+`"`+mentions+`}}`)
			if got := rules.Evaluate(event, facts).Matched(); got != want {
				t.Errorf("%q with %q: got %t", body, mentions, got)
			}
		}
	}
}

func TestOwnEventsHaveNoResult(t *testing.T) {
	t.Parallel()
	rules := match.Compile(readSet(t, `{"override":[`+rule("o", `"conditions":[],"actions":["notify"]`)+`]}`))
	for sender, want := range map[string]bool{`"@alice:b.c"`: false, `"@Alice:b.c"`: true, `"@bob:b.c"`: true, `7`: true} {
		result := rules.Evaluate(readEvent(t, `{"sender":`+sender+`}`), match.Facts{User: "@alice:b.c"})
		if result.Matched() != want || result.Notify() != want {
			t.Errorf("%s: got %t", sender, result.Matched())
		}
	}
}

func TestActionsAreRead(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		actions, kept     string
		notify, highlight bool
		sound             string
	}{
		"none":                    {actions: `[]`, kept: `[]`},
		"notify":                  {actions: `["notify"]`, kept: `["notify"]`, notify: true},
		"sound and highlight":     {actions: `["notify",{"set_tweak":"sound","value":"default"},{"set_tweak":"highlight"}]`, kept: `["notify",{"set_tweak":"sound","value":"default"},{"set_tweak":"highlight"}]`, notify: true, highlight: true, sound: "default"},
		"historical actions":      {actions: `["dont_notify","notify","coalesce"]`, kept: `["notify"]`, notify: true},
		"only historical actions": {actions: `["dont_notify"]`, kept: `[]`},
		"highlight is false":      {actions: `[{"set_tweak":"highlight","value":false}]`, kept: `[{"set_tweak":"highlight","value":false}]`},
		"highlight is true":       {actions: `[{"value":true,"set_tweak":"highlight"}]`, kept: `[{"value":true,"set_tweak":"highlight"}]`, highlight: true},
		"highlight is no boolean": {actions: `[{"set_tweak":"highlight","value":"true"},{"set_tweak":"sound","value":{"a":1}}]`, kept: `[{"set_tweak":"highlight","value":"true"},{"set_tweak":"sound","value":{"a":1}}]`},
		"the last tweak counts":   {actions: `[{"set_tweak":"sound","value":"a"},{"set_tweak":"sound","value":"b"}]`, kept: `[{"set_tweak":"sound","value":"a"},{"set_tweak":"sound","value":"b"}]`, sound: "b"},
		"what is unknown is kept": {actions: `["org.example.sing",{"set_tweak":"org.example.flash","value":[1]},{"x":1},7]`, kept: `["org.example.sing",{"set_tweak":"org.example.flash","value":[1]},{"x":1},7]`},
	} {
		t.Run(name, func(t *testing.T) {
			set := readSet(t, `{"underride":[`+rule("u", `"conditions":[],"actions":`+test.actions)+`]}`)
			result := match.Compile(set).Evaluate(readEvent(t, `{}`), match.Facts{})
			if kept := string(pushrule.AppendActions(nil, result.Actions())); kept != test.kept {
				t.Errorf("kept %s, want %s", kept, test.kept)
			}
			if result.Notify() != test.notify || result.Highlight() != test.highlight || result.Sound() != test.sound {
				t.Errorf("got %t %t %q", result.Notify(), result.Highlight(), result.Sound())
			}
		})
	}
}

func TestZeroResultHasNoActions(t *testing.T) {
	t.Parallel()
	var r match.Result
	kind, id := r.Rule()
	if r.Matched() || kind != "" || id != "" || r.Actions() != nil || r.Notify() || r.Highlight() || r.Sound() != "" {
		t.Errorf("got %+v", r)
	}
}

func TestDefaultRulesDecide(t *testing.T) {
	t.Parallel()
	room := func(members int, sender int64) match.Room {
		return match.Room{MemberCount: members, Power: &match.Power{Sender: sender}}
	}
	for name, test := range map[string]struct {
		event string
		room  match.Room
		want  string
		off   []string // rules that are turned off
	}{
		"a message":                        {event: `{"type":"m.room.message","content":{"body":"x"}}`, room: room(3, 0), want: ".m.rule.message"},
		"a message to one":                 {event: `{"type":"m.room.message","content":{"body":"x"}}`, room: room(2, 0), want: ".m.rule.room_one_to_one"},
		"an encrypted message":             {event: `{"type":"m.room.encrypted","content":{}}`, room: room(3, 0), want: ".m.rule.encrypted"},
		"an encrypted message to one":      {event: `{"type":"m.room.encrypted","content":{}}`, room: room(2, 0), want: ".m.rule.encrypted_room_one_to_one"},
		"a message, members not known":     {event: `{"type":"m.room.message","content":{"body":"x"}}`, want: ".m.rule.message"},
		"a notice":                         {event: `{"type":"m.room.message","content":{"msgtype":"m.notice"}}`, want: ".m.rule.suppress_notices"},
		"an invitation":                    {event: `{"type":"m.room.member","state_key":"@alice:example.org","content":{"membership":"invite"}}`, want: ".m.rule.invite_for_me"},
		"an invitation of somebody else":   {event: `{"type":"m.room.member","state_key":"@carol:example.org","content":{"membership":"invite"}}`, want: ".m.rule.member_event"},
		"a mention":                        {event: `{"type":"m.room.message","content":{"m.mentions":{"user_ids":["@bob:example.org","@alice:example.org"]}}}`, want: ".m.rule.is_user_mention"},
		"a mention of somebody else":       {event: `{"type":"m.room.message","content":{"m.mentions":{"user_ids":["@bob:example.org"]}}}`, want: ".m.rule.message"},
		"a mention of all":                 {event: `{"type":"m.room.message","content":{"m.mentions":{"room":true}}}`, room: room(3, 50), want: ".m.rule.is_room_mention"},
		"a mention of all without power":   {event: `{"type":"m.room.message","content":{"m.mentions":{"room":true}}}`, room: room(3, 49), want: ".m.rule.message"},
		"a mention of all, not exactly":    {event: `{"type":"m.room.message","content":{"m.mentions":{"room":1}}}`, room: room(3, 50), want: ".m.rule.message"},
		"an upgrade":                       {event: `{"type":"m.room.tombstone","state_key":"","content":{}}`, want: ".m.rule.tombstone"},
		"a tombstone that is no state":     {event: `{"type":"m.room.tombstone","content":{}}`, want: ""},
		"a reaction":                       {event: `{"type":"m.reaction","content":{}}`, want: ".m.rule.reaction"},
		"a server ACL":                     {event: `{"type":"m.room.server_acl","state_key":"","content":{}}`, want: ".m.rule.room.server_acl"},
		"an edit":                          {event: `{"type":"m.room.message","content":{"m.relates_to":{"rel_type":"m.replace"}}}`, want: ".m.rule.suppress_edits"},
		"an edit that mentions":            {event: `{"type":"m.room.message","content":{"m.relates_to":{"rel_type":"m.replace"},"m.mentions":{"user_ids":["@alice:example.org"]}}}`, want: ".m.rule.is_user_mention"},
		"a call":                           {event: `{"type":"m.call.invite","content":{}}`, want: ".m.rule.call"},
		"something else":                   {event: `{"type":"org.example.thing","content":{}}`, want: ""},
		"a mention, all turned off":        {event: `{"type":"m.room.message","content":{"m.mentions":{"user_ids":["@alice:example.org"]}}}`, want: ".m.rule.master", off: []string{"-.m.rule.master"}},
		"a notice, notices not suppressed": {event: `{"type":"m.room.message","content":{"msgtype":"m.notice"}}`, want: ".m.rule.message", off: []string{".m.rule.suppress_notices"}},
	} {
		t.Run(name, func(t *testing.T) {
			set := pushrule.ServerDefault("@alice:example.org")
			for _, id := range test.off {
				id, on := strings.CutPrefix(id, "-")
				if err := set.SetEnabled(pushrule.Override, id, on); err != nil {
					t.Fatal(err)
				}
			}
			facts := match.Facts{User: "@alice:example.org", Room: test.room}
			result := match.Compile(set).Evaluate(readEvent(t, test.event), facts)
			if _, id := result.Rule(); id != test.want {
				t.Errorf("got %q, want %q", id, test.want)
			}
			if shared := match.NewCache(1<<20).Rules("@alice:example.org", set).Evaluate(readEvent(t, test.event), facts); !slices.Equal(shared.Actions(), result.Actions()) {
				t.Errorf("with a cache: got %s, want %s", shared.Actions(), result.Actions())
			}
		})
	}
}

// The body has more keywords than indexSearch marks without an allocation. It repeats
// them all, and the first rule of the set must win.
func TestThousandsOfKeywordsAreFound(t *testing.T) {
	t.Parallel()
	const n = 12_000
	var rules []string
	for i := range n {
		pattern := fmt.Sprintf("word%d", i)
		if i%3 == 0 {
			pattern = fmt.Sprintf("*%dx?end*", i)
		}
		rules = append(rules, rule(fmt.Sprint(i), `"pattern":"`+pattern+`"`))
	}
	compiled := match.Compile(readSet(t, `{"content":[`+strings.Join(rules, ",")+`]}`))
	for body, want := range map[string]string{
		"word11999 word7 word11999":          "7",
		"word11998 word11996x word11998":     "11998",
		"9x!end word1 8x!end":                "1",
		"word11999 11997x!ending 11997x end": "11997",
		"word12000 word 11997xend word0":     "",
	} {
		event := readEvent(t, `{"content":{"body":"`+body+`"}}`)
		if _, id := compiled.Evaluate(event, match.Facts{}).Rule(); id != want {
			t.Errorf("%q: got %q, want %q", body, id, want)
		}
	}
}
