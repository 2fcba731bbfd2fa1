package match_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/pushfx/pushfx/module/match"
)

func matchesBody(t *testing.T, pattern, body string) bool {
	t.Helper()
	set := fmt.Sprintf(`{"content":[{"rule_id":"r","default":false,"enabled":true,"actions":[],"pattern":%s}]}`, encode(pattern))
	event := fmt.Sprintf(`{"content":{"body":%s}}`, encode(body))
	return match.Compile(readSet(t, set)).Evaluate(readEvent(t, event), match.Facts{}).Matched()
}

func TestPatternsMatchBodiesBetweenWordBoundaries(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		pattern string
		yes, no []string
	}{
		"a word":                                 {pattern: "tea", yes: []string{"tea", "Time for TEA", "tea?", "-tea-", "a\ntea\nb", "\"tea\""}, no: []string{"", "teatime", "steam", "tea_", "tea2", "t e a"}},
		"a later match counts":                   {pattern: "foo", yes: []string{"foobar foo", "xfoo foo", "foofoo-foo"}, no: []string{"foobar foobar"}},
		"the example of the spec":                {pattern: "ex*ple", yes: []string{"An example event.", "exple", "An exciting triple-whammy", "EX\nPLE"}, no: []string{"complex people", "examples", "anexple"}},
		"several words":                          {pattern: "foo bar", yes: []string{"foo bar", "baz Foo Bar baz", "foo bar\u00e9"}, no: []string{"bar foo", "foo  bar", "foo barfoo", "xfoo bar"}},
		"several words, one twice":               {pattern: "bar bar", yes: []string{"foobar bar bar"}, no: []string{"foobar bar", "foobar bar barfoo"}},
		"a space at the end":                     {pattern: "foo ", yes: []string{"foo bar", "foo ", " foo  "}, no: []string{"foo", "foo\tbar"}},
		"an at sign":                             {pattern: "@room", yes: []string{"@room", "hey @ROOM!", "foo@room", "@@room"}, no: []string{"room", "@roomba", "@ room", "@room_"}},
		"letters beyond ASCII":                   {pattern: "caf\u00e9", yes: []string{"caf\u00e9", "a CAF\u00c9 b", "caf\u00e9s"}, no: []string{"cafe", "xcaf\u00e9", "caf"}},
		"only letters beyond ASCII":              {pattern: "\u043f\u0440\u0438\u0432\u0435\u0442", yes: []string{"\u041f\u0420\u0418\u0412\u0415\u0422!", "\u043f\u0440\u0438\u0432\u0435\u0442\u0438\u043a", "x\u043f\u0440\u0438\u0432\u0435\u0442x"}, no: []string{"\u043f\u0440\u0438\u0432\u0435"}},
		"a word beside such letters":             {pattern: "test", yes: []string{"\u00fctest", "test\u00fc", "\u65e5test\u672c"}, no: []string{"tests"}},
		"punctuation":                            {pattern: "c++", yes: []string{"c++", "I like C++.", "c+++", "c++11"}, no: []string{"c+", "cc++", "c"}},
		"an emoji":                               {pattern: "\u26a1\ufe0f", yes: []string{"conduit \u26a1\ufe0f", "conduit\u26a1\ufe0f", "\u26a1\ufe0fconduit"}, no: []string{"conduit", "\u26a1"}},
		"a word before an emoji":                 {pattern: "conduit", yes: []string{"conduit \u26a1\ufe0f", "conduit\u26a1\ufe0f", "\u26a1\ufe0fconduit"}, no: []string{"conduits"}},
		"joined emojis":                          {pattern: "Dev\U0001f469\u200d\U0001f4bb", yes: []string{"Ruma Dev\U0001f469\u200d\U0001f4bb"}, no: []string{"Ruma Dev\U0001f469\U0001f4bb", "Ruma xDev\U0001f469\u200d\U0001f4bb"}},
		"a question mark is one character":       {pattern: "b?r", yes: []string{"foo bar", "b\u00e9r", "b\U0001f600r", "b r", "b\nr"}, no: []string{"br", "baar", "b\u00e9\u00e9r"}},
		"question marks and stars":               {pattern: "f?o*baz", yes: []string{"aaa FoobarbaZ zzz", "aa foobaz yy"}, no: []string{"aa fobbaz yy", "aa fiiobaz yy", "aa xfooxbaz yy", "aa fooxbazx yy"}},
		"a star at the end":                      {pattern: "foo*", yes: []string{"foo", "foobar", "a foobar b"}, no: []string{"xfoo"}},
		"a star before":                          {pattern: "*foo", yes: []string{"foo", "xfoo", "xfoo bar"}, no: []string{"foox"}},
		"stars around":                           {pattern: "*oo*", yes: []string{"foox", "oo"}, no: []string{"o o"}},
		"only a star":                            {pattern: "*", yes: []string{"", "x", "a b"}},
		"only a question mark":                   {pattern: "?", yes: []string{"x", "ab c", "a-", "\u00e9\u00e9"}, no: []string{"", "ab"}},
		"regular expressions mean nothing":       {pattern: `\w*`, yes: []string{`\w`, `a \wb`}, no: []string{"matrix", "w"}},
		"brackets mean nothing":                  {pattern: "[a-z]*", yes: []string{"[a-z] and [0-9]"}, no: []string{"matrix"}},
		"classes mean nothing":                   {pattern: "[[:alpha:]]?", yes: []string{"[[:alpha:]]!"}, no: []string{"m"}},
		"a backslash escapes nothing":            {pattern: `f\?obaz`, yes: []string{`F\oobaz`, `f\?obaz`}, no: []string{"f?obaz", "foobaz"}},
		"the Kelvin sign is a k, and a boundary": {pattern: "k", yes: []string{"\u212a", "K", "a\u212aa"}, no: []string{"aka"}},
		"beside the long s is a boundary":        {pattern: "a", yes: []string{"\u017fa\u017f"}, no: []string{"sas"}},
		"the long s is an s":                     {pattern: "asb", yes: []string{"a\u017fb", "ASB"}, no: []string{"a\u017f", "ab"}},
		"sharp s is one letter":                  {pattern: "stra\u00dfe", yes: []string{"STRA\u1e9eE"}, no: []string{"STRASSE"}},
		"final sigma is a sigma":                 {pattern: "\u03c3", yes: []string{"\u03c2", "\u03a3"}},
		"dotted I is only itself":                {pattern: "\u0130", yes: []string{"\u0130"}, no: []string{"i", "I", "i\u0307", "\u0131"}},
		"nothing is in everything":               {pattern: "", yes: []string{"", "foo", " "}},
		"a line separator is a character":        {pattern: "a?b", yes: []string{"a\u2028b", "a\u0085b"}},
	} {
		t.Run(name, func(t *testing.T) {
			for _, body := range test.yes {
				if !matchesBody(t, test.pattern, body) {
					t.Errorf("%q does not match %q", test.pattern, body)
				}
			}
			for _, body := range test.no {
				if matchesBody(t, test.pattern, body) {
					t.Errorf("%q matches %q", test.pattern, body)
				}
			}
		})
	}
}

