package pushrule_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/pushfx/pushfx/module/pushrule"
)

const oldRoom, newRoom = "!old:hs", "!new:hs"

func roomRule(id, rest string) string {
	return fmt.Sprintf(`{"rule_id":%q,"default":false,"enabled":true%s}`, id, rest)
}

func about(conditions ...string) string {
	return `,"conditions":[` + strings.Join(conditions, ",") + `],"actions":["x"]`
}

const (
	inOld  = `{"kind":"event_match","key":"room_id","pattern":"!old:hs"}`
	inNew  = `{"kind":"event_match","key":"room_id","pattern":"!new:hs"}`
	isOld  = `{"kind":"event_property_is","key":"room_id","value":"!old:hs"}`
	isNew  = `{"kind":"event_property_is","key":"room_id","value":"!new:hs"}`
	plainA = `{"rule_id":"A","default":false,"enabled":true,"conditions":[],"actions":[]}`
	master = `{"rule_id":".m.rule.master","default":true,"enabled":false,"conditions":[],"actions":[]}`
	noActs = `,"actions":[]`
)

var roomSets = []string{
	`{"override":[{"rule_id":"!old:hs","conditions":[` + inOld + `],"actions":[],"enabled":false,"default":false}]}`,
	`{"room":[` + roomRule(oldRoom, noActs) + `]}`,
	`{"override":[` + roomRule("a", about(isOld, ` { "pattern" : "!ol\u0064:hs" ,"n":1e400,"kind":"event_match","key":"room_id"}`)) + `]}`,
}

