package pushrule_test

import (
	"reflect"
	"strings"
	"testing"

	"github.com/pushfx/pushfx/module/pushrule"
	"github.com/pushfx/pushfx/module/strictjson"
)

func TestDraftBecomesARule(t *testing.T) {
	for name, test := range map[string]struct {
		kind  pushrule.Kind
		draft string
		want  string
	}{
		"the least": {pushrule.Override, `{"actions":[]}`,
			`{"rule_id":"ID","default":false,"enabled":true,"conditions":[],"actions":[]}`},
		"the least of a room rule": {pushrule.Room, `{"actions":[]}`,
			`{"rule_id":"ID","default":false,"enabled":true,"actions":[]}`},
		"the least of a content rule": {pushrule.Content, `{"actions":[],"pattern":"*"}`,
			`{"rule_id":"ID","default":false,"enabled":true,"pattern":"*","actions":[]}`},
		"the path's id and the server's default win": {pushrule.Sender, `{"rule_id":".m.other","default":true,"actions":[]}`,
			`{"rule_id":"ID","default":false,"enabled":true,"actions":[]}`},
		"an id and a default of any type are passed over": {pushrule.Sender, `{"rule_id":5,"default":[{}],"actions":[]}`,
			`{"rule_id":"ID","default":false,"enabled":true,"actions":[]}`},
		"disabled": {pushrule.Room, `{"enabled":false,"actions":[]}`,
			`{"rule_id":"ID","default":false,"enabled":false,"actions":[]}`},
		"unknown actions, conditions and keys": {pushrule.Underride,
			`{"x.key": { "a" : 1e400 },"actions":["dont_notify", {"set_tweak":"org.x","value":0.10000000000000000001} ,{"y":[null]},{}],` +
				`"conditions":[{"kind":"org.x","n":9007199254740993},{"kind":""},{"kind":"Event_match"}],"KIND":null,"Enabled":false}`,
			`{"rule_id":"ID","default":false,"enabled":true,` +
				`"conditions":[{"kind":"org.x","n":9007199254740993},{"kind":""},{"kind":"Event_match"}],` +
				`"actions":["dont_notify",{"set_tweak":"org.x","value":0.10000000000000000001},{"y":[null]},{}],` +
				`"x.key":{ "a" : 1e400 },"KIND":null,"Enabled":false}`},
		"enabled, conditions and pattern that are null": {pushrule.Override, `{"enabled":null,"conditions":null,"pattern":null,"actions":[]}`,
			`{"rule_id":"ID","default":false,"enabled":true,"conditions":[],"actions":[]}`},
		"conditions of a kind without them": {pushrule.Room, `{"conditions":[{"kind":"x"}],"pattern":"y","actions":[]}`,
			`{"rule_id":"ID","default":false,"enabled":true,"actions":[]}`},
		"a pattern of a kind without it": {pushrule.Underride, `{"conditions":[],"pattern":"","actions":[]}`,
			`{"rule_id":"ID","default":false,"enabled":true,"conditions":[],"actions":[]}`},
		"conditions on a content rule": {pushrule.Content, `{"conditions":[{"kind":"x"}],"pattern":"\u0000 é","actions":[]}`,
			"{\"rule_id\":\"ID\",\"default\":false,\"enabled\":true,\"pattern\":\"\\u0000 é\",\"actions\":[]}"},
	} {
		t.Run(name, func(t *testing.T) {
			d := mustDraft(t, test.kind, test.draft)
			if len(d.Conditions) > 0 && !test.kind.HasConditions() || d.Pattern != "" && !test.kind.HasPattern() {
				t.Errorf("keeps what a rule of kind %s does not have: %+v", test.kind, d)
			}
			var s pushrule.Ruleset
			if err := s.Put(test.kind, "ID", d, pushrule.Position{}); err != nil {
				t.Fatal(err)
			}
			rule, _ := s.Rule(test.kind, "ID")
			if got := string(rule.AppendJSON(nil, test.kind)); got != test.want {
				t.Errorf("got  %s\nwant %s", got, test.want)
			}
			again := mustRead(t, encode(&s))
			if read, _ := again.Rule(test.kind, "ID"); string(read.AppendJSON(nil, test.kind)) != test.want {
				t.Errorf("read back as %s", read.AppendJSON(nil, test.kind))
			}
		})
	}
}

