package pushrule_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/pushfx/pushfx/module/pushrule"
)

// oddSets are readable, but not in the form that the service writes.
func oddSets() map[string]string {
	return map[string]string{
		"an empty object":          `{}`,
		"white space":              "{\n \"room\" : [ ] ,\t\"override\":[ {\"rule_id\" : \"A\",\"default\":false,\r\n\"enabled\":true,\"actions\":[ ] } ] }",
		"kinds in another order":   `{"underride":[],"sender":[],"room":[],"content":[],"override":[]}`,
		"unknown kinds":            `{"org.example.kind":{"a":[9007199254740993,1e400]},"device":null}`,
		"kinds in capitals":        `{"Override":[],"ROOM":5}`,
		"unknown fields of a rule": `{"room":[{"rule_id":"A","default":false,"enabled":true,"actions":[],"pattern":5,"conditions":null,"x":[0.10]}]}`,
		"escapes":                  `{"\u0072oom":[{"rule\u005fid":"\u0041","default":false,"enabled":true,"actions":["\u006eotify"]}]}`,
		"actions of any type":      `{"room":[{"rule_id":"A","default":false,"enabled":true,"actions":[null,5,[{}],{"set_tweak":1}]}]}`,
		"conditions of any type":   `{"override":[{"rule_id":"A","default":false,"enabled":true,"actions":[],"conditions":[null,"x",{"kind":1}]}]}`,
		"no conditions":            `{"override":[{"rule_id":"A","default":false,"enabled":true,"actions":[]}]}`,
		"an empty pattern":         `{"content":[{"rule_id":"A","default":false,"enabled":true,"actions":[],"pattern":""}]}`,
		"ids that nobody may use":  `{"room":[{"rule_id":"","default":false,"enabled":true,"actions":[]},{"rule_id":"a\/b\u0000","default":false,"enabled":true,"actions":[]}]}`,
		"an id twice":              `{"room":[{"rule_id":"A","default":false,"enabled":true,"actions":[]},{"rule_id":"A","default":true,"enabled":false,"actions":[]}]}`,
		"master in a strange place": `{"room":[{"rule_id":"A","default":false,"enabled":true,"actions":[]},` +
			`{"rule_id":".m.rule.master","default":true,"enabled":false,"actions":[]}]}`,
	}
}

func TestReadSetKeepsItsText(t *testing.T) {
	for name, text := range oddSets() {
		t.Run(name, func(t *testing.T) {
			s := mustRead(t, text)
			if got := encode(&s); got != text {
				t.Errorf("got  %s\nwant %s", got, text)
			}
			if around := mustRead(t, " \n"+text+"\t "); encode(&around) != text {
				t.Errorf("white space around: got %s", encode(&around))
			}
			if got, err := s.MarshalJSON(); err != nil || string(got) != text {
				t.Errorf("marshalled as %s, %v", got, err)
			}
			if got := string(s.AppendJSON([]byte("x"))); got != "x"+text {
				t.Errorf("appended as %s", got)
			}
		})
	}
}

func TestRewrittenSetKeepsEverything(t *testing.T) {
	for name, text := range oddSets() {
		t.Run(name, func(t *testing.T) {
			got := reencode(t, mustRead(t, text))
			if name == "master in a strange place" || name == "an id twice" {
				got = reencode(t, mustRead(t, got)) // a second rewrite changes nothing
			}
			if !sameJSON(t, got, complete(t, text)) {
				t.Errorf("got  %s\nwant %s", got, complete(t, text))
			}
		})
	}
}

func TestChangedSetHasTheFiveKindsFirst(t *testing.T) {
	s := mustRead(t, `{"z":1,"room":[],"a":{"n":0.10}}`)
	const want = `{"override":[],"content":[],"room":[],"sender":[],"underride":[],"z":1,"a":{"n":0.10}}`
	if got := reencode(t, s); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	var empty pushrule.Ruleset
	if got := encode(&empty); got != `{"override":[],"content":[],"room":[],"sender":[],"underride":[]}` || empty.Len() != 0 {
		t.Errorf("an empty set: got %s", got)
	}
	var null struct{ Rules pushrule.Ruleset }
	if got, err := json.Marshal(null); err != nil || strings.Contains(string(got), "null") {
		t.Errorf("an empty set within a structure: got %s, %v", got, err)
	}
}

