package pushrule_test

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/pushfx/pushfx/module/pushrule"
	"github.com/pushfx/pushfx/module/strictjson"
)

// model is a naive implementation of the service's promises.
type model map[pushrule.Kind][]modelRule

type modelRule struct {
	id                        string
	isDefault, enabled        bool
	actions, conditions, rest string // JSON lists without brackets, and members
	pattern                   string
}

func (r modelRule) isServers() bool { return strings.HasPrefix(r.id, ".") }

func modelOf(s *pushrule.Ruleset) model {
	m := model{}
	for _, kind := range pushrule.Kinds() {
		for _, rule := range s.List(kind) {
			m[kind] = append(m[kind], modelRule{
				rule.ID, rule.Default, rule.Enabled, join(rule.Actions), join(rule.Conditions), fmt.Sprint(rule.Extra), rule.Pattern,
			})
		}
	}
	return m
}

func join[T ~string](texts []T) string {
	var plain []string
	for _, text := range texts {
		plain = append(plain, string(text))
	}
	return strings.Join(plain, ",")
}

func (m model) String() string {
	var b strings.Builder
	for _, kind := range pushrule.Kinds() {
		fmt.Fprintf(&b, "%s: %+v\n", kind, m[kind])
	}
	return b.String()
}

func (m model) find(kind pushrule.Kind, id string) *modelRule {
	for i := range m[kind] {
		if m[kind][i].id == id {
			return &m[kind][i]
		}
	}
	return nil
}

func (m model) put(kind pushrule.Kind, id string, d pushrule.Draft, at pushrule.Position) error {
	if strings.HasPrefix(id, ".") {
		return pushrule.ErrReservedID
	}
	if id == "" || strings.ContainsAny(id, "/\\\x00\x1f\x7f") {
		return pushrule.ErrInvalidID
	}
	if strings.HasPrefix(at.Before, ".") || strings.HasPrefix(at.After, ".") {
		return pushrule.ErrAnchorIsDefault
	}
	if at.After != "" && m.find(kind, at.After) == nil || at.Before != "" && m.find(kind, at.Before) == nil {
		return pushrule.ErrAnchorNotFound
	}
	if at.Before != "" && at.After != "" {
		for _, rule := range m[kind] { // the first match is the upper rule
			if rule.id == at.Before {
				return pushrule.ErrAnchorOrder
			}
			if rule.id == at.After {
				break
			}
		}
	}

	old := m.find(kind, id)
	rule := modelRule{
		id: id, enabled: old == nil || old.enabled, actions: join(d.Actions), conditions: join(d.Conditions),
		rest: fmt.Sprint(d.Extra), pattern: d.Pattern,
	}
	if d.Enabled != nil {
		rule.enabled = *d.Enabled
	}
	above, below := at.Before, at.After // the rule goes directly above or below these
	if above != "" {
		below = ""
	}
	if old != nil && (above+below == "" || above == id || below == id) {
		*old = rule
		return nil
	}
	var list []modelRule
	if above+below == "" {
		if m.find(kind, ".m.rule.master") == nil {
			list = append(list, rule)
		}
		below = ".m.rule.master"
	}
	for _, other := range m[kind] {
		if other.id == above {
			list = append(list, rule)
		}
		if other.id != id {
			list = append(list, other)
		}
		if other.id == below {
			list = append(list, rule)
		}
	}
	m[kind] = list
	return nil
}

func (m model) delete(kind pushrule.Kind, id string) error {
	switch rule := m.find(kind, id); {
	case rule == nil:
		return pushrule.ErrRuleNotFound
	case rule.isServers() || rule.isDefault:
		return pushrule.ErrDeleteDefault
	}
	m[kind] = slices.DeleteFunc(m[kind], func(r modelRule) bool { return r.id == id })
	return nil
}

func (m model) change(kind pushrule.Kind, id string, change func(*modelRule)) error {
	rule := m.find(kind, id)
	if rule == nil {
		return pushrule.ErrRuleNotFound
	}
	change(rule)
	return nil
}

