package match_test

import (
	"context"
	"fmt"

	"github.com/pushfx/pushfx/module/match"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/pushrule"
)

func Example() {
	compiled := match.NewCache(64 << 20) // one for the whole process
	members := []match.Member{
		{User: "@alice:example.org", DisplayName: "Alice"},
		{User: "@bob:example.org", DisplayName: "Bob"},
	}
	for i, member := range members {
		members[i].Rules = compiled.Rules(member.User, rulesOf(member.User))
	}
	event, err := match.ReadEvent(`{"type":"m.room.message","room_id":"!lobby:example.org","sender":"@bob:example.org",
		"content":{"body":"Hi Alice","m.mentions":{"user_ids":["@alice:example.org"]}}}`)
	if err != nil {
		panic(err)
	}
	results, err := match.EvaluateAll(context.Background(), event, match.Room{MemberCount: 2}, members)
	if err != nil {
		panic(err)
	}
	for i, result := range results {
		if result.Notify() {
			_, rule := result.Rule()
			fmt.Println(members[i].User, rule, result.Sound(), result.Highlight())
		}
	}
	// Output: @alice:example.org .m.rule.is_user_mention default true
}

// rulesOf stands for a host's store of rule sets, such as HostService.Rulesets.
func rulesOf(user mxid.UserID) pushrule.Ruleset { return pushrule.ServerDefault(user) }

func ExampleRules_Explain() {
	rules := match.Compile(pushrule.ServerDefault("@alice:example.org"))
	event, err := match.ReadEvent(`{"type":"m.room.message","sender":"@bob:example.org","content":{"msgtype":"m.notice","body":"Lunch?"}}`)
	if err != nil {
		panic(err)
	}
	for _, rule := range rules.Explain(event, match.Facts{User: "@alice:example.org"}).Rules[:2] {
		fmt.Println(rule.RuleID, rule.Verdict)
	}
	// Output:
	// .m.rule.master disabled
	// .m.rule.suppress_notices decides
}