func holds(t *testing.T, condition, event string, facts match.Facts) bool {
	t.Helper()
	set := `{"override":[{"rule_id":"r","default":false,"enabled":true,"actions":[],"conditions":[` + condition + `]}]}`
	return match.Compile(readSet(t, set)).Evaluate(readEvent(t, event), facts).Matched()
}

type conditionCase struct {
	condition string
	yes, no   []string
	facts     match.Facts
}

func checkConditions(t *testing.T, cases map[string]conditionCase) {
	t.Parallel()
	for name, test := range cases {
		t.Run(name, func(t *testing.T) {
			for _, event := range test.yes {
				if !holds(t, test.condition, event, test.facts) {
					t.Errorf("%s does not hold for %s", test.condition, event)
				}
			}
			for _, event := range test.no {
				if holds(t, test.condition, event, test.facts) {
					t.Errorf("%s holds for %s", test.condition, event)
				}
			}
		})
	}
}

func TestEventMatch(t *testing.T) {
	checkConditions(t, map[string]conditionCase{
		"a glob is about the whole value": {
			condition: `{"kind":"event_match","key":"content.topic","pattern":"lunc?*"}`,
			yes:       []string{`{"content":{"topic":"Lunch plans"}}`, `{"content":{"topic":"LUNCH"}}`, `{"content":{"topic":"lunc\n"}}`},
			no: []string{
				`{"content":{"topic":" lunch"}}`, `{"content":{"topic":"lunc"}}`, `{"content":{"topic":null}}`, `{"content":{}}`,
				`{"content":{"topic":["lunch"]}}`, `{"content":{"topic":{"lunch":"lunch"}}}`, `{"content":"lunch"}`,
			},
		},
		"a pattern without wildcards too": {
			condition: `{"kind":"event_match","key":"content.value","pattern":"foobaz"}`,
			yes:       []string{`{"content":{"value":"FoobaZ"}}`},
			no:        []string{`{"content":{"value":"xFoobaZ"}}`, `{"content":{"value":"FoobaZz"}}`, `{"content":{"value":"foo baz"}}`, `{"content":{"value":"x\nfoobaz"}}`},
		},
		"a star needs a string": {
			condition: `{"kind":"event_match","key":"content.value","pattern":"*"}`,
			yes:       []string{`{"content":{"value":""}}`, `{"content":{"value":"a\nb"}}`},
			no:        []string{`{"content":{}}`, `{"content":{"value":1}}`, `{"content":{"value":true}}`, `{"content":{"value":null}}`},
		},
		"the empty pattern is about the empty string": {
			condition: `{"kind":"event_match","key":"state_key","pattern":""}`,
			yes:       []string{`{"state_key":""}`}, no: []string{`{}`, `{"state_key":"x"}`, `{"state_key":null}`},
		},
		"a state event needs no state_key condition": {
			condition: `{"kind":"event_match","key":"type","pattern":"m.room.message"}`,
			yes:       []string{`{"type":"m.room.message"}`, `{"type":"m.room.message","state_key":"x"}`, `{"type":"M.ROOM.MESSAGE"}`}, no: []string{`{"type":"m.room.messages"}`, `{"type":"mxroomxmessage"}`},
		},
	})
}

