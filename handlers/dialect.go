package handlers

import (
	"path"
	"strings"

	"github.com/pushfx/pushfx/module/pusher"
	"github.com/pushfx/pushfx/module/pushrule"
)

// dialect is one of the two wire forms. They differ in how the whole set and a
// single rule are wrapped, and in whether there is "append" for pushers.
type dialect int

const (
	matrix   dialect = iota // the Matrix specification, for v3 and what comes after it
	document                // the service document, for r0
)

// dialectOf tells the dialect of the tree mounted at a path.
func dialectOf(mounted string) dialect {
	if prefix := path.Dir(mounted); strings.HasSuffix(prefix, "/r0") {
		return document
	}
	return matrix
}

// all is the answer of GET /pushrules/.
func (dialect) all(rules pushrule.Ruleset) answer { return wrap("global", rules.JSON()) }

// global is the answer of GET /pushrules/global/.
func (d dialect) global(rules pushrule.Ruleset) answer {
	if d == document {
		return wrap("global", rules.JSON())
	}
	return answer{json: rules.JSON()}
}

// rule is the answer of GET /pushrules/{scope}/{kind}/{ruleId}.
func (d dialect) rule(rule pushrule.Rule, kind pushrule.Kind) answer {
	json := string(rule.AppendJSON(nil, kind))
	if d == document {
		return wrap("rule", json)
	}
	return answer{json: json}
}

// pusherForm is the form in which pushers are submitted.
func (d dialect) pusherForm() pusher.Form {
	if d == document {
		return pusher.Document
	}
	return pusher.Specification
}

// required names what a PUT rule body without any rule lacks.
func (d dialect) required() string {
	if d == document {
		return "rule"
	}
	return "actions"
}
