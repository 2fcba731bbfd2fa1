package match_test

import (
	"fmt"
	"math"
	"testing"

	"github.com/pushfx/pushfx/module/match"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/pushrule"
)

func allFeatures(tb testing.TB) pushrule.Defaults {
	tb.Helper()
	defaults, err := pushrule.NewDefaults(pushrule.Features())
	if err != nil {
		tb.Fatal(err)
	}
	return defaults
}

func TestFeaturesDecideAboutTheirEvents(t *testing.T) {
	t.Parallel()
	rules := match.Compile(allFeatures(t).For("@alice:example.org"))
	decided := map[string]bool{}
	low, high := int64(49), int64(50)
	knock := `"type":"m.room.member","state_key":"@bob:example.org","content":{"membership":"knock"}`
	for name, test := range map[string]struct {
		event   string
		members int
		power   *int64
		want    string // rule, notify, sound
	}{
		"a poll":                         {`"type":"org.matrix.msc3381.poll.start"`, 3, nil, ".org.matrix.msc3930.rule.poll_start true "},
		"a poll for two":                 {`"type":"org.matrix.msc3381.poll.start"`, 2, nil, ".org.matrix.msc3930.rule.poll_start_one_to_one true default"},
		"a response":                     {`"type":"org.matrix.msc3381.poll.response"`, 2, nil, ".org.matrix.msc3930.rule.poll_response false "},
		"the end of a poll":              {`"type":"org.matrix.msc3381.poll.end"`, 3, nil, ".org.matrix.msc3930.rule.poll_end true "},
		"the end of a poll for two":      {`"type":"org.matrix.msc3381.poll.end"`, 2, nil, ".org.matrix.msc3930.rule.poll_end_one_to_one true default"},
		"a type that contains another":   {`"type":"xorg.matrix.msc3381.poll.starts"`, 2, nil, " false "},
		"an encrypted event":             {`"type":"m.room.encrypted"`, 2, nil, ".org.matrix.msc4028.encrypted_event true "},
		"a live location":                {`"type":"org.matrix.msc3672.beacon_info","content":{"live":true}`, 3, nil, ".org.matrix.msc4505.rule.beacon_info true "},
		"a live location for two":        {`"type":"org.matrix.msc3672.beacon_info","content":{"live":true}`, 2, nil, ".org.matrix.msc4505.rule.beacon_info_one_to_one true default"},
		"the end of a live location":     {`"type":"org.matrix.msc3672.beacon_info","content":{"live":false}`, 2, nil, " false "},
		"a single location":              {`"type":"org.matrix.msc3672.beacon","content":{}`, 2, nil, ".org.matrix.msc4505.rule.beacon false "},
		"a knock, for who may invite":    {knock, 3, &high, ".org.matrix.msc4506.rule.knock true default"},
		"a knock, for who may not":       {knock, 3, &low, ".m.rule.member_event false "},
		"a knock, for an unknown level":  {knock, 3, nil, ".m.rule.member_event false "},
		"a member who joins":             {`"type":"m.room.member","content":{"membership":"join"}`, 3, &high, ".m.rule.member_event false "},
		"a message":                      {`"type":"m.room.message","content":{"body":"Hi"}`, 3, &high, ".m.rule.message true "},
		"a mention in an encrypted room": {`"type":"m.room.encrypted","content":{"m.mentions":{"user_ids":["@alice:example.org"]}}`, 3, nil, ".org.matrix.msc4028.encrypted_event true "},
	} {
		t.Run(name, func(t *testing.T) {
			room := match.Room{MemberCount: test.members, Power: &match.Power{Permissions: map[string]int64{"invite": 50}}}
			result := rules.Evaluate(readEvent(t, `{"sender":"@bob:example.org",`+test.event+`}`), match.Facts{User: "@alice:example.org", Power: test.power, Room: room})
			_, id := result.Rule()
			decided[id] = true
			if got := fmt.Sprint(id, " ", result.Notify(), " ", result.Sound()); got != test.want {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
	for _, feature := range pushrule.Features() {
		for _, rule := range feature.Rules {
			if !decided[rule.ID] {
				t.Errorf("no event is decided by %s of the feature %s", rule.ID, feature.Name)
			}
		}
	}
}

// Proposals write a backslash in event types; it has no special meaning there.
func TestBackslashesInEventTypesAreLiteral(t *testing.T) {
	checkConditions(t, map[string]conditionCase{
		"a plain type":      {condition: `{"kind":"event_property_is","key":"type","value":"m.poll.start"}`, yes: []string{`{"type":"m.poll.start"}`}, no: []string{`{"type":"mxpollxstart"}`}},
		"with backslashes":  {condition: `{"kind":"event_property_is","key":"type","value":"m\\.poll\\.start"}`, no: []string{`{"type":"m.poll.start"}`}},
		"a type as pattern": {condition: `{"kind":"event_match","key":"type","pattern":"m.poll.start"}`, yes: []string{`{"type":"m.poll.start"}`}, no: []string{`{"type":"mxpollxstart"}`}},
	})
}

func TestRecipientPermission(t *testing.T) {
	condition := func(key string) string { return `{"kind":"recipient_permission","key":` + key + `}` }
	facts := func(power int64, levels map[string]int64) match.Facts {
		return match.Facts{Power: &power, Room: match.Room{Power: &match.Power{Sender: 100, Permissions: levels}}}
	}
	level := int64(100)
	event := []string{`{}`}
	checkConditions(t, map[string]conditionCase{
		"all may invite by default":     {condition: condition(`"invite"`), facts: facts(0, nil), yes: event},
		"a level below all":             {condition: condition(`"invite"`), facts: facts(-1, nil), no: event},
		"the default level to kick":     {condition: condition(`"kick"`), facts: facts(50, nil), yes: event},
		"below the default to kick":     {condition: condition(`"kick"`), facts: facts(49, nil), no: event},
		"the default level to ban":      {condition: condition(`"ban"`), facts: facts(49, nil), no: event},
		"the default level to redact":   {condition: condition(`"redact"`), facts: facts(49, nil), no: event},
		"the room's level":              {condition: condition(`"invite"`), facts: facts(20, map[string]int64{"invite": 20}), yes: event},
		"below the room's level":        {condition: condition(`"invite"`), facts: facts(19, map[string]int64{"invite": 20}), no: event},
		"a room where all may ban":      {condition: condition(`"ban"`), facts: facts(0, map[string]int64{"ban": 0}), yes: event},
		"a creator":                     {condition: condition(`"ban"`), facts: facts(match.CreatorPower, map[string]int64{"ban": math.MaxInt64}), yes: event},
		"another key":                   {condition: condition(`"state_default"`), facts: facts(100, map[string]int64{"state_default": 0}), no: event},
		"a key of another type":         {condition: condition(`7`), facts: facts(100, nil), no: event},
		"no key":                        {condition: `{"kind":"recipient_permission"}`, facts: facts(100, nil), no: event},
		"the unstable kind":             {condition: `{"kind":"org.matrix.msc4506.recipient_permission","key":"kick"}`, facts: facts(50, nil), yes: event},
		"the user's level is not known": {condition: condition(`"invite"`), facts: match.Facts{Room: match.Room{Power: &match.Power{}}}, no: event},
		"the room's are not known":      {condition: condition(`"invite"`), facts: match.Facts{Power: &level}, no: event},
	})
}

func powerfulMembers(tb testing.TB, n int, defaults pushrule.Defaults, levels ...*int64) []match.Member {
	tb.Helper()
	cache := match.NewCache(64 << 20)
	members := make([]match.Member, n)
	for i := range members {
		user := mxid.UserID(fmt.Sprintf("@user%d:example.org", i))
		members[i] = match.Member{User: user, Rules: cache.Rules(user, defaults.For(user)), Power: levels[i%len(levels)]}
	}
	return members
}

func levels(list ...int64) (pointers []*int64) {
	for _, level := range list {
		pointers = append(pointers, &level)
	}
	return append(pointers, nil)
}

func TestEvaluateAllEqualsEvaluateForAllPowerLevels(t *testing.T) {
	t.Parallel()
	var own []pushrule.DefaultRule // more results than maxShared
	for _, action := range []string{"invite", "kick", "ban", "redact"} {
		own = append(own, pushrule.DefaultRule{Kind: pushrule.Override, ID: "." + action, Before: ".m.rule.suppress_notices",
			Conditions: []pushrule.Condition{pushrule.Condition(`{"kind":"recipient_permission","key":"` + action + `"}`)}})
	}
	many, err := pushrule.NewDefaults(pushrule.Features(), own...)
	if err != nil {
		t.Fatal(err)
	}
	count := 2000
	if testing.Short() {
		count /= 10
	}
	power := &match.Power{Permissions: map[string]int64{"invite": 90, "kick": 70, "ban": 50, "redact": 30}}
	knock := readEvent(t, `{"type":"m.room.member","sender":"@knocker:example.org","state_key":"@knocker:example.org","content":{"membership":"knock"}}`)
	for name, defaults := range map[string]pushrule.Defaults{"all features": allFeatures(t), "a rule for each permission": many} {
		for _, room := range []match.Room{{}, {MemberCount: 2, Power: power}, {MemberCount: 2, Power: &match.Power{}}} {
			members := powerfulMembers(t, count, defaults, levels(0, 30, 50, 70, 90, -5, match.CreatorPower)...)
			results, err := match.EvaluateAll(t.Context(), knock, room, members)
			if err != nil {
				t.Fatal(err)
			}
			for i, m := range members {
				want := m.Rules.Evaluate(knock, match.Facts{User: m.User, Power: m.Power, Room: room})
				if results[i] != want {
					t.Fatalf("%s, member %d: got %+v, want %+v", name, i, results[i], want)
				}
			}
		}
	}
}
