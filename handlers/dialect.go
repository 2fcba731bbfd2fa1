package handlers

import (
	"github.com/pushfx/pushfx/module/pusher"
	"github.com/pushfx/pushfx/module/pushrule"
)

// Dialect is one of the two wire forms. They differ in how the whole set and a
// single rule are wrapped, and in whether there is "append" for pushers; behind
// the wire form everything is the same. The host chooses it where it mounts a
// [RouteGroup].
type Dialect int

const (
	// V3 is the wire form of the Matrix specification, for
	// "/_matrix/client/v3" and the versions after it.
	V3 Dialect = iota

	// R0 is the wire form of the service document, for "/_matrix/client/r0".
	R0
)

// all is the answer of GET /pushrules/.
func (Dialect) all(rules pushrule.Ruleset) answer { return wrap("global", rules.JSON()) }

// global is the answer of GET /pushrules/global/.
func (d Dialect) global(rules pushrule.Ruleset) answer {
	if d == R0 {
		return wrap("global", rules.JSON())
	}
	return answer{json: rules.JSON()}
}

// rule is the answer of GET /pushrules/{scope}/{kind}/{ruleId}.
func (d Dialect) rule(rule pushrule.Rule, kind pushrule.Kind) answer {
	json := string(rule.AppendJSON(nil, kind))
	if d == R0 {
		return wrap("rule", json)
	}
	return answer{json: json}
}

// pusherForm is the form in which pushers are submitted.
func (d Dialect) pusherForm() pusher.Form {
	if d == R0 {
		return pusher.Document
	}
	return pusher.Specification
}

// required names what a PUT rule body without any rule lacks.
func (d Dialect) required() string {
	if d == R0 {
		return "rule"
	}
	return "actions"
}
