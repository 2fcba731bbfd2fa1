package main

import (
	"slices"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/pushfx/pushfx/module/redisclient"
	"github.com/pushfx/pushfx/module/redistest"
)

// The first slot of a new master moves. The master that it comes from forgets the move, as a replica would that takes
// over.
func TestCommandsSeeKeysOnAMasterWithoutSlots(t *testing.T) {
	t.Parallel()
	servers := redistest.Cluster(t, 3, 0)
	b := newFixture(t, "-redis-mode", "cluster", "-redis", strings.Join(servers.Addrs(), ","))
	b.register(alice, bob)
	slot := redisclient.SlotOf(b.keys.Rules(alice))
	source, err := servers.MasterOf(t.Context(), slot)
	if err != nil {
		t.Fatal(err)
	}
	newcomer := servers.Newcomer(t)
	move, err := servers.BeginMove(t.Context(), slot, newcomer)
	if err != nil {
		t.Fatal(err)
	}
	if err := move.MoveKeys(t.Context(), b.keys.Rules(alice), b.keys.Pushers(alice)); err != nil {
		t.Fatal(err)
	}
	b.want(exitOK, "check")
	b.complains("exported 4 values", exitOK, "export", "-")
	b.says("digest     ", exitOK, "show", string(alice))
	if err := source.Client(t).Do(t.Context(), "CLUSTER", "SETSLOT", slot, "STABLE").Err(); err != nil {
		t.Fatal(err)
	}
	r := b.want(exitProblems, "check", "-list")
	for _, key := range []string{b.keys.Rules(alice), b.keys.Pushers(alice)} {
		if !strings.Contains(r.stdout, "key on a node without its slot\t"+key+"\t"+newcomer.Addr()) {
			t.Errorf("%s is not named:\n%s", key, r.stdout)
		}
	}
	if r := b.want(exitProblems, "export", "-"); !strings.Contains(r.stderr, "exported 2 values") || !strings.Contains(r.stderr, "skipped 2 keys") {
		t.Errorf("got %s", r.stderr)
	}
	if r := b.want(exitFailure, "show", string(alice)); !strings.Contains(r.stderr, "another master has the key") || strings.Contains(r.stderr, "no push rules") {
		t.Errorf("got %s%s", r.stdout, r.stderr)
	}
	newcomer.Stop()
	r = b.want(exitFailure, "check")
	if !strings.Contains(r.stderr, "all keys on "+newcomer.Addr()) {
		t.Errorf("got %s%s", r.stdout, r.stderr)
	}
}

func TestTheIndexOfAShardThatNoHostLooksAtIsNamed(t *testing.T) {
	t.Parallel()
	b := newFixture(t, "-redis", redistest.Single(t).Addr())
	if err := b.queue.Open(t.Context()); err != nil {
		t.Fatal(err)
	}
	b.register(alice)
	shards := b.queue.Index.Shards
	for _, key := range []string{b.keys.ShardGates(shards - 1), b.keys.ShardGates(shards)} {
		if err := b.client.ZAdd(t.Context(), key, redis.Z{Score: 1, Member: "gate"}).Err(); err != nil {
			t.Fatal(err)
		}
	}
	r := b.want(exitProblems, "check", "-list")
	lines := slices.DeleteFunc(strings.Split(r.stdout, "\n"), func(line string) bool { return !strings.HasPrefix(line, "index of a shard that no host looks at\t") })
	if len(lines) != 1 || !strings.Contains(lines[0], b.keys.ShardGates(shards)) {
		t.Errorf("got %q", lines)
	}
}