func TestCopyRoomRulesCopiesRulesOfTheOldRoom(t *testing.T) {
	set := func(kind string, rules ...string) string {
		return `{"` + kind + `":[` + strings.Join(rules, ",") + `]}`
	}
	both := func(override, room string) string {
		return `{"override":[` + override + `],"room":[` + room + `]}`
	}
	muteOld := `{"rule_id":"!old:hs","default":false,"enabled":false,"conditions":[` + inOld + `],"actions":[]}`
	muteNew := `{"rule_id":"!new:hs","default":false,"enabled":false,"conditions":[` + inNew + `],"actions":[]}`
	other := `{"kind":"custom","key":"room_id","pattern":"!old:hs","n":9007199254740993}`
	for name, test := range map[string]struct{ stored, want string }{
		"a client's mute, which is turned off": {set("override", muteOld), set("override", muteOld, muteNew)},
		"a room rule with all that it has": {
			set("room", plainA, `{"rule_id":"!old:hs","default":false,"enabled":false,"actions":["notify",{"n":1e400}],"x":[0.10],"conditions":[`+inOld+`]}`, roomRule("B", noActs)),
			set("room", plainA, `{"rule_id":"!old:hs","default":false,"enabled":false,"actions":["notify",{"n":1e400}],"x":[0.10],"conditions":[`+inOld+`]}`,
				`{"rule_id":"!new:hs","default":false,"enabled":false,"actions":["notify",{"n":1e400}],"x":[0.10],"conditions":[`+inOld+`]}`, roomRule("B", noActs)),
		},
		"a room rule and an override rule": {
			both(muteOld, roomRule(oldRoom, noActs)),
			both(muteOld+","+muteNew, roomRule(oldRoom, noActs)+","+roomRule(newRoom, noActs)),
		},
		"below the original, and below the master": {
			set("override", master, plainA, muteOld, roomRule("B", about())),
			set("override", master, plainA, muteOld, muteNew, roomRule("B", about())),
		},
		"below a master that stands too low": {
			set("override", muteOld, master, plainA),
			set("override", master, muteOld, muteNew, plainA),
		},
		"both forms of the condition, the others as they are": {
			set("override", roomRule(oldRoom, about(other, isOld, inOld, `{}`, inNew))),
			set("override", roomRule(oldRoom, about(other, isOld, inOld, `{}`, inNew)), roomRule(newRoom, about(other, isNew, inNew, `{}`, inNew))),
		},
		"an id that has the old room in it, twice": {
			set("override", roomRule("x!old:hs|!old:hs", about(inOld))),
			set("override", roomRule("x!old:hs|!old:hs", about(inOld)), roomRule("x!new:hs|!new:hs", about(inNew))),
		},
		"an id that has it not": {
			set("override", roomRule("x", about(isOld)), plainA),
			set("override", roomRule("x", about(isOld)), roomRule("x:!new:hs", about(isNew)), plainA),
		},
		"an override rule below the server's": {
			set("override", `{"rule_id":".m.rule.x","default":true,"enabled":true,"actions":[],"conditions":[]}`, muteOld),
			set("override", `{"rule_id":".m.rule.x","default":true,"enabled":true,"actions":[],"conditions":[]}`, muteOld, muteNew),
		},
		"a rule that is only marked as a default": {
			set("room", `{"rule_id":"!old:hs","default":true,"enabled":true,"actions":[]}`),
			set("room", `{"rule_id":"!old:hs","default":true,"enabled":true,"actions":[]}`, roomRule(newRoom, noActs)),
		},
		"two that come to one id": {
			set("override", roomRule("x", about(inOld)), roomRule("x:!old:hs", about(isOld))),
			set("override", roomRule("x", about(inOld)), roomRule("x:!new:hs", about(inNew)), roomRule("x:!old:hs", about(isOld))),
		},
		"an id given twice": {
			`{"override":[` + muteOld + `,` + muteOld + `],"room":[` + roomRule(oldRoom, noActs) + `,` + roomRule(oldRoom, noActs) + `]}`,
			`{"override":[` + muteOld + `,` + muteNew + `,` + muteOld + `],"room":[` + roomRule(oldRoom, noActs) + `,` + roomRule(newRoom, noActs) + `,` + roomRule(oldRoom, noActs) + `]}`,
		},
		"a derived id that is taken, further down": {
			set("override", roomRule("x", about(inOld)), roomRule("y", about(inOld)), roomRule("x:!new:hs", about())),
			set("override", roomRule("x", about(inOld)), roomRule("y", about(inOld)), roomRule("y:!new:hs", about(inNew)), roomRule("x:!new:hs", about())),
		},
		"the new room has a room rule": {
			both(muteOld+","+roomRule("x", about(inOld)), roomRule(oldRoom, noActs)+","+roomRule(newRoom, `,"actions":["mine"]`)),
			both(muteOld+","+roomRule("x", about(inOld))+","+roomRule("x:!new:hs", about(inNew)), roomRule(oldRoom, noActs)+","+roomRule(newRoom, `,"actions":["mine"]`)),
		},
		"the new room has an override rule": {
			both(roomRule(newRoom, about())+","+muteOld+","+roomRule("x", about(inOld)), roomRule(oldRoom, noActs)),
			both(roomRule(newRoom, about())+","+muteOld+","+roomRule("x", about(inOld))+","+roomRule("x:!new:hs", about(inNew)), roomRule(oldRoom, noActs)),
		},
		"unknown kinds stay": {
			`{"org.example.kind":[9007199254740993],"room":[` + roomRule(oldRoom, noActs) + `]}`,
			`{"org.example.kind":[9007199254740993],"room":[` + roomRule(oldRoom, noActs) + `,` + roomRule(newRoom, noActs) + `]}`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := mustRead(t, test.stored)
			original := s
			if err := s.CopyRoomRules(oldRoom, newRoom); err != nil {
				t.Fatal(err)
			}
			once := encode(&s)
			if !sameJSON(t, once, complete(t, test.want)) {
				t.Errorf("got  %s\nwant %s", once, test.want)
			}
			if encode(&original) != test.stored || reencode(t, original) != reencode(t, mustRead(t, test.stored)) && name != "below a master that stands too low" {
				t.Error("the copy taken before was changed")
			}
			for _, again := range []pushrule.Ruleset{s, mustRead(t, once)} {
				if err := again.CopyRoomRules(oldRoom, newRoom); err != nil || encode(&again) != once {
					t.Errorf("a second time: %v\ngot  %s\nwant %s", err, encode(&again), once)
				}
			}
		})
	}
}

