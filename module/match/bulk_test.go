package match_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/pushfx/pushfx/module/match"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/pushrule"
)

func bulkMembers(tb testing.TB, n int) []match.Member {
	tb.Helper()
	cache := match.NewCache(64 << 20)
	members := make([]match.Member, n)
	for i := range members {
		user := mxid.UserID(fmt.Sprintf("@user%d:example.org", i))
		set := pushrule.ServerDefault(user)
		for k := 0; i%20 == 0 && k < 10; k++ {
			draft := pushrule.Draft{Actions: []pushrule.Action{`"notify"`, `{"set_tweak":"highlight"}`}, Pattern: fmt.Sprintf("word%d", i+k)}
			if err := set.Put(pushrule.Content, fmt.Sprint("keyword", k), draft, pushrule.Position{}); err != nil {
				tb.Fatal(err)
			}
		}
		members[i] = match.Member{User: user, DisplayName: fmt.Sprintf("User %d", i), Rules: cache.Rules(user, set)}
	}
	return members
}

func TestEvaluateAllEqualsEvaluate(t *testing.T) {
	t.Parallel()
	members := bulkMembers(t, 5000)
	members[17].Rules = nil
	members[18].Rules = match.Compile(pushrule.ServerDefault(members[18].User)) // without a cache
	members[19].Rules = match.Compile(pushrule.ServerDefault(members[19].User))
	room := match.Room{MemberCount: 5000, Power: &match.Power{Sender: 50}}
	for name, content := range map[string]string{
		"a message":               `{"body":"word40 and word4007"}`,
		"a mention of some":       `{"body":"hi","m.mentions":{"user_ids":["@user3:example.org","@user18:example.org","@user40:example.org","@user4999:example.org"]}}`,
		"a mention of all":        `{"body":"hi","m.mentions":{"room":true}}`,
		"a display name":          `{"body":"User 12"}`,
		"an invitation":           `{"membership":"invite"}`,
		"a message with no words": `{"body":""}`,
	} {
		for _, kind := range []string{"m.room.message", "m.room.member"} {
			t.Run(name+" as "+kind, func(t *testing.T) {
				event := readEvent(t, `{"type":"`+kind+`","sender":"@user8:example.org","state_key":"@user60:example.org","content":`+content+`}`)
				results, err := match.EvaluateAll(t.Context(), event, room, members)
				if err != nil || len(results) != len(members) {
					t.Fatalf("%d results, %v", len(results), err)
				}
				for i, m := range members {
					want := match.Result{}
					if m.Rules != nil {
						want = m.Rules.Evaluate(event, match.Facts{User: m.User, DisplayName: m.DisplayName, Room: room})
					}
					if results[i] != want {
						t.Fatalf("member %d: got %+v, want %+v", i, results[i], want)
					}
				}
				if results[8].Matched() || results[17].Matched() {
					t.Error("there is a result for the sender, or for a member without rules")
				}
			})
		}
	}
}

func TestEvaluateAllEndsWithTheContext(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	results, err := match.EvaluateAll(ctx, readEvent(t, `{}`), match.Room{}, bulkMembers(t, 2000))
	if results != nil || !errors.Is(err, context.Canceled) {
		t.Errorf("got %d results, %v", len(results), err)
	}
	if results, err := match.EvaluateAll(t.Context(), readEvent(t, `{}`), match.Room{}, nil); len(results) != 0 || err != nil {
		t.Errorf("nobody: got %d results, %v", len(results), err)
	}
}