func TestEventPropertyIs(t *testing.T) {
	checkConditions(t, map[string]conditionCase{
		"exactly true": {
			condition: `{"kind":"event_property_is","key":"content.m\\.federate","value":true}`,
			yes:       []string{`{"content":{"m.federate":true}}`},
			no:        []string{`{"content":{"m.federate":"true"}}`, `{"content":{"m.federate":1}}`, `{"content":{"m.federate":false}}`, `{"content":{"m":{"federate":true}}}`, `{"content":{}}`},
		},
		"exactly false": {
			condition: `{"kind":"event_property_is","key":"content.v","value":false}`,
			yes:       []string{`{"content":{"v":false}}`}, no: []string{`{"content":{"v":""}}`, `{"content":{"v":0}}`, `{"content":{"v":null}}`, `{"content":{}}`, `{"content":{"v":[]}}`},
		},
		"exactly null": {
			condition: `{"kind":"event_property_is","key":"content.v","value":null}`,
			yes:       []string{`{"content":{"v":null}}`}, no: []string{`{"content":{}}`, `{"content":{"v":0}}`, `{"content":{"v":"null"}}`, `{"content":{"v":{}}}`},
		},
		"exactly a string": {
			condition: `{"kind":"event_property_is","key":"content.body","value":"Boom!"}`,
			yes:       []string{`{"content":{"body":"Boom!"}}`, `{"content":{"body":"\u0042oom!"}}`}, no: []string{`{"content":{"body":"boom!"}}`, `{"content":{"body":"Boom! Boom!"}}`, `{"content":{"body":["Boom!"]}}`},
		},
		"exactly an integer": {
			condition: `{"kind":"event_property_is","key":"content.v","value":1}`,
			yes:       []string{`{"content":{"v":1}}`, `{"content":{"v":1.0}}`, `{"content":{"v":10e-1}}`},
			no:        []string{`{"content":{"v":"1"}}`, `{"content":{"v":true}}`, `{"content":{"v":1.1}}`, `{"content":{"v":-1}}`, `{"content":{"v":[1]}}`},
		},
		"the largest integer": {
			condition: `{"kind":"event_property_is","key":"content.v","value":9007199254740991}`,
			yes:       []string{`{"content":{"v":9007199254740991}}`}, no: []string{`{"content":{"v":9007199254740990}}`, `{"content":{"v":9007199254740992}}`},
		},
		"beyond the largest integer": {
			condition: `{"kind":"event_property_is","key":"content.v","value":9007199254740992}`,
			no:        []string{`{"content":{"v":9007199254740992}}`, `{"content":{"v":9007199254740993}}`},
		},
		"fractions cannot be compared": {
			condition: `{"kind":"event_property_is","key":"content.v","value":1.5}`, no: []string{`{"content":{"v":1.5}}`},
		},
		"objects cannot be compared": {
			condition: `{"kind":"event_property_is","key":"content.v","value":{}}`, no: []string{`{"content":{"v":{}}}`, `{"content":{"v":null}}`},
		},
	})
}

