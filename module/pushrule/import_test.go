package pushrule

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/pushfx/pushfx/module/fault"
)

func content(lists ...string) string { return `{"global":{` + strings.Join(lists, ",") + `}}` }

func old(id string, members string) string {
	return fmt.Sprintf(`{"rule_id":%q,"default":true,%s}`, id, members)
}

func importRules(t *testing.T, content string) Imported {
	t.Helper()
	got, err := Import(content, ServerDefault("@alice:example.org"), DefaultLimits())
	if err != nil {
		t.Fatal(err)
	}
	if table := ServerDefault("@alice:example.org"); !got.Rules.IsCurrent(table) || got.Rules.HasLegacy() || !got.Rules.doc.canonical {
		t.Errorf("not a set as the service writes it: %s", got.Rules.JSON())
	}
	return got
}

func names(refused []RefusedRule) (all []string) {
	for _, r := range refused {
		all = append(all, string(r.Kind)+"/"+r.ID)
	}
	return all
}

func settingsOf(t *testing.T, rules Ruleset, kind Kind, id string) string {
	t.Helper()
	rule, found := rules.Rule(kind, id)
	if !found {
		t.Fatalf("no rule %s/%s in %s", kind, id, rules.JSON())
	}
	on := "off "
	if rule.Enabled {
		on = "on "
	}
	return on + string(AppendActions(nil, rule.Actions))
}

func TestImportTakesTheSettingsOfLegacyRules(t *testing.T) {
	t.Parallel()
	const (
		userDefault = `on ["notify",{"set_tweak":"sound","value":"default"},{"set_tweak":"highlight"}]`
		roomDefault = `on ["notify",{"set_tweak":"highlight"}]`

		off    = `"enabled":false,"actions":["notify"]`
		silent = `"enabled":true,"actions":[]`
	)
	userName := func(members string) string { return `"content":[` + old(legacyUserName, members) + `]` }
	override := func(rules ...string) string { return `"override":[` + strings.Join(rules, ",") + `]` }
	for name, test := range map[string]struct {
		content    string
		user, room string
	}{
		"nothing":                              {content(), userDefault, roomDefault},
		"user name switched off":               {content(userName(off)), `off ["notify"]`, roomDefault},
		"user name made silent":                {content(userName(silent)), `on []`, roomDefault},
		"display name switched off":            {content(override(old(legacyDisplayName, off))), `off ["notify"]`, roomDefault},
		"both: the user name's count":          {content(userName(silent), override(old(legacyDisplayName, off))), `on []`, roomDefault},
		"roomnotif switched off":               {content(override(old(legacyRoomNotif, off))), userDefault, `off ["notify"]`},
		"is_user_mention is there":             {content(userName(off), override(old(".m.rule.is_user_mention", silent))), `on []`, roomDefault},
		"is_room_mention is there":             {content(override(old(legacyRoomNotif, off), old(".m.rule.is_room_mention", silent))), userDefault, `on []`},
		"is_user_mention is refused":           {content(userName(off), override(old(".m.rule.is_user_mention", `"enabled":1,"actions":[]`))), `off ["notify"]`, roomDefault},
		"a state alone":                        {content(userName(`"enabled":false`)), "off" + strings.TrimPrefix(userDefault, "on"), roomDefault},
		"actions alone":                        {content(userName(`"actions":["notify"]`)), `on ["notify"]`, roomDefault},
		"a legacy rule of another kind":        {content(override(old(legacyUserName, off))), userDefault, roomDefault},
		"not marked as default":                {content(`"content":[{"rule_id":".m.rule.contains_user_name","enabled":false,"actions":[]}]`), "off []", roomDefault},
		"older definitions are of no interest": {content(userName(off + `,"pattern":7,"conditions":[1]`)), `off ["notify"]`, roomDefault},
	} {
		t.Run(name, func(t *testing.T) {
			got := importRules(t, test.content)
			if user := settingsOf(t, got.Rules, Override, ".m.rule.is_user_mention"); user != test.user {
				t.Errorf("is_user_mention is %s, want %s", user, test.user)
			}
			if room := settingsOf(t, got.Rules, Override, ".m.rule.is_room_mention"); room != test.room {
				t.Errorf("is_room_mention is %s, want %s", room, test.room)
			}
		})
	}
}

func TestImportKeepsSettingsOfDefaultRules(t *testing.T) {
	t.Parallel()
	got := importRules(t, content(
		`"override":[`+old(".m.rule.master", `"enabled":true,"actions":["dont_notify"],"conditions":[]`)+`,`+
			old(".m.rule.reaction", `"enabled":false,"actions":[]`)+`,`+old(".org.other.rule", `"enabled":true,"actions":[]`)+`]`,
		`"underride":[`+old(".m.rule.message", `"enabled":true,"actions":["notify",{"set_tweak":"sound","value":"ping"}]`)+`]`))
	for want, rule := range map[string]Name{
		`on ["dont_notify"]`: {Override, ".m.rule.master"},
		`off []`:             {Override, ".m.rule.reaction"},
		`on ["notify",{"set_tweak":"sound","value":"ping"}]`: {Underride, ".m.rule.message"},
	} {
		if state := settingsOf(t, got.Rules, rule.Kind, rule.ID); state != want {
			t.Errorf("%s is %s, want %s", rule.ID, state, want)
		}
	}
	if want := []Name{{Override, ".org.other.rule"}}; !slices.Equal(got.Dropped, want) || got.Own != 0 || got.Refused != nil {
		t.Errorf("got %+v", got)
	}
}

