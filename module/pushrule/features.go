package pushrule

import (
	"fmt"
	"slices"
	"strings"
)

// Feature is a table of server-default rules that a proposal adds to the Matrix
// specification. Clients that support the feature look for these rules. Hosts turn a
// feature on by giving it to [NewDefaults]. Treat the package's features as
// read-only.
type Feature struct {
	Name           string            // for flags and errors
	Flag           string            // the member of unstable_features in GET /versions; empty if the proposal names none
	Rules          []DefaultRule     // with the unstable ids that clients use today
	StableIDs      map[string]string // stable ids of the proposal, by the ids in Rules
	ConditionKinds []string          // kinds of condition that the specification lacks
}

// Polls notifies of the start and the end of a poll as of a message, and not of
// responses (MSC3930, accepted). The rules have the unstable event types of MSC3381,
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

// EncryptedEvents notifies of every encrypted event, except in rooms that a user
// muted with an override rule (MSC4028). Phones decrypt the event and then find
// mentions and keywords. It costs a push for each encrypted event and each pusher of
// every member. Clients must filter: a client that shows every push also shows
// messages in rooms that are set to mentions only.
//
// The action dont_email of MSC4062, another proposal, is not part of the rule.
var EncryptedEvents = Feature{
	Name: "encrypted-events",
	Flag: "org.matrix.msc4028",
	Rules: []DefaultRule{
		{Kind: Override, ID: ".org.matrix.msc4028.encrypted_event", Before: ".m.rule.suppress_notices", Actions: actions(notify),
			Conditions: conditions(eventMatch("type", "m.room.encrypted"))},
	},
	StableIDs: map[string]string{".org.matrix.msc4028.encrypted_event": ".m.rule.encrypted_event"},
}

// LiveLocation notifies when a user starts to share a live location, and not of the
// single locations (MSC4505). The rules have the unstable event types of MSC3672,
// which clients send.
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
// It needs the power levels of the members, see match.Member.
var Knocks = Feature{
	Name: "knocks",
	Rules: []DefaultRule{
		{Kind: Override, ID: ".org.matrix.msc4506.rule.knock", Before: ".m.rule.member_event", Actions: actions(notify, soundDefault),
			Conditions: conditions(eventMatch("type", "m.room.member"), eventMatch("content.membership", "knock"),
				`{"kind":"org.matrix.msc4506.recipient_permission","key":"invite"}`)},
	},
	StableIDs:      map[string]string{".org.matrix.msc4506.rule.knock": ".m.rule.knock"},
	ConditionKinds: []string{"org.matrix.msc4506.recipient_permission"},
}

const isLive Condition = `{"kind":"event_property_is","key":"content.live","value":true}`

// Features returns the features of this package. If several features add rules at the
// same place, the rules have this order.
func Features() []Feature { return []Feature{Polls, EncryptedEvents, LiveLocation, Knocks} }

// ParseFeatures returns the features of this package that a flag names, separated by
// commas. An empty text names none. The error for an unknown name lists the known
// ones.
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

// FeatureNames lists the names that [ParseFeatures] knows, for the text of a flag.
func FeatureNames() string {
	var names []string
	for _, feature := range Features() {
		names = append(names, feature.Name)
	}
	return strings.Join(names, ", ")
}

// featureOrder returns the place of a feature in [Features], or their number for any
// other feature.
func featureOrder(name string) int {
	for i, feature := range Features() {
		if feature.Name == name {
			return i
		}
	}
	return len(Features())
}

// featureRule is a rule of a feature, with its two ids.
type featureRule struct {
	DefaultRule
	stableID string
}

// featureRules has the rules of all features, by both ids. A stored set may have
// either: after a proposal is accepted, the stable id replaces the unstable one.
var featureRules = newFeatureRules()

func newFeatureRules() map[string]featureRule {
	rules := map[string]featureRule{}
	for _, feature := range Features() {
		for _, rule := range feature.Rules {
			stable := feature.StableIDs[rule.ID]
			rules[rule.ID] = featureRule{rule, stable}
			rules[stable] = featureRule{rule, stable}
		}
	}
	return rules
}

// otherID returns the stable id of a feature's rule for the unstable id, and the
// unstable id for the stable one. It is empty for all other rules.
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

// isDefault reports whether a user left the settings of the feature's rule as they
// were.
func (r featureRule) isDefault(rule Rule) bool {
	return rule.Enabled == !r.Disabled && slices.Equal(rule.Actions, r.Actions)
}