func TestCopiedConditionsDifferOnlyInTheRoom(t *testing.T) {
	for old, want := range map[string]string{
		inOld: inNew,
		isOld: isNew,
		`{ "n" : 1e400,"pattern" :` + "\t" + `"!old:hs" , "x":["!old:hs"],"value":"!old:hs","key":"room_id","kind":"event_match" }`: `{ "n" : 1e400,"pattern" :` + "\t" +
			`"!new:hs" , "x":["!old:hs"],"value":"!old:hs","key":"room_id","kind":"event_match" }`,
		`{"value":"!old:hs","pattern":"!old:hs","kind":"event_property_is","key":"room_id","d":9007199254740993}`: `{"value":"!new:hs","pattern":"!old:hs","kind":"event_property_is","key":"room_id","d":9007199254740993}`,
		`{"\u006bind":"event_m\u0061tch","key":"room\u005fid","p\u0061ttern":"\u0021old:hs"}`:                     `{"\u006bind":"event_m\u0061tch","key":"room\u005fid","p\u0061ttern":"!new:hs"}`,
		`{"":"!old:hs","kind":"event_match","key":"room_id","pattern":"!old:hs"}`:                                 `{"":"!old:hs","kind":"event_match","key":"room_id","pattern":"!new:hs"}`,
	} {
		s := mustRead(t, `{"override":[`+roomRule("x", about(old))+`]}`)
		if err := s.CopyRoomRules(oldRoom, newRoom); err != nil {
			t.Fatal(err)
		}
		if rule, _ := s.Rule(pushrule.Override, "x:!new:hs"); join(rule.Conditions) != want {
			t.Errorf("%s\ngot  %s\nwant %s", old, rule.Conditions, want)
		}
		if rule, _ := s.Rule(pushrule.Override, "x"); join(rule.Conditions) != old {
			t.Errorf("the original became %s", rule.Conditions)
		}
	}
}

func TestRoomIDsAreEscaped(t *testing.T) {
	const room = "!\"\u2028<\U0001f600:hs"
	s := mustRead(t, roomSets[0])
	if err := s.CopyRoomRules(oldRoom, room); err != nil {
		t.Fatal(err)
	}
	want := "{\"kind\":\"event_match\",\"key\":\"room_id\",\"pattern\":\"!\\\"\u2028<\U0001f600:hs\"}"
	if rule, _ := s.Rule(pushrule.Override, room); join(rule.Conditions) != want {
		t.Errorf("got %s", rule.Conditions)
	}
	if err := s.CopyRoomRules(room, newRoom); err != nil {
		t.Fatal(err)
	}
	if rule, _ := s.Rule(pushrule.Override, newRoom); join(rule.Conditions) != inNew {
		t.Errorf("got %s", rule.Conditions)
	}
}

