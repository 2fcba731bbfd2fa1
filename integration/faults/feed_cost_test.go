package faults

import (
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/pushfx/pushfx/integration/hosttest"
	"github.com/pushfx/pushfx/module/commit/rediscommit"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/pushrule"
	"github.com/pushfx/pushfx/module/redistest"
	"github.com/pushfx/pushfx/rulestore"
)

// The idle hosts have listeners and no syncing users.
func TestAChangeCostsAnIdleHostOneMessageAndNoRead(t *testing.T) {
	t.Parallel()
	redistest.Require(t)
	const changes = 200
	server := redistest.Single(t)
	admin := server.Client(t)
	writer, idle, asked := newFeedHost(t, server.Client(t)), [2]*feedHost{}, [2]*redistest.Trips{}
	for n := range idle {
		client := server.Client(t)
		asked[n] = redistest.RecordTrips(client)
		idle[n] = newFeedHost(t, client)
	}
	users := [4]mxid.UserID{"@a:example.org", "@b:example.org", "@c:example.org", "@d:example.org"}
	receivedAll := func() {
		t.Helper()
		all := int64(hosttest.Calls(t, admin)["publish"])
		for _, o := range idle {
			hosttest.Eventually(t, "the host has received all changes", func() bool { return o.feed.Stats().Received == all })
		}
	}
	for _, o := range append(idle[:], writer) {
		hosttest.Eventually(t, "the store is watched", func() bool { return o.feed.Stats().Watching })
	}
	for _, user := range users {
		writer.syncs(user) // which makes the rules
	}
	receivedAll()
	published := hosttest.Calls(t, admin)["publish"]
	_, sentBefore := netBytes(t, admin)
	for n := range idle {
		asked[n].Take()
	}
	for i := range changes {
		writer.put(users[i%len(users)], fmt.Sprint("rule ", i))
	}
	_, sent := netBytes(t, admin)
	each := (sent - sentBefore) / changes
	receivedAll()
	t.Logf("a change makes Redis send %d bytes to 3 hosts", each)
	for _, trips := range asked {
		if sent := trips.Take(); len(sent) > 0 {
			t.Errorf("for %d changes an idle host asked Redis %q", changes, sent)
		}
	}
	if n := hosttest.Calls(t, admin)["publish"] - published; n != changes {
		t.Errorf("%d changes were published in %d messages", changes, n)
	}
	if each > 500 {
		t.Errorf("a change makes Redis send %d bytes", each)
	}
}

func TestARecheckReadsVersionsAndNoRules(t *testing.T) {
	t.Parallel()
	redistest.Require(t)
	const users, rules = 30, 1000
	server := redistest.Single(t)
	admin := server.Client(t)
	o := newFeedHost(t, server.Client(t))
	hosttest.Eventually(t, "the store is watched", func() bool { return o.feed.Stats().Watching })
	var large []mxid.UserID
	for n := range users {
		large = append(large, largeSet(t, server.Client(t), n, rules))
	}
	hosttest.Eventually(t, "the sets are reported", func() bool { return o.feed.Stats().Received >= users })
	for _, user := range large {
		o.syncs(user)
	}
	size := admin.StrLen(t.Context(), hosttest.EventKey("@large0:example.org")).Val()
	_, before := netBytes(t, admin)
	// A new watch checks all users.
	if err := admin.Do(t.Context(), "CLIENT", "KILL", "TYPE", "pubsub").Err(); err != nil {
		t.Fatal(err)
	}
	hosttest.Eventually(t, "all are checked", func() bool { return o.feed.Stats().Rechecked >= users })
	_, after := netBytes(t, admin)
	got := after - before
	t.Logf("%d users with %d KB each: a recheck makes Redis send %d KB", users, size/1000, got/1000)
	if limit := int64(users*2000 + 10_000); got > limit {
		t.Errorf("a recheck of %d users makes Redis send %d bytes, want at most %d", users, got, limit)
	}
}

func largeSet(t *testing.T, client redis.UniversalClient, n, rules int) mxid.UserID {
	t.Helper()
	store, err := rulestore.New(client, rediscommit.DefaultConfig(), rediscommit.Options{})
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

func netBytes(t *testing.T, client redis.UniversalClient) (received, sent int64) {
	t.Helper()
	info, err := client.Info(t.Context(), "stats").Result()
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(info) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		n, _ := strconv.ParseInt(value, 10, 64)
		switch name {
		case "total_net_input_bytes":
			received = n
		case "total_net_output_bytes":
			sent = n
		}
	}
	return received, sent
}
