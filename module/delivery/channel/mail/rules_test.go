package mail

import (
	"slices"
	"strings"
	"testing"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/delivery/channel"
	"github.com/pushfx/pushfx/module/delivery/content"
	"github.com/pushfx/pushfx/module/pushrule"
)

func TestWhatTheRulesMute(t *testing.T) {
	t.Parallel()
	const (
		roomIs   = `{"kind":"event_match","key":"room_id","pattern":"!r:h"}`
		mute     = `{"override":[{"rule_id":"!r:h","default":false,"enabled":true,"actions":[],"conditions":[` + roomIs + `]}]}`
		mentions = `{"room":[{"rule_id":"!r:h","default":false,"enabled":true,"actions":[]}]}`
		sender   = `{"sender":[{"rule_id":"@bob:h","default":false,"enabled":true,"actions":[]}]}`
		plain    = `{"body":"hi"}`
		mention  = `{"body":"hi","m.mentions":{"user_ids":["@me:h"]}}`
	)
	rule := func(kind, more string) string {
		return `{"` + kind + `":[{"rule_id":"x","default":false,"enabled":true,` + more + `}]}`
	}
	dontEmail := rule("override", `"actions":["notify",{"set_tweak":"dont_email"}],"conditions":[`+roomIs+`]`)
	displayName := strings.TrimSuffix(rule("override", `"actions":["notify"],"conditions":[{"kind":"contains_display_name"}]`), "}") + ","
	message, encrypted := eventIn("$1", "!r:h", "m.room.message", plain), eventIn("$1", "!r:h", content.Encrypted, `{"ciphertext":"x"}`)
	invite := eventIn("$1", "!r:h", "m.room.member", `{"membership":"invite"}`)
	names, none := content.NamesOnly, content.NoNames
	for name, test := range map[string]struct {
		rules   string // before the default rules
		feature bool   // encrypted-events
		event   module.Event
		content content.Policy
		want    bool
	}{
		"the default rules":                {`{}`, false, message, "", false},
		"a room that is muted":             {mute, false, message, "", true},
		"only ids are stored":              {mute, false, message, none, true},
		"a rule that is disabled":          {strings.Replace(mute, `"enabled":true`, `"enabled":false`, 1), false, message, "", false},
		"another room":                     {strings.ReplaceAll(mute, "!r:h", "!s:h"), false, message, "", false},
		"mentions only":                    {mentions, false, message, "", true},
		"mentions only, a mention":         {mentions, false, eventIn("$1", "!r:h", "m.room.message", mention), "", false},
		"mentions only, unknown content":   {mentions, false, message, names, false},
		"mentions only, an invite":         {mentions, false, invite, "", false},
		"a sender":                         {sender, false, message, "", true},
		"a sender that is not stored":      {sender, false, message, none, false},
		"a keyword that mutes":             {rule("content", `"pattern":"hi","actions":[]`), false, message, "", true},
		"a keyword, unknown content":       {rule("content", `"pattern":"hi","actions":[]`), false, message, names, false},
		"by the number of members":         {rule("override", `"actions":[],"conditions":[{"kind":"room_member_count","is":"2"}]`), false, message, "", false},
		"a display name that may be in it": {displayName + mentions[1:], false, message, "", false},
		"a state key that is not stored":   {rule("override", `"actions":[],"conditions":[{"kind":"event_match","key":"state_key","pattern":"@you:h"}]`), false, message, "", false},
		"the user's own state key":         {rule("override", `"actions":[],"conditions":[{"kind":"event_match","key":"state_key","pattern":"@me:h"}]`), false, invite, "", true},
		"dont_email":                       {dontEmail, false, message, "", true},
		"dont_email, before its proposal":  {strings.Replace(dontEmail, `"dont_email"`, `"org.matrix.msc4062.dont_email","value":true`, 1), false, message, "", true},
		"dont_email is false":              {strings.Replace(dontEmail, `"dont_email"`, `"dont_email","value":false`, 1), false, message, "", false},
		"an encrypted event":               {`{}`, true, encrypted, "", false},
		"mentions only, encrypted":         {mentions, true, encrypted, "", true},
		"a condition of an unknown kind":   {rule("override", `"actions":[],"conditions":[{"kind":"x"}]`), false, message, "", false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var features []pushrule.Feature
			if test.feature {
				features = []pushrule.Feature{pushrule.EncryptedEvents}
			}
			defaults, err := pushrule.NewDefaults(features)
			if err != nil {
				t.Fatal(err)
			}
			limits := defaultLimits()
			if test.content != "" {
				limits.Content = test.content
			}
			c := collector{&Channel{}, &channel.Target{User: "@me:h"}, ""}
			all := mailedOf(t, limits, test.event, test.event)
			if got := c.Muted(join(t, test.rules, defaults.For("@me:h")), all); !slices.Equal(got, []bool{test.want, test.want}) {
				t.Errorf("muted: %v, want %v", got, test.want)
			}
		})
	}
}

// join returns a set with rules before those of another set.
func join(t *testing.T, first string, second pushrule.Ruleset) pushrule.Ruleset {
	t.Helper()
	before, err := pushrule.Read(first)
	if err != nil {
		t.Fatal(err)
	}
	text := []byte{'{'}
	for _, kind := range pushrule.Kinds() {
		if len(text) > 1 {
			text = append(text, ',')
		}
		text = append(text, `"`+string(kind)+`":[`...)
		for i, rule := range append(before.List(kind), second.List(kind)...) {
			if i > 0 {
				text = append(text, ',')
			}
			text = rule.AppendJSON(text, kind)
		}
		text = append(text, ']')
	}
	set, err := pushrule.Read(string(append(text, '}')))
	if err != nil {
		t.Fatal(err)
	}
	return set
}