func TestErrorNamesTheFieldOfASubmittedRule(t *testing.T) {
	for name, test := range map[string]struct {
		kind  pushrule.Kind
		rule  string
		field string // end of the path
		want  string // text after the field; the whole text if field is empty
		fault string
	}{
		"no actions":            {pushrule.Room, `{}`, "actions", "Missing parameter: @", "missing_param"},
		"no pattern":            {pushrule.Content, `{"actions":[]}`, "pattern", "Missing parameter: @", "missing_param"},
		"neither":               {pushrule.Content, `{}`, "actions", "Missing parameter: @", "missing_param"},
		"an empty pattern":      {pushrule.Content, `{"actions":[],"pattern":""}`, "pattern", "@ must be a non-empty string", "bad_json"},
		"a pattern of number":   {pushrule.Content, `{"actions":[],"pattern":1}`, "pattern", "@ must be a string", "bad_json"},
		"null actions":          {pushrule.Room, `{"actions":null}`, "actions", "@ must be an array", "bad_json"},
		"actions as object":     {pushrule.Room, `{"actions":{}}`, "actions", "@ must be an array", "bad_json"},
		"a null action":         {pushrule.Room, `{"actions":[null]}`, "actions[0]", "@ must be a string or an object", "bad_json"},
		"a null tweak":          {pushrule.Room, `{"actions":["notify",{"set_tweak":null}]}`, "actions[1].set_tweak", "@ must be a string", "bad_json"},
		"conditions as object":  {pushrule.Override, `{"actions":[],"conditions":{}}`, "conditions", "@ must be an array", "bad_json"},
		"conditions, room":      {pushrule.Room, `{"actions":[],"conditions":{}}`, "conditions", "@ must be an array", "bad_json"},
		"a null condition":      {pushrule.Override, `{"actions":[],"conditions":[null]}`, "conditions[0]", "@ must be an object", "bad_json"},
		"a string as condition": {pushrule.Override, `{"actions":[],"conditions":[{"kind":"x"},"x"]}`, "conditions[1]", "@ must be an object", "bad_json"},
		"a condition of number": {pushrule.Override, `{"actions":[],"conditions":[{"kind":1}]}`, "conditions[0].kind", "@ must be a string", "bad_json"},
		"a word as enabled":     {pushrule.Room, `{"actions":[],"enabled":"true"}`, "enabled", "@ must be a boolean", "bad_json"},
		"null":                  {pushrule.Room, `null`, "", "@ must be an object", "bad_json"},
		"actions twice":         {pushrule.Room, `{"actions":[],"\u0061ctions":[]}`, "actions", "Key given twice: @", "bad_json"},
		"an unknown key twice":  {pushrule.Room, `{"actions":[],"x":1,"x":1}`, "x", "Key given twice: @", "bad_json"},
		"twice within x":        {pushrule.Room, `{"actions":[],"x":{"y":1,"y":2}}`, "x.y", "Key given twice: @", "bad_json"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := pushrule.ReadDraft(strictjson.NewReader(test.rule), test.kind)
			field := test.field
			want := test.fault + ": " + strings.ReplaceAll(test.want, "@", field)
			if field == "" {
				want = "bad_json: Must be an object"
			}
			if got := describe(err); got != want {
				t.Errorf("as the whole body: got %s, want %s", got, want)
			}

			r := strictjson.NewReader(`{"before":"x","rule":` + test.rule + `}`)
			err = r.Object(func(name string) error {
				if name != "rule" {
					return r.Skip()
				}
				_, err := pushrule.ReadDraft(r, test.kind)
				return err
			})
			field = strings.TrimSuffix("rule."+test.field, ".")
			want = test.fault + ": " + strings.ReplaceAll(test.want, "@", field)
			if got := describe(err); got != want {
				t.Errorf("as the member rule: got %s, want %s", got, want)
			}
		})
	}
}

