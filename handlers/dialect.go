package handlers

import (
	"github.com/pushfx/pushfx/module/pusher"
	"github.com/pushfx/pushfx/module/pushrule"
)

// Dialect is a wire form, which the host chooses where it mounts a [RouteGroup]. The two
// differ in how the whole set and a single rule are wrapped, and in "append" for pushers.
type Dialect int

const (
	// V3 is the form of the Matrix specification, for "/_matrix/client/v3" and later
	// versions.
	V3 Dialect = iota

	// R0 is the form of the service document, for "/_matrix/client/r0".
	R0
)

// all is the answer of GET /pushrules/.
func (Dialect) all(rules pushrule.Ruleset) answer { return wrap("global", rules.JSON()) }

// global returns the answer of GET /pushrules/global/.
func (d Dialect) global(rules pushrule.Ruleset) answer {
	if d == R0 {
		return wrap("global", rules.JSON())
	}
	return answer{json: rules.JSON()}
}

// rule returns the answer of GET /pushrules/{scope}/{kind}/{ruleId}.
func (d Dialect) rule(rule pushrule.Rule, kind pushrule.Kind) answer {
	json := string(rule.AppendJSON(nil, kind))
	if d == R0 {
		return wrap("rule", json)
	}
	return answer{json: json}
}

func (d Dialect) pusherForm() pusher.Form {
	if d == R0 {
		return pusher.Document
	}
	return pusher.Specification
}

// required names the member that a PUT rule body must have. It is for the error text.
func (d Dialect) required() string {
	if d == R0 {
		return "rule"
	}
	return "actions"
}