func (m model) mergeDefaults(fresh pushrule.Ruleset) {
	for kind, table := range modelOf(&fresh) {
		for i, rule := range table {
			if old := m.find(kind, rule.id); old != nil {
				table[i].enabled, table[i].actions, table[i].rest = old.enabled, old.actions, old.rest
			}
		}
		m[kind] = append(m[kind], table...) // a loop below removes the stored defaults
	}
	for _, kind := range pushrule.Kinds() {
		var master, users, defaults []modelRule
		for i, rule := range m[kind] {
			isFresh := fresh.List(kind) != nil && i >= len(m[kind])-len(fresh.List(kind))
			switch {
			case !rule.isServers():
				users = append(users, rule)
			case isFresh && rule.id == ".m.rule.master":
				master = append(master, rule)
			case isFresh:
				defaults = append(defaults, rule)
			}
		}
		m[kind] = slices.Concat(master, users, defaults)
	}
}

func (m model) copyRoomRules(oldRoom, newRoom string) error {
	if oldRoom == "" || oldRoom == newRoom {
		return nil
	}
	settled := m.find(pushrule.Room, newRoom) != nil || m.find(pushrule.Override, newRoom) != nil
	copied := model{}
	for _, kind := range []pushrule.Kind{pushrule.Override, pushrule.Room} {
		for _, rule := range m[kind] {
			copied[kind] = append(copied[kind], rule)
			moved := rule
			moved.conditions = strings.ReplaceAll(rule.conditions, inRoom(oldRoom), inRoom(newRoom))
			named := kind == pushrule.Room && rule.id == oldRoom || moved.conditions != rule.conditions
			if rule.isServers() || !named || settled && rule.id == oldRoom {
				continue
			}
			moved.id = strings.ReplaceAll(rule.id, oldRoom, newRoom)
			if moved.id == rule.id {
				moved.id += ":" + newRoom
			}
			if m.find(kind, moved.id) != nil || copied.find(kind, moved.id) != nil {
				continue
			}
			if strings.HasPrefix(newRoom, ".") {
				return pushrule.ErrReservedID
			}
			if newRoom == "" || strings.Contains(newRoom, "/") {
				return pushrule.ErrInvalidID
			}
			moved.isDefault = false
			copied[kind] = append(copied[kind], moved)
		}
	}
	maps.Copy(m, copied)
	return nil
}

func inRoom(room string) string {
	return string(strictjson.AppendString([]byte(`{"kind":"event_match","key":"room_id","pattern":`), room)) + `,"n":1e400}`
}

const modelUser = "@alice:example.org"

func hostTable() pushrule.Ruleset {
	defaults, err := pushrule.NewDefaults(nil,
		pushrule.DefaultRule{Kind: pushrule.Override, ID: ".host.override", Before: ".m.rule.suppress_notices"},
		pushrule.DefaultRule{Kind: pushrule.Content, ID: ".host.content", Pattern: "word", Actions: []pushrule.Action{`"notify"`}},
		pushrule.DefaultRule{Kind: pushrule.Room, ID: ".host.room"},
		pushrule.DefaultRule{Kind: pushrule.Sender, ID: ".host.sender", Disabled: true},
		pushrule.DefaultRule{Kind: pushrule.Underride, ID: ".host.underride", Conditions: []pushrule.Condition{`{"kind":"x","n":1e400}`}},
	)
	if err != nil {
		panic(err)
	}
	return defaults.For(modelUser)
}

// edit is one operation, encoded in numbers for generators and fuzzers.
type edit struct{ op, kind, id, before, after, payload uint8 }

var editIDs = []string{
	"A", "B", "C", "D", "\U0001f600 \"{", ".m.rule.master", ".m.rule.call", ".m.rule.roomnotif", "", "x/y", ".host.override", ".host.sender",
}

func (e edit) kindName() pushrule.Kind { return pushrule.Kinds()[e.kind%5] }

func pick(n uint8) string { return editIDs[int(n)%len(editIDs)] }

func (e edit) position() pushrule.Position {
	return pushrule.Position{Before: e.anchor(e.before), After: e.anchor(e.after)}
}

func (e edit) anchor(n uint8) string {
	if n%16 < 6 {
		return ""
	}
	return pick(n%16 - 6)
}

func (e edit) actions() []pushrule.Action {
	return [][]pushrule.Action{{}, {`"notify"`}, {`{"n":9007199254740993}`, `"x"`}, nil}[e.payload%4]
}