func TestConditionsNeedRequiredMembers(t *testing.T) {
	const prefix = "conditions[1]."
	none := ""
	notString := func(name string) string { return "bad_json: " + prefix + name + " must be a string" }
	notValue := "bad_json: " + prefix + "value must be a string, an integer, a boolean or null"
	missing := func(name string) string { return "missing_param: Missing parameter: " + prefix + name }
	for _, test := range []struct{ condition, want string }{
		{`{}`, missing("kind")},
		{`{"Kind":"x"}`, missing("kind")},
		{`{"kind":null}`, notString("kind")},
		{`{"kind":1}`, notString("kind")},
		{`{"kind":"org.example","key":1,"pattern":null,"value":[],"is":{}}`, none},
		{`{"kind":"contains_display_name"}`, none},

		{`{"kind":"event_match","key":"type","pattern":"x"}`, none},
		{`{"pattern":"","key":"","kind":"event_match","x":[1]}`, none},
		{`{"\u006bind":"event_m\u0061tch","\u006bey":"type","p\u0061ttern":"x"}`, none},
		{`{"kind":"event_m\u0061tch","key":"type"}`, missing("pattern")},
		{`{"kind":"event_match","key":"type"}`, missing("pattern")},
		{`{"kind":"event_match","pattern":"x"}`, missing("key")},
		{`{"kind":"event_match"}`, "missing_param: Missing parameters: conditions[1].key, conditions[1].pattern"},
		{`{"kind":"event_match","key":"room_id","value":"x"}`, missing("pattern")},
		{`{"kind":"event_match","key":null,"pattern":"x"}`, notString("key")},
		{`{"kind":"event_match","key":"type","pattern":5}`, notString("pattern")},

		{`{"kind":"event_property_is","key":"a","value":"x"}`, none},
		{`{"kind":"event_property_is","key":"a","value":null}`, none},
		{`{"kind":"event_property_is","key":"a","value":true}`, none},
		{`{"kind":"event_property_is","key":"a","value":-9007199254740993}`, none},
		{`{"kind":"event_property_contains","key":"a","value":false}`, none},
		{`{"kind":"event_property_is","key":"a"}`, missing("value")},
		{`{"kind":"event_property_contains","value":1}`, missing("key")},
		{`{"kind":"event_property_is","key":"a","value":[]}`, notValue},
		{`{"kind":"event_property_contains","key":"a","value":{"x":1}}`, notValue},
		{`{"kind":"event_property_is","key":"a","value":1.5}`, notValue},
		{`{"kind":"event_property_is","key":"a","value":1e2}`, notValue},
		{`{"kind":"event_property_contains","key":[],"value":1}`, notString("key")},

		{`{"kind":"room_member_count","is":">2"}`, none},
		{`{"kind":"room_member_count"}`, missing("is")},
		{`{"kind":"room_member_count","is":2}`, notString("is")},
		{`{"kind":"sender_notification_permission","key":"room"}`, none},
		{`{"kind":"sender_notification_permission"}`, missing("key")},
		{`{"kind":"sender_notification_permission","key":false}`, notString("key")},
	} {
		text := `{"actions":[],"conditions":[{"kind":"x"}, ` + test.condition + `]}`
		d, err := pushrule.ReadDraft(strictjson.NewReader(text), pushrule.Underride)
		if got := describe(err); got != test.want {
			t.Errorf("%s\ngot  %s\nwant %s", test.condition, got, test.want)
		}
		if err == nil && string(d.Conditions[1]) != test.condition {
			t.Errorf("%s became %s", test.condition, d.Conditions[1])
		}
	}
}

func TestReadActionsNeverReturnsNil(t *testing.T) {
	got, err := pushrule.ReadActions(strictjson.NewReader(` [ ] `))
	if err != nil || got == nil || len(got) != 0 {
		t.Errorf("got %#v, %v", got, err)
	}
	got, err = pushrule.ReadActions(strictjson.NewReader(`["a", {"b": 1e400}]`))
	if want := []pushrule.Action{`"a"`, `{"b": 1e400}`}; err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %#v, %v", got, err)
	}
}

func TestReadMemberMakesADraft(t *testing.T) {
	var d pushrule.Draft
	r := strictjson.NewReader(`{"actions":[1],"pattern":"x"}`)
	err := r.Object(func(name string) error {
		if name == "actions" {
			return r.Skip()
		}
		return d.ReadMember(r, name)
	})
	if err != nil {
		t.Fatal(err)
	}
	if got := describe(d.Complete(pushrule.Content, "")); got != "missing_param: Missing parameter: actions" {
		t.Errorf("got %s", got)
	}
}

func TestActionsAndConditionsMarshalUnchanged(t *testing.T) {
	for text, value := range map[string]interface{ MarshalJSON() ([]byte, error) }{
		`{"n":1e400}`: pushrule.Action(`{"n":1e400}`),
		`{"n": 0.10}`: pushrule.Condition(`{"n": 0.10}`),
	} {
		if got, err := value.MarshalJSON(); err != nil || string(got) != text {
			t.Errorf("got %s, %v, want %s", got, err, text)
		}
	}
}