func TestImportKeepsUsersOwnRulesInTheirOrder(t *testing.T) {
	t.Parallel()
	got := importRules(t, content(
		`"override":[`+old("b", `"enabled":false,"actions":["notify"],"conditions":[{"kind":"x","y":1.0}],"z":[1e400]`)+`,`+
			old(".m.rule.master", `"enabled":false,"actions":[]`)+`,`+old("a", `"actions":[]`)+`]`,
		`"content":[`+old("c", `"enabled":true,"actions":[],"pattern":"lunch"`)+`]`,
		`"room":null`,
		`"sender":[{"rule_id":"@bob:example.org","enabled":true,"actions":["notify"],"conditions":null}]`,
		`"postcontent":[{"any":"thing"}]`))
	rules := got.Rules
	var order []string
	for _, kind := range Kinds() {
		for _, rule := range rules.List(kind) {
			if !isReserved(rule.ID) {
				order = append(order, rule.ID)
				if rule.Default {
					t.Errorf("%s says that it is a default rule, so that nobody can delete it", rule.ID)
				}
			}
		}
	}
	if want := []string{"b", "a", "c", "@bob:example.org"}; !slices.Equal(order, want) || got.Own != len(want) || got.Refused != nil {
		t.Errorf("got %q, want %q; %+v", order, want, got.Refused)
	}
	const b = `{"rule_id":"b","default":false,"enabled":false,"conditions":[{"kind":"x","y":1.0}],"actions":["notify"],"z":[1e400]}`
	if !strings.Contains(rules.JSON(), b) || !strings.Contains(rules.JSON(), `"postcontent":[{"any":"thing"}]`) {
		t.Errorf("got %s", rules.JSON())
	}
}

func TestImportReportsRefusedRules(t *testing.T) {
	t.Parallel()
	limits := DefaultLimits()
	limits.MaxRuleIDBytes, limits.MaxPatternBytes, limits.MaxActions, limits.MaxConditions = 10, 10, 2, 2
	for name, test := range map[string]struct {
		kind     Kind
		rule, id string
		want     fault.Kind
	}{
		"no object":            {Room, `7`, "", fault.BadJSON},
		"null":                 {Room, `null`, "", fault.BadJSON},
		"no id":                {Room, `{"actions":[]}`, "", fault.MissingParam},
		"an id of no string":   {Room, `{"rule_id":7,"actions":[]}`, "", fault.MissingParam},
		"an invalid id":        {Room, `{"rule_id":"a/b","actions":[]}`, "a/b", fault.InvalidParam},
		"no actions":           {Room, `{"rule_id":"a"}`, "a", fault.MissingParam},
		"bad actions":          {Room, `{"rule_id":"a","actions":[1]}`, "a", fault.BadJSON},
		"a bad state":          {Room, `{"rule_id":"a","actions":[],"enabled":"yes"}`, "a", fault.BadJSON},
		"a member twice":       {Room, `{"rule_id":"a","actions":[],"actions":[]}`, "a", fault.BadJSON},
		"a lone surrogate":     {Room, `{"rule_id":"a","actions":["\ud800"]}`, "a", fault.NotJSON},
		"no UTF-8":             {Room, `{"rule_id":"a","actions":["` + "\xff" + `"]}`, "a", fault.NotJSON},
		"too deep":             {Room, `{"rule_id":"a","actions":[],"x":` + strings.Repeat("[", 70) + strings.Repeat("]", 70) + `}`, "a", fault.NotJSON},
		"no pattern":           {Content, `{"rule_id":"a","actions":[]}`, "a", fault.MissingParam},
		"a condition's lack":   {Underride, `{"rule_id":"a","actions":[],"conditions":[{"kind":"event_match"}]}`, "a", fault.MissingParam},
		"too long an id":       {Room, `{"rule_id":"12345678901","actions":[]}`, "12345678901", fault.TooLarge},
		"too long a pattern":   {Content, `{"rule_id":"a","actions":[],"pattern":"12345678901"}`, "a", fault.TooLarge},
		"too many actions":     {Room, `{"rule_id":"a","actions":["a","b","c"]}`, "a", fault.InvalidParam},
		"too many conditions":  {Override, `{"rule_id":"a","actions":[],"conditions":[{"kind":"a"},{"kind":"a"},{"kind":"a"}]}`, "a", fault.InvalidParam},
		"an id twice":          {Room, `{"rule_id":"good","actions":[]}`, "good", fault.InvalidParam},
		"bad default actions":  {Underride, `{"rule_id":".m.rule.call","actions":7}`, ".m.rule.call", fault.BadJSON},
		"many default actions": {Underride, `{"rule_id":".m.rule.call","actions":["a","b","c"]}`, ".m.rule.call", fault.InvalidParam},
		"a bad unknown kind":   {"other", `"\ud800"`, "", fault.NotJSON},
	} {
		t.Run(name, func(t *testing.T) {
			good := map[Kind]string{
				Override: `{"rule_id":"good","actions":[]}`, Content: `{"rule_id":"good","actions":[],"pattern":"x"}`, Room: `{"rule_id":"good","actions":[]}`,
				Underride: `{"rule_id":"good","actions":[]}`, "other": `1`,
			}[test.kind]
			got, err := Import(content(`"`+string(test.kind)+`":[`+good+`,`+test.rule+`]`), ServerDefault("@alice:example.org"), limits)
			if err != nil || len(got.Refused) != 1 {
				t.Fatalf("got %+v, %v", got.Refused, err)
			}
			r := got.Refused[0]
			if r.Kind != test.kind || r.ID != test.id || fault.KindOf(r.Err) != test.want {
				t.Errorf("got %s/%s: %s %v, want %s", r.Kind, r.ID, fault.KindOf(r.Err), r.Err, test.want)
			}
			if got.Own != 1 && test.kind != "other" {
				t.Errorf("%d rules were taken, want the good one: %s", got.Own, got.Rules.JSON())
			}
		})
	}
}

