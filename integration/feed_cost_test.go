package integration

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/pushrule"
	"github.com/pushfx/pushfx/module/redistest"
	"github.com/pushfx/pushfx/rulestore"
)

var (
	commandCalls = regexp.MustCompile(`(?m)^cmdstat_([a-z|]+):calls=(\d+)`)
	outputBytes  = regexp.MustCompile(`(?m)^total_net_output_bytes:(\d+)`)
)

// calls returns how often a server was asked to do each command.
func calls(t *testing.T, client *redis.Client) map[string]int {
	t.Helper()
	info, err := client.Info(t.Context(), "commandstats").Result()
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]int{}
	for _, match := range commandCalls.FindAllStringSubmatch(info, -1) {
		all[match[1]], _ = strconv.Atoi(match[2])
	}
	return all
}

// sent returns how many bytes a server has sent.
func sent(t *testing.T, client *redis.Client) int {
	t.Helper()
	info, err := client.Info(t.Context(), "stats").Result()
	if err != nil {
		t.Fatal(err)
	}
	n, err := strconv.Atoi(outputBytes.FindStringSubmatch(info)[1])
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// Hosts have listeners, but nobody syncs there.
func TestAChangeCostsAnIdleHostOneMessageAndNoRead(t *testing.T) {
	t.Parallel()
	redistest.Require(t)
	const hosts, changes = 3, 200
	server := redistest.Single(t)
	admin := server.Client(t)
	var all [hosts]*outpost
	for n := range all {
		all[n] = newOutpost(t, server.Client(t))
	}
	users := [4]mxid.UserID{"@a:example.org", "@b:example.org", "@c:example.org", "@d:example.org"}
	put := func(i int) {
		user, id := users[i%len(users)], fmt.Sprint("rule ", i)
		all[0].put(user, id)
	}
	heardLast := func() {
		t.Helper()
		for _, user := range users {
			content, err := all[0].rules.Content(t.Context(), user)
			if err != nil {
				t.Fatal(err)
			}
			for _, o := range all {
				eventually(t, "the host has heard of the last change", func() bool { return o.last(user) == content.Version })
			}
		}
	}
	for _, user := range users {
		all[0].syncs(user) // which makes the rules
	}
	for i := range len(users) {
		put(i)
	}
	heardLast()
	before, sentBefore := calls(t, admin), sent(t, admin)
	for i := range changes {
		put(len(users) + i)
	}
	each := float64(sent(t, admin)-sentBefore) / changes
	heardLast()
	after := calls(t, admin)
	of := func(command string) int { return after[command] - before[command] }
	// The script that makes a change looks at the end of the event.
	reads := of("get") - len(users) + of("mget") + of("getrange") - of("evalsha")
	t.Logf("%d hosts: %.2f reads and %.0f bytes sent for each change", hosts, float64(reads)/changes, each)
	if reads > 0 {
		t.Errorf("%d changes made %d reads", changes, reads)
	}
	if each > hosts*150 {
		t.Errorf("a change makes Redis send %.0f bytes", each)
	}
	if got := of("publish"); got != changes {
		t.Errorf("%d changes were published in %d messages", changes, got)
	}
}

func TestARecheckReadsVersionsAndNoRules(t *testing.T) {
	t.Parallel()
	redistest.Require(t)
	const users, rules = 30, 1000
	server := redistest.Single(t)
	admin := server.Client(t)
	o := newOutpost(t, server.Client(t))
	for n := range users {
		o.syncs(largeSet(t, server.Client(t), n, rules))
	}
	size := admin.StrLen(t.Context(), eventKey("@large0:example.org")).Val()
	before := sent(t, admin)
	// A watch that begins anew has all users checked.
	if err := admin.Do(t.Context(), "CLIENT", "KILL", "TYPE", "pubsub").Err(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "all are checked", func() bool { return o.feed.Stats().Rechecked >= users })
	got := sent(t, admin) - before
	t.Logf("%d users with %d KB each: a recheck makes Redis send %d KB", users, size/1000, got/1000)
	if limit := users*2000 + 10_000; got > limit {
		t.Errorf("a recheck of %d users makes Redis send %d bytes, want at most %d", users, got, limit)
	}
}

// largeSet stores a set with many rules and returns its user.
func largeSet(t *testing.T, client redis.UniversalClient, n, rules int) mxid.UserID {
	t.Helper()
	store, err := rulestore.New(client, rulestore.DefaultConfig())
	if err != nil {
		t.Fatal(err)
	}
	var list []string
	for i := range rules {
		list = append(list, fmt.Sprintf(`{"rule_id":"!room%d:example.org","default":false,"enabled":true,"actions":["notify"],"x":%q}`,
			i, strings.Repeat("x", 100)))
	}
	user := mxid.UserID(fmt.Sprintf("@large%d:example.org", n))
	_, err = store.Update(t.Context(), user, func(set *pushrule.Ruleset, _ bool) (err error) {
		*set, err = pushrule.Read(`{"override":[],"content":[],"room":[` + strings.Join(list, ",") + `],"sender":[],"underride":[]}`)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return user
}

// last returns the last version of a user that an outpost has heard of.
func (o *outpost) last(user mxid.UserID) int64 {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.heard[user].version
}
