package pushrule

import (
	"fmt"
	"slices"
	"strings"
)

// Feature is a table of server-default rules that a proposal adds to the specification.
// Pass it to [NewDefaults]. Do not change the features of this package.
type Feature struct {
	Name      string            // for flags and errors
	Flag      string            // the member of unstable_features in GET /versions; empty if the proposal names none
	Rules     []DefaultRule     // with the unstable ids that clients use today
	StableIDs map[string]string // stable ids of the proposal, by the ids in Rules
}

// Polls notifies users of the start and the end of a poll as of a message, and not of
// responses (MSC3930, accepted). The rules match the unstable event types of MSC3381,
// which clients send.
var Polls = Feature{
	Name: "polls",
	Rules: []DefaultRule{
		{Kind: Override, ID: ".org.matrix.msc3930.rule.poll_response", Before: ".m.rule.suppress_edits",
			Conditions: conditions(eventMatch("type", "org.matrix.msc3381.poll.response"))},
		{Kind: Underride, ID: ".org.matrix.msc3930.rule.poll_start_one_to_one", Actions: actions(notify, soundDefault),
			Conditions: conditions(twoMembers, eventMatch("type", "org.matrix.msc3381.poll.start"))},
		{Kind: Underride, ID: ".org.matrix.msc3930.rule.poll_start", Actions: actions(notify),
			Conditions: conditions(eventMatch("type", "org.matrix.msc3381.poll.start"))},
		{Kind: Underride, ID: ".org.matrix.msc3930.rule.poll_end_one_to_one", Actions: actions(notify, soundDefault),
			Conditions: conditions(twoMembers, eventMatch("type", "org.matrix.msc3381.poll.end"))},
		{Kind: Underride, ID: ".org.matrix.msc3930.rule.poll_end", Actions: actions(notify),
			Conditions: conditions(eventMatch("type", "org.matrix.msc3381.poll.end"))},
	},
	StableIDs: map[string]string{
		".org.matrix.msc3930.rule.poll_response":         ".m.rule.poll_response",
		".org.matrix.msc3930.rule.poll_start_one_to_one": ".m.rule.poll_start_one_to_one",
		".org.matrix.msc3930.rule.poll_start":            ".m.rule.poll_start",
		".org.matrix.msc3930.rule.poll_end_one_to_one":   ".m.rule.poll_end_one_to_one",
		".org.matrix.msc3930.rule.poll_end":              ".m.rule.poll_end",
	},
}

// EncryptedEvents notifies users of every encrypted event, except in rooms that the
// user muted with an override rule (MSC4028). README.md describes the cost and the
// duties of clients. Mails ignore the rule, with or without
// the tweak dont_email of MSC4062.
var EncryptedEvents = Feature{
	Name: "encrypted-events",
	Flag: "org.matrix.msc4028",
	Rules: []DefaultRule{
		{Kind: Override, ID: ".org.matrix.msc4028.encrypted_event", Before: ".m.rule.suppress_notices", Actions: actions(notify),
			Conditions: conditions(eventMatch("type", "m.room.encrypted"))},
	},
	StableIDs: map[string]string{".org.matrix.msc4028.encrypted_event": ".m.rule.encrypted_event"},
}

// LiveLocation notifies users of the start of a live location, and not of its updates
// (MSC4505). The rules match the unstable event types of MSC3672, which clients send.
var LiveLocation = Feature{
	Name: "live-location",
	Rules: []DefaultRule{
		{Kind: Override, ID: ".org.matrix.msc4505.rule.beacon", Before: ".m.rule.suppress_edits",
			Conditions: conditions(eventMatch("type", "org.matrix.msc3672.beacon"))},
		{Kind: Underride, ID: ".org.matrix.msc4505.rule.beacon_info_one_to_one", Actions: actions(notify, soundDefault),
			Conditions: conditions(twoMembers, eventMatch("type", "org.matrix.msc3672.beacon_info"), isLive)},
		{Kind: Underride, ID: ".org.matrix.msc4505.rule.beacon_info", Actions: actions(notify),
			Conditions: conditions(eventMatch("type", "org.matrix.msc3672.beacon_info"), isLive)},
	},
	StableIDs: map[string]string{
		".org.matrix.msc4505.rule.beacon":                 ".m.rule.beacon",
		".org.matrix.msc4505.rule.beacon_info_one_to_one": ".m.rule.beacon_info_one_to_one",
		".org.matrix.msc4505.rule.beacon_info":            ".m.rule.beacon_info",
	},
}

// Knocks notifies members with the permission to invite when a user knocks (MSC4506).
// The host must give the members' power levels, see match.Member.
var Knocks = Feature{
	Name: "knocks",
	Rules: []DefaultRule{
		{Kind: Override, ID: ".org.matrix.msc4506.rule.knock", Before: ".m.rule.member_event", Actions: actions(notify, soundDefault),
			Conditions: conditions(eventMatch("type", "m.room.member"), eventMatch("content.membership", "knock"),
				`{"kind":"org.matrix.msc4506.recipient_permission","key":"invite"}`)},
	},
	StableIDs: map[string]string{".org.matrix.msc4506.rule.knock": ".m.rule.knock"},
}

const isLive Condition = `{"kind":"event_property_is","key":"content.live","value":true}`

// Features returns the features of this package. Rules of several features at the same
// place stand in this order.
func Features() []Feature { return []Feature{Polls, EncryptedEvents, LiveLocation, Knocks} }

// ParseFeatures returns the features in a comma-separated list of names, which may be
// empty. The error for an unknown name lists the known names.
func ParseFeatures(names string) (features []Feature, err error) {
	if names == "" {
		return nil, nil
	}
	for name := range strings.SplitSeq(names, ",") {
		at := featureOrder(strings.TrimSpace(name))
		if at == len(Features()) {
			return nil, fmt.Errorf("unknown feature %q, want some of %s", name, FeatureNames())
		}
		features = append(features, Features()[at])
	}
	return features, nil
}

// FeatureNames lists the names that [ParseFeatures] knows.
func FeatureNames() string {
	var names []string
	for _, feature := range Features() {
		names = append(names, feature.Name)
	}
	return strings.Join(names, ", ")
}

func featureOrder(name string) int {
	for i, feature := range Features() {
		if feature.Name == name {
			return i
		}
	}
	return len(Features())
}

type featureRule struct {
	DefaultRule
	stableID, feature string
}

// featureRules has the rules of all features by stable and unstable id: a stored set
// may have the unstable id after the proposal got its stable id.
var featureRules = newFeatureRules()

func newFeatureRules() map[string]featureRule {
	rules := map[string]featureRule{}
	for _, feature := range Features() {
		for _, rule := range feature.Rules {
			stable := feature.StableIDs[rule.ID]
			rules[rule.ID] = featureRule{rule, stable, feature.Name}
			rules[stable] = featureRule{rule, stable, feature.Name}
		}
	}
	return rules
}

// otherID returns the stable id for an unstable id and vice versa, empty for rules of
// no feature.
func otherID(id string) string {
	rule, found := featureRules[id]
	switch {
	case !found:
		return ""
	case rule.ID == id:
		return rule.stableID
	}
	return rule.ID
}

func (r featureRule) isDefault(rule Rule) bool {
	return rule.Enabled == !r.Disabled && slices.Equal(rule.Actions, r.Actions)
}