func TestEventPropertyContains(t *testing.T) {
	checkConditions(t, map[string]conditionCase{
		"an array contains a string": {
			condition: `{"kind":"event_property_contains","key":"content.alt_aliases","value":"#myroom:example.com"}`,
			yes:       []string{`{"content":{"alt_aliases":["#somewhere:example.org","#myroom:example.com"]}}`},
			no: []string{
				`{"content":{"alt_aliases":["#MYROOM:example.com"]}}`, `{"content":{"alt_aliases":["x#myroom:example.com"]}}`,
				`{"content":{"alt_aliases":"#myroom:example.com"}}`, `{"content":{"alt_aliases":[["#myroom:example.com"]]}}`,
				`{"content":{"alt_aliases":{"0":"#myroom:example.com"}}}`, `{"content":{"alt_aliases":[]}}`, `{"content":{}}`,
			},
		},
		"a long array contains a string": {
			condition: `{"kind":"event_property_contains","key":"content.v","value":"17"}`,
			yes:       []string{`{"content":{"v":["30","29","28","27","26","25","24",23,"22","21","20",19,"18","17","16",null,true,"1"]}}`},
			no:        []string{`{"content":{"v":["30","29","28","27","26","25","24",23,"22","21","20",19,"18",17,"16",null,true,"1"]}}`},
		},
		"an array contains null": {
			condition: `{"kind":"event_property_contains","key":"content.v","value":null}`,
			yes:       []string{`{"content":{"v":[{},1,null]}}`}, no: []string{`{"content":{"v":[{},1,[]]}}`, `{"content":{"v":null}}`},
		},
	})
}

func TestKeysOfConditions(t *testing.T) {
	checkConditions(t, map[string]conditionCase{
		"a key with an escaped dot and backslash": {
			condition: `{"kind":"event_property_is","key":"content.m\\\\foo\\.bar","value":1}`,
			yes:       []string{`{"content":{"m\\foo.bar":1}}`}, no: []string{`{"content":{"m\\foo":{"bar":1}}}`},
		},
		"a key with another escape": {
			condition: `{"kind":"event_property_is","key":"content.\\x","value":1}`, yes: []string{`{"content":{"\\x":1}}`}, no: []string{`{"content":{"x":1}}`},
		},
		"a name is not joined over dots": {
			condition: `{"kind":"event_property_is","key":"content.m.foo","value":1}`, yes: []string{`{"content":{"m":{"foo":1}}}`}, no: []string{`{"content":{"m.foo":1}}`, `{"content.m.foo":1}`},
		},
		"other parts of the event": {
			condition: `{"kind":"event_match","key":"unsigned.membership","pattern":"join"}`, yes: []string{`{"unsigned":{"membership":"join"}}`}, no: []string{`{"content":{"membership":"join"}}`},
		},
	})
}

func TestRoomMemberCount(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		is      string // JSON
		members int
		want    bool
	}{
		{`"3"`, 3, true}, {`"3"`, 2, false}, {`"==3"`, 3, true}, {`"==2"`, 3, false},
		{`"<3"`, 3, false}, {`"<3"`, 2, true}, {`"<=3"`, 3, true}, {`"<=3"`, 4, false},
		{`">2"`, 3, true}, {`">2"`, 2, false}, {`">=4"`, 3, false}, {`">=4"`, 4, true},
		{`"003"`, 3, true}, {`"<100000000000000000000"`, 3, true},
		{`"=3"`, 3, false}, {`">="`, 3, false}, {`"> 2"`, 3, false}, {`3`, 3, false}, {`""`, 3, false},
		{`"<3"`, 0, false}, // unknown count
	} {
		condition := `{"kind":"room_member_count","is":` + test.is + `}`
		facts := match.Facts{Room: match.Room{MemberCount: test.members}}
		if got := holds(t, condition, `{}`, facts); got != test.want {
			t.Errorf("%s, %d members: got %t", condition, test.members, got)
		}
	}
}

func TestSenderNotificationPermission(t *testing.T) {
	power := func(sender int64, levels map[string]int64) match.Facts {
		return match.Facts{Room: match.Room{Power: &match.Power{Sender: sender, Notifications: levels}}}
	}
	checkConditions(t, map[string]conditionCase{
		"enough power":                {condition: `{"kind":"sender_notification_permission","key":"room"}`, yes: []string{`{}`}, facts: power(50, nil)},
		"not enough power":            {condition: `{"kind":"sender_notification_permission","key":"room"}`, no: []string{`{}`}, facts: power(49, nil)},
		"the room's own level":        {condition: `{"kind":"sender_notification_permission","key":"room"}`, yes: []string{`{}`}, facts: power(0, map[string]int64{"room": 0})},
		"a level for something else":  {condition: `{"kind":"sender_notification_permission","key":"party"}`, yes: []string{`{}`}, facts: power(20, map[string]int64{"party": 20})},
		"no level for something else": {condition: `{"kind":"sender_notification_permission","key":"party"}`, no: []string{`{}`}, facts: power(100, nil)},
		"power not known":             {condition: `{"kind":"sender_notification_permission","key":"room"}`, no: []string{`{}`}},
		"a creator": {
			condition: `{"kind":"sender_notification_permission","key":"room"}`, yes: []string{`{}`},
			facts: match.Facts{Room: match.Room{Power: &match.Power{SenderCreator: true, Notifications: map[string]int64{"room": 1 << 52}}}},
		},
	})
}