func (e edit) draft() pushrule.Draft {
	d := pushrule.Draft{Actions: e.actions()}
	if e.kindName().HasPattern() {
		d.Pattern = "p" + string(rune('a'+e.payload%3))
	}
	if e.kindName().HasConditions() && e.payload&8 != 0 {
		d.Conditions = []pushrule.Condition{`{"kind":"custom","x":1e400}`, pushrule.Condition(inRoom(pick(e.payload)))}
	}
	if e.payload&16 != 0 {
		d.Extra = []pushrule.Member{{Name: "x.y", Value: "[0.10]"}}
	}
	if e.payload&32 != 0 {
		enabled := e.payload&64 != 0
		d.Enabled = &enabled
	}
	return d
}

func (e edit) apply(s *pushrule.Ruleset, m model) (got, want error) {
	kind, id, enabled := e.kindName(), pick(e.id), e.payload&1 != 0
	switch e.op % 11 {
	case 4:
		return s.Delete(kind, id), m.delete(kind, id)
	case 5:
		return s.SetEnabled(kind, id, enabled), m.change(kind, id, func(r *modelRule) { r.enabled = enabled })
	case 6:
		return s.SetActions(kind, id, e.actions()), m.change(kind, id, func(r *modelRule) { r.actions = join(e.actions()) })
	case 7:
		return merge(s, m, pushrule.ServerDefault(modelUser))
	case 8:
		return merge(s, m, hostTable())
	case 9, 10:
		return s.CopyRoomRules(id, pick(e.before)), m.copyRoomRules(id, pick(e.before))
	default:
		return s.Put(kind, id, e.draft(), e.position()), m.put(kind, id, e.draft(), e.position())
	}
}

func merge(s *pushrule.Ruleset, m model, table pushrule.Ruleset) (got, want error) {
	s.MergeDefaults(table)
	m.mergeDefaults(table)
	return nil, nil
}

func (e edit) String() string {
	return fmt.Sprintf("op %d, %s %q at %+v, room %q, payload %b", e.op%11, e.kindName(), pick(e.id), e.position(), pick(e.before), e.payload)
}

func starts(t testing.TB) []pushrule.Ruleset {
	return []pushrule.Ruleset{
		pushrule.ServerDefault(modelUser),
		{},
		mustRead(t, `{"override":[
			{"rule_id":".m.rule.master","default":true,"enabled":true,"actions":[],"x":1},
			{"rule_id":"A","default":false,"enabled":false,"actions":["a"],"conditions":[{}],"x":2},
			{"rule_id":"B","default":false,"enabled":true,"actions":[]},
			{"rule_id":".m.rule.roomnotif","default":true,"enabled":true,"actions":[]},
			{"rule_id":".m.rule.call","default":false,"enabled":true,"actions":[]},
			{"rule_id":".m.rule.tombstone","default":true,"enabled":false,"actions":["kept"],"x":3}],
			"content":[{"rule_id":".m.rule.contains_user_name","default":true,"enabled":true,"actions":[],"pattern":"alice"}],
			"sender":[{"rule_id":"C","default":true,"enabled":true,"actions":[]}],
			"org.example.kind":[9007199254740993]}`),
	}
}

// checkEdits compares each edit with the model, and checks the invariants of all sets.
func checkEdits(t testing.TB, start pushrule.Ruleset, edits []edit) {
	type snapshot struct {
		set  pushrule.Ruleset
		text string
	}
	s, m := start, modelOf(&start)
	snapshots := []snapshot{{s, encode(&s)}}
	for i, e := range edits {
		before := snapshots[len(snapshots)-1]
		got, want := e.apply(&s, m)
		if !errors.Is(got, want) || (got == nil) != (want == nil) {
			t.Fatalf("edit %d, %s: got %v, want %v", i, e, got, want)
		}
		text := encode(&s)
		if got != nil && text != before.text {
			t.Fatalf("edit %d, %s: refused, but changed\n%s\nto\n%s", i, e, before.text, text)
		}
		if actual := modelOf(&s); actual.String() != m.String() {
			t.Fatalf("edit %d, %s:\ngot  %s\nwant %s", i, e, actual, m)
		}
		checkInvariants(t, &s)
		snapshots = append(snapshots, snapshot{s, text})
	}
	for i, old := range snapshots {
		if again := reencode(t, old.set); encode(&old.set) != old.text || !sameJSON(t, again, complete(t, old.text)) {
			t.Fatalf("the copy taken after %d edits was changed by a later one\ngot  %s\nwant %s", i, again, old.text)
		}
	}
}

