package main

import (
	"fmt"
	"os"
	"strings"

	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/pushrule"
	"github.com/pushfx/pushfx/module/strictjson"
)

// defaultTable is the default rules of all users. Most sets are just these, so
// that they are told without taking them apart.
type defaultTable struct {
	pushrule.Defaults
	before string // the set of the user who is placeholder
}

// placeholder is a user id that stands nowhere else in the default rules.
const placeholder = "@placeholder.pushctl:placeholder.invalid"

func newDefaultTable(d pushrule.Defaults) defaultTable {
	set := d.For(placeholder)
	return defaultTable{d, set.JSON()}
}

// problems returns the problems of a user's set.
func (d defaultTable) problems(user mxid.UserID, rules pushrule.Ruleset) []pushrule.Problem {
	if d.isDefault(user, rules) {
		return nil
	}
	return rules.Problems(d.For(user))
}

// isDefault reports whether a set is quickly told to be just the default rules.
func (d defaultTable) isDefault(user mxid.UserID, rules pushrule.Ruleset) bool {
	return !strings.ContainsAny(string(user), `"\`) && rules.JSON() == strings.ReplaceAll(d.before, placeholder, string(user))
}

// readDefaultRules reads the rules that hosts add to those of the
// specification; without a file there are none.
func readDefaultRules(file string) (rules []pushrule.DefaultRule, err error) {
	if file == "" {
		return nil, nil
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	r := strictjson.NewReader(string(text))
	err = r.Array(func() error {
		rule, err := readDefaultRule(r)
		rules = append(rules, rule)
		return err
	})
	if err == nil {
		_, err = pushrule.NewDefaults(rules...)
	}
	return rules, err
}

func readDefaultRule(r *strictjson.Reader) (rule pushrule.DefaultRule, err error) {
	err = r.Object(func(name string) (err error) {
		switch name {
		case "kind":
			var kind string
			kind, err = r.String()
			rule.Kind = pushrule.Kind(kind)
		case "rule_id":
			rule.ID, err = r.String()
		case "enabled":
			var enabled bool
			enabled, err = r.Bool()
			rule.Disabled = !enabled
		case "actions":
			rule.Actions, err = readTexts[pushrule.Action](r)
		case "conditions":
			rule.Conditions, err = readTexts[pushrule.Condition](r)
		case "pattern":
			rule.Pattern, err = r.String()
		case "before":
			rule.Before, err = r.String()
		default:
			err = fmt.Errorf("a default rule has no %q", name)
		}
		return err
	}, "kind", "rule_id", "actions")
	return rule, err
}

func readTexts[T ~string](r *strictjson.Reader) (texts []T, err error) {
	err = r.Array(func() error {
		text, err := r.Value()
		texts = append(texts, T(text))
		return err
	})
	return texts, err
}
