package main

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/pushfx/pushfx/module/delivery/redisqueue"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/redistest"
	"github.com/pushfx/pushfx/module/stored"
)

// A master and its replica are dead. The master has some users, claims to pushkeys, the format of the queue and a third
// of the shards. Notifications wait for users of all masters.
func TestCommandsShowWhatTheyCanReadBesideALostMaster(t *testing.T) {
	t.Parallel()
	servers := redistest.Cluster(t, 3, 1, "--cluster-require-full-coverage", "no")
	b := newFixture(t, "-redis-mode", "cluster", "-redis", strings.Join(servers.Addrs(), ","))
	d := b.deliver(redisqueue.DefaultShards)
	lost, err := servers.MasterOf(t.Context(), int(b.client.ClusterKeySlot(t.Context(), b.keys.DeliveryFormat()).Val()))
	if err != nil {
		t.Fatal(err)
	}
	isLost := func(key string) bool { return b.whereIs(t.Context(), key) == lost.Addr() }
	var user, lostUser mxid.UserID // user is of another master, and has a pushkey on the lost one
	for n := 0; user == "" || lostUser == ""; n++ {
		some := mxid.UserID(fmt.Sprintf("@user%d:example.org", n))
		b.register(some)
		if digest := aPusher(string(some)).Digest(); !isLost(b.keys.Rules(some)) && isLost(stored.Keys{}.Pushkey(digest)) {
			user = some
		}
		if isLost(b.keys.Rules(some)) {
			lostUser = some
		}
	}
	var more []mxid.UserID
	for n := range 30 {
		more = append(more, mxid.UserID(fmt.Sprintf("@more%d:example.org", n)))
	}
	b.register(more...)
	d.notify(more...)
	d.until("all wait", func() bool {
		return !slices.ContainsFunc(more, func(user mxid.UserID) bool { return d.queues(user)[0].Last != "503" })
	})
	d.stop()
	replicas, err := servers.ReplicasOf(t.Context(), lost)
	if err != nil || len(replicas) != 1 {
		t.Fatal(replicas, err)
	}
	replicas[0].Stop()
	lost.Stop()
	for command, want := range map[string][2]string{ // in the output, and in the error
		"show " + string(user):     {"digest     ", "values on"},
		"show " + string(lostUser): {"could not be read", "values on"},
		"check":                    {"No problems in the data that could be read.", "all keys on"},
		"queues":                   {"USERS", "cannot read shards"},
		"queues -json":             {`"users":`, "cannot read shards"},
		"gateways":                 {"push.example.org", "cannot read shards"},
	} {
		r := b.want(exitFailure, strings.Fields(command)...)
		if !strings.Contains(r.stdout, want[0]) || !strings.Contains(r.stderr, want[1]) || !strings.Contains(r.stderr, lost.Addr()) {
			t.Errorf("%s: got\n%s%s", command, r.stdout, r.stderr)
		}
		if strings.Contains(r.stdout, "missing in the index") || strings.Contains(r.stdout, "without a pusher") ||
			strings.Contains(r.stdout, "nothing is stored") || strings.Contains(r.stdout, "No problems.") || strings.Contains(r.stdout, `"users":0,`) {
			t.Errorf("%s takes what it could not read for a problem:\n%s", command, r.stdout)
		}
	}
}