func TestCopyRoomRulesWithoutRulesToCopyChangesNothing(t *testing.T) {
	for name, conditions := range map[string]string{
		"none":                      ``,
		"no object":                 `null,"!old:hs",["!old:hs"],1`,
		"an empty one":              `{}`,
		"another kind":              `{"kind":"event_property_contains","key":"room_id","value":"!old:hs","pattern":"!old:hs"}`,
		"no kind":                   `{"key":"room_id","value":"!old:hs","pattern":"!old:hs"}`,
		"another key":               `{"kind":"event_match","key":"sender","pattern":"!old:hs"}`,
		"another room":              `{"kind":"event_match","key":"room_id","pattern":"!old:hs2"}`,
		"a glob":                    `{"kind":"event_match","key":"room_id","pattern":"!old:*"}`,
		"a match with a value":      `{"kind":"event_match","key":"room_id","value":"!old:hs"}`,
		"a property with a pattern": `{"kind":"event_property_is","key":"room_id","pattern":"!old:hs"}`,
		"an unnamed member":         `{"":"!old:hs","kind":"event_match","key":"room_id"},{"":"!old:hs","kind":"x","key":"room_id"}`,
		"a condition in another":    `{"kind":"any","of":[` + inOld + `]}`,
	} {
		t.Run(name, func(t *testing.T) {
			text := `{ "override":[` + roomRule(oldRoom, about(conditions)) + `] }`
			s := mustRead(t, text)
			if err := s.CopyRoomRules(oldRoom, newRoom); err != nil || encode(&s) != text {
				t.Errorf("got  %s, %v\nwant %s", encode(&s), err, text)
			}
		})
	}
	for name, test := range map[string]struct{ oldRoom, newRoom, stored string }{
		"no old room":             {"", newRoom, `{ "room":[` + roomRule("", noActs) + `]}`},
		"no old room in an id":    {"", newRoom, `{ "override":[` + roomRule("", about(`{"kind":"event_match","key":"room_id","pattern":""}`)) + `]}`},
		"the same room":           {oldRoom, oldRoom, `{ "room":[` + roomRule(oldRoom, noActs) + `],"override":[` + roomRule("x", about(inOld)) + `]}`},
		"no rules":                {oldRoom, newRoom, `{ }`},
		"no rules, no new room":   {oldRoom, "", `{ }`},
		"other kinds":             {oldRoom, newRoom, `{ "underride":[` + roomRule(oldRoom, about(inOld)) + `],"sender":[` + roomRule(oldRoom, noActs) + `]}`},
		"a server's rule":         {oldRoom, newRoom, `{ "override":[{"rule_id":".x","default":false,"enabled":true` + about(inOld) + `}]}`},
		"a room named as a dot":   {".x", newRoom, `{ "room":[{"rule_id":".x","default":true,"enabled":true,"actions":[]}]}`},
		"all that is wanted":      {oldRoom, newRoom, `{ "override":[` + roomRule("x", about(inOld)) + `,` + roomRule("x:!new:hs", about()) + `]}`},
		"a setting for both":      {oldRoom, newRoom, `{ "override":[` + roomRule(oldRoom, about(inOld)) + `],"room":[` + roomRule(newRoom, noActs) + `]}`},
		"a setting the other way": {oldRoom, newRoom, `{ "override":[` + roomRule(newRoom, about()) + `],"room":[` + roomRule(oldRoom, noActs) + `]}`},
	} {
		t.Run(name, func(t *testing.T) {
			s := mustRead(t, test.stored)
			if err := s.CopyRoomRules(test.oldRoom, test.newRoom); err != nil || encode(&s) != test.stored {
				t.Errorf("got  %s, %v\nwant %s", encode(&s), err, test.stored)
			}
		})
	}
}

func TestInvalidCopyIsRefused(t *testing.T) {
	sets := map[string]string{
		"a room rule":       `{"room":[` + roomRule(oldRoom, noActs) + `]}`,
		"a mute":            `{"override":[` + roomRule(oldRoom, about(inOld)) + `]}`,
		"another override":  `{"override":[` + roomRule("x", about(inOld)) + `]}`,
		"an id behind both": `{"override":[` + roomRule("x!old:hs", about(inOld)) + `],"room":[` + roomRule(oldRoom, noActs) + `]}`,
	}
	for name, stored := range sets {
		for room, want := range map[string]error{
			"": pushrule.ErrInvalidID, "!a/b:hs": pushrule.ErrInvalidID, "!a\n": pushrule.ErrInvalidID, "!\xff": pushrule.ErrInvalidID, ".x": pushrule.ErrReservedID,
		} {
			s := mustRead(t, stored)
			if err := s.CopyRoomRules(oldRoom, room); !errors.Is(err, want) || encode(&s) != stored {
				t.Errorf("%s for %q: got %v, %s", name, room, err, encode(&s))
			}
		}
	}
	for name, test := range map[string]struct{ override, room string }{
		"an unfit id beside fit ones": {roomRule("x", about(inOld)) + `,` + roomRule("a/b", about(inOld)), roomRule(oldRoom, noActs)},
		"an unfit id alone":           {roomRule(`a\\b`, about(isOld)), ``},
	} {
		stored := `{"override":[` + test.override + `],"room":[` + test.room + `]}`
		s := mustRead(t, stored)
		if err := s.CopyRoomRules(oldRoom, newRoom); !errors.Is(err, pushrule.ErrInvalidID) || encode(&s) != stored {
			t.Errorf("%s: got %v, %s", name, err, encode(&s))
		}
	}
}
