package match

import (
	"slices"
	"strings"

	"github.com/pushfx/pushfx/module/pushrule"
	"github.com/pushfx/pushfx/module/strictjson"
)

type outcome struct {
	actions   []pushrule.Action
	notify    bool
	highlight bool
	sound     string
}

// clone copies the texts, too, which are parts of the set's JSON.
func (o outcome) clone() outcome {
	o.actions = slices.Clone(o.actions)
	for i, action := range o.actions {
		o.actions[i] = pushrule.Action(strings.Clone(string(action)))
	}
	o.sound = strings.Clone(o.sound)
	return o
}

// readOutcome reads the effect of a rule's actions. It drops the historical actions
// "dont_notify" and "coalesce" (Matrix specification, "Historical Actions").
func readOutcome(actions []pushrule.Action) (o outcome) {
	for _, action := range actions {
		w := strictjson.Walk(string(action))
		switch w.Next() {
		case '"':
			switch w.String() {
			case "dont_notify", "coalesce":
				continue
			case "notify":
				o.notify = true
			}
		case '{':
			o.setTweak(&w)
		}
		o.actions = append(o.actions, action)
	}
	return o
}

// If a tweak occurs twice, the last one counts. A highlight without a value is true.
func (o *outcome) setTweak(w *strictjson.Walker) {
	tweak, given := "", value{kind: truth}
	for name := range w.Object() {
		switch c := w.Next(); {
		case name == "set_tweak" && c == '"':
			tweak = w.String()
		case name == "value" && (c == '{' || c == '['):
			given = value{kind: compound}
		case name == "value":
			given = readScalar(w)
		}
	}
	switch tweak {
	case "highlight":
		o.highlight = given.kind == truth
	case "sound":
		o.sound = given.text
	}
}