func TestImportFillsASetUpToItsLimits(t *testing.T) {
	t.Parallel()
	table := ServerDefault("@alice:example.org")
	var many []string
	for n := range 10 {
		many = append(many, fmt.Sprintf(`{"rule_id":"r%d","enabled":true,"actions":[]}`, n))
	}
	all := content(`"room":[`+strings.Join(many, ",")+`]`, `"sender":[{"rule_id":"last","actions":[]}]`)
	rules := DefaultLimits()
	rules.MaxRules = table.Len() + 9
	bytes := DefaultLimits()
	bytes.MaxSetBytes = len(table.JSON()) + 3*len(`,{"rule_id":"r0","default":false,"enabled":true,"actions":[]}`)
	for name, test := range map[string]struct {
		limits Limits
		want   []string
	}{
		"none over":      {DefaultLimits(), nil},
		"too many rules": {rules, []string{"room/r9", "sender/last"}},
		"too many bytes": {bytes, []string{"room/r3", "room/r4", "room/r5", "room/r6", "room/r7", "room/r8", "room/r9", "sender/last"}},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := Import(all, table, test.limits)
			if err != nil || !slices.Equal(names(got.Refused), test.want) || got.Own != 11-len(test.want) {
				t.Errorf("refused %q, %v, want %q", names(got.Refused), err, test.want)
			}
			if len(got.Rules.JSON()) > test.limits.MaxSetBytes || got.Rules.Len() > test.limits.MaxRules {
				t.Errorf("%d bytes, %d rules", len(got.Rules.JSON()), got.Rules.Len())
			}
		})
	}

	large := content(`"underride":[{"rule_id":".m.rule.call","actions":[{"x":"` + strings.Repeat("x", 1000) + `"}]}]`)
	if got, err := Import(large, table, bytes); err != nil || !slices.Equal(names(got.Refused), []string{"underride/.m.rule.call"}) || !got.Rules.Equal(table) {
		t.Errorf("refused %q, %v", names(got.Refused), err)
	}
}

func TestImportRefusesInvalidContent(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		``, `x`, `null`, `[]`, `7`, `{}`, `{"global":null}`, `{"global":[]}`, `{"global":{}`, `{"global":{}} x`, `{"GLOBAL":{}}`,
		`{"global":{"room":{}}}`, `{"global":{"room":7}}`, `{"override":[]}`, strings.Repeat("[", 100_000),
	} {
		if _, err := Import(text, ServerDefault("@alice:example.org"), DefaultLimits()); fault.KindOf(err) != fault.Database {
			t.Errorf("%.30s: got %v", text, err)
		}
	}
}

// An imported set must be readable and changeable.
func FuzzImport(f *testing.F) {
	f.Add(content(`"room":[{"rule_id":"a","actions":[]}]`, `"x":1`))
	f.Add(content(`"content":[`+old(legacyUserName, `"enabled":false,"actions":[]`)+`]`, `"override":[`+old(".m.rule.master", `"actions":[]`)+`]`))
	f.Add(`{"global":{"override":[{"rule_id":"\ud800","actions":[{}],"x":{"rule_id":""}}],"\"room\":[":1}}`)
	table := ServerDefault("@alice:example.org")
	f.Fuzz(func(t *testing.T, text string) {
		got, err := Import(text, table, DefaultLimits())
		if err != nil {
			return
		}
		again, err := Read(got.Rules.JSON())
		if err != nil || !again.Equal(got.Rules) || !again.IsCurrent(table) || again.HasLegacy() {
			t.Fatalf("%v: %s", err, got.Rules.JSON())
		}
		if own := again.Len() - table.Len(); own != got.Own {
			t.Errorf("%d rules of the user's own, want %d", own, got.Own)
		}
		if err := again.Put(Room, "!new", Draft{}, Position{}); err != nil {
			t.Error(err)
		}
	})
}