func checkInvariants(t testing.TB, s *pushrule.Ruleset) {
	t.Helper()
	for _, kind := range pushrule.Kinds() {
		seen := map[string]bool{}
		belowDefaults := false
		for i, rule := range s.List(kind) {
			if seen[rule.ID] {
				t.Fatalf("%s: %q is there twice", kind, rule.ID)
			}
			seen[rule.ID] = true
			if rule.ID == ".m.rule.master" {
				if i != 0 {
					t.Fatalf("%s: master stands at %d", kind, i)
				}
				continue
			}
			isServers := strings.HasPrefix(rule.ID, ".")
			if belowDefaults && !isServers {
				t.Fatalf("%s: the user's rule %q stands below the defaults", kind, rule.ID)
			}
			belowDefaults = belowDefaults || isServers
			if isServers {
				removed := *s
				if err := removed.Delete(kind, rule.ID); !errors.Is(err, pushrule.ErrDeleteDefault) {
					t.Fatalf("%s: deleting the default %q gives %v", kind, rule.ID, err)
				}
			}
		}
	}
	text := encode(s)
	again, err := pushrule.Read(text)
	if err != nil {
		t.Fatalf("cannot be read back: %v\n%s", err, text)
	}
	if modelOf(&again).String() != modelOf(s).String() || encode(&again) != text {
		t.Fatalf("read back as another set\n%s", text)
	}
	if once := reencode(t, again); once != reencode(t, mustRead(t, once)) || once != reencode(t, *s) {
		t.Fatalf("written anew as another set\n%s\n%s", text, once)
	}
}

func TestEditsAgreeWithTheModel(t *testing.T) {
	pushrule.CheckDrawn(t, func(d pushrule.Draws) {
		number := func() uint8 { return uint8(d.Uint32()) }
		edits := pushrule.DrawList(d, 1, 24, func() edit {
			return edit{number(), number(), number(), number(), number(), number()}
		})
		checkEdits(t, pushrule.DrawOne(d, starts(t)...), edits)
	})
}

func editsOf(data []byte) []edit {
	var edits []edit
	for b := range slices.Chunk(data, 6) {
		if len(b) == 6 {
			edits = append(edits, edit{b[0], b[1], b[2], b[3], b[4], b[5]})
		}
	}
	return edits
}

func FuzzEdits(f *testing.F) {
	f.Add(uint8(0), []byte("\x00\x00\x00\x00\x00\x00\x01\x00\x01\x00\x06\x08\x07\x00\x00\x00\x00\x00\x04\x00\x00\x00\x00\x00"))
	f.Add(uint8(1), []byte("\x00\x01\x00\x00\x00\x00\x00\x01\x01\x00\x06\x00\x00\x01\x00\x07\x00\x20\x05\x01\x00\x00\x00\x00"))
	f.Add(uint8(1), []byte("\x00\x00\x00\x00\x00\x08\x00\x02\x00\x00\x00\x00\x09\x00\x00\x01\x00\x00\x08\x00\x00\x00\x00\x00\x07\x00\x00\x00\x00\x00"))
	f.Add(uint8(2), []byte("\x07\x00\x00\x00\x00\x00\x04\x00\x05\x00\x00\x00\x06\x00\x06\x00\x00\x02"))
	// Each operation on rules of the third set: replaced, moved, disabled, given actions, deleted, refused and merged.
	f.Add(uint8(2), []byte("\x00\x00\x00\x00\x00\x00\x00\x00\x01\x06\x00\x00\x05\x00\x01\x00\x00\x00\x06\x00\x00\x00\x00\x01"))
	f.Add(uint8(2), []byte("\x04\x00\x00\x00\x00\x00\x04\x03\x02\x00\x00\x00\x04\x00\x05\x00\x00\x00\x07\x00\x00\x00\x00\x00\x08\x00\x00\x00\x00\x00"))
	f.Fuzz(func(t *testing.T, start uint8, data []byte) {
		sets := starts(t)
		edits := editsOf(data)
		checkEdits(t, sets[int(start)%len(sets)], edits[:min(len(edits), 50)])
	})
}