func TestReadReturnsTheRulesOfTheText(t *testing.T) {
	s := mustRead(t, `{"content":[{"x":[1e400],"pattern":"p\u0041","actions":["a",{"b": 1}],"enabled":true,"default":false,"rule_id":"\u0069d","conditions":[1]}],
		"override":[{"rule_id":"id","default":true,"enabled":false,"actions":[],"conditions":[{"c": 2}],"pattern":"p"}]}`)
	for kind, want := range map[pushrule.Kind]pushrule.Rule{
		pushrule.Content: {
			ID: "id", Enabled: true, Pattern: "pA", Actions: []pushrule.Action{`"a"`, `{"b": 1}`},
			Extra: []pushrule.Member{{Name: "x", Value: "[1e400]"}, {Name: "conditions", Value: "[1]"}},
		},
		pushrule.Override: {
			ID: "id", Default: true, Actions: []pushrule.Action{}, Conditions: []pushrule.Condition{`{"c": 2}`},
			Extra: []pushrule.Member{{Name: "pattern", Value: `"p"`}},
		},
	} {
		got, found := s.Rule(kind, "id")
		if !found || !equalRules(got, want) {
			t.Errorf("%s: got %+v, want %+v", kind, got, want)
		}
		if _, found := s.Rule(kind, "ID"); found {
			t.Error("ids are matched in any case")
		}
	}
	if _, found := s.Rule("x", "id"); found || s.Len() != 2 {
		t.Errorf("%d rules, want 2, and none of an unknown kind", s.Len())
	}
}

func TestReadRefusesInvalidSets(t *testing.T) {
	const ok = `{"rule_id":"A","default":false,"enabled":true,"actions":[]}`
	for name, test := range map[string]struct{ text, want string }{
		"null":                     {`null`, "bad_json: Must be an object"},
		"a list":                   {`[]`, "bad_json: Must be an object"},
		"a string":                 {`"{}"`, "bad_json: Must be an object"},
		"nothing":                  {``, "not_json: Not valid JSON: unexpected end"},
		"cut":                      {`{"room":[` + ok, "not_json: Not valid JSON: unexpected end"},
		"trailing data":            {`{} {}`, "not_json: Not valid JSON: more than one value"},
		"a kind twice":             {`{"room":[],"sender":[],"room":[]}`, "bad_json: Key given twice: room"},
		"an unknown kind twice":    {`{"x":[],"x":[]}`, "bad_json: Key given twice: x"},
		"a kind that is null":      {`{"room":null}`, "bad_json: room must be an array"},
		"a kind that is an object": {`{"override":{}}`, "bad_json: override must be an array"},
		"a null rule":              {`{"room":[null]}`, "bad_json: room[0] must be an object"},
		"a rule that is a string":  {`{"sender":[` + ok + `,"A"]}`, "bad_json: sender[1] must be an object"},
		"an empty rule":            {`{"room":[{}]}`, "missing_param: Missing parameters: room[0].rule_id, room[0].default, room[0].enabled, room[0].actions"},
		"no id":                    {`{"room":[{"default":false,"enabled":true,"actions":[]}]}`, "missing_param: Missing parameter: room[0].rule_id"},
		"no default":               {`{"room":[{"rule_id":"A","enabled":true,"actions":[]}]}`, "missing_param: Missing parameter: room[0].default"},
		"no enabled":               {`{"room":[` + ok + `,{"rule_id":"B","default":false,"actions":[]}]}`, "missing_param: Missing parameter: room[1].enabled"},
		"no actions":               {`{"room":[{"rule_id":"A","default":false,"enabled":true}]}`, "missing_param: Missing parameter: room[0].actions"},
		"no pattern":               {`{"content":[` + ok + `]}`, "missing_param: Missing parameter: content[0].pattern"},
		"a number as id":           {`{"room":[{"rule_id":1}]}`, "bad_json: room[0].rule_id must be a string"},
		"a null default":           {`{"room":[{"default":null}]}`, "bad_json: room[0].default must be a boolean"},
		"a number as enabled":      {`{"room":[{"enabled":1}]}`, "bad_json: room[0].enabled must be a boolean"},
		"null actions":             {`{"room":[{"actions":null}]}`, "bad_json: room[0].actions must be an array"},
		"conditions as object":     {`{"underride":[{"conditions":{}}]}`, "bad_json: underride[0].conditions must be an array"},
		"a null pattern":           {`{"content":[{"pattern":null}]}`, "bad_json: content[0].pattern must be a string"},
		"a field twice":            {`{"room":[` + ok + `,{"rule_id":"A","rule_id":"B"}]}`, "bad_json: Key given twice: room[1].rule_id"},
	} {
		t.Run(name, func(t *testing.T) {
			s, err := pushrule.Read(test.text)
			if got := describe(err); got != test.want {
				t.Errorf("got %s, want %s", got, test.want)
			}
			if s.Len() != 0 || len(encode(&s)) > 70 {
				t.Errorf("a set came back beside the error: %s", encode(&s))
			}
		})
	}
}