func TestContainsDisplayName(t *testing.T) {
	named := func(name string) match.Facts { return match.Facts{DisplayName: name} }
	checkConditions(t, map[string]conditionCase{
		"a display name": {
			condition: `{"kind":"contains_display_name"}`, facts: named("foo"),
			yes: []string{`{"content":{"body":"a FOO b"}}`}, no: []string{`{"content":{"body":"foobar"}}`, `{"content":{"body":["foo"]}}`, `{"content":{}}`},
		},
		"a display name with a space":             {condition: `{"kind":"contains_display_name"}`, facts: named("Groovy Gorilla"), yes: []string{`{"content":{"body":"@room Give a warm welcome to Groovy Gorilla"}}`}},
		"a display name is no glob":               {condition: `{"kind":"contains_display_name"}`, facts: named("f*?"), yes: []string{`{"content":{"body":"hi f*?"}}`}, no: []string{`{"content":{"body":"foo"}}`}},
		"a display name is no regular expression": {condition: `{"kind":"contains_display_name"}`, facts: named("ba[rz]"), no: []string{`{"content":{"body":"bar baz"}}`}},
		"no display name":                         {condition: `{"kind":"contains_display_name"}`, no: []string{`{"content":{"body":""}}`, `{"content":{"body":"foo"}}`}},
		"a very long display name":                {condition: `{"kind":"contains_display_name"}`, facts: named(strings.Repeat("Long ", 100) + "x"), yes: []string{`{"content":{"body":"` + strings.Repeat("lonG ", 100) + `x"}}`}},
	})
}

func TestInvalidConditionsNeverHold(t *testing.T) {
	checkConditions(t, map[string]conditionCase{
		"an unknown kind":         {condition: `{"kind":"org.example.unknown","key":"type","pattern":"*"}`, no: []string{`{"type":"x"}`}},
		"no kind":                 {condition: `{"key":"type","pattern":"*"}`, no: []string{`{"type":"x"}`}},
		"no object":               {condition: `"event_match"`, no: []string{`{"type":"x"}`}},
		"no key":                  {condition: `{"kind":"event_match","pattern":"*"}`, no: []string{`{"type":"x","":"x"}`}},
		"no pattern":              {condition: `{"kind":"event_match","key":"type"}`, no: []string{`{"type":"x"}`, `{"type":""}`}},
		"no pattern but its type": {condition: `{"kind":"event_match","key":"type","pattern_type":"user_id"}`, no: []string{`{"type":"@alice:example.org"}`}},
		"a pattern of a bad type": {condition: `{"kind":"event_match","key":"type","pattern":["*"]}`, no: []string{`{"type":"x"}`}},
		"no value":                {condition: `{"kind":"event_property_is","key":"type"}`, no: []string{`{"type":"x"}`, `{"type":null}`, `{}`}},
		"the empty key":           {condition: `{"kind":"event_match","key":"","pattern":"x"}`, yes: []string{`{"":"x"}`}, no: []string{`{}`}},
	})
}

// The body has so many near matches that the scan must find the name.
func TestADisplayNameHasNoWildcards(t *testing.T) {
	t.Parallel()
	rules := match.Compile(readSet(t, `{"override":[`+rule("o", `"conditions":[{"kind":"contains_display_name"}]`)+`]}`))
	for name, ends := range map[string][2]string{"x?": {"xa", "x?"}, "x?" + strings.Repeat("-a", 40): {"xa" + strings.Repeat("-a", 40), "x?" + strings.Repeat("-a", 40)}} {
		for i, end := range ends {
			event := readEvent(t, bodyEvent(strings.Repeat("a"+name+"a ", 20)+end))
			if got := rules.Evaluate(event, match.Facts{User: "@a:b.c", DisplayName: name}).Matched(); got != (i == 1) {
				t.Errorf("%.4s... and ...%.4s: got %t", name, end, got)
			}
		}
	}
}
