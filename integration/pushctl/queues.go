package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/pushfx/pushfx/module/stored"
)

func queuesCommand() command {
	return command{
		name:    "queues",
		summary: "shows what is to be delivered, and who does it",
		about: "Shows the shards of the queue of notifications, of hosts with pushfx.Delivery: who owns each, what waits\n" +
			"in its log, how many pushers are in trouble, and how many events the log has lost since too many waited.\n" +
			"A shard without an owner is a problem.",
		setup: forDelivery(func(f *flags, c *deliveryCall) { c.json = f.json() }, func(ctx context.Context, c *deliveryCall) error {
			ctx, cancel := context.WithTimeout(ctx, replyLimit)
			defer cancel()
			shards, err := c.shardCount(ctx)
			if err != nil {
				return err
			}
			return c.showQueues(ctx, shards)
		}),
	}
}

var errNoQueue = errors.New("there is no queue: no host has started with pushfx.Delivery")

// shardCount is how many shards the queue has.
func (b *backend) shardCount(ctx context.Context) (int, error) {
	text, err := b.client.Get(ctx, b.keys.DeliveryFormat()).Result()
	if errors.Is(err, redis.Nil) {
		return 0, fmt.Errorf("%w here, with the prefix %q", errNoQueue, b.keys.Prefix)
	}
	if err != nil {
		return 0, fmt.Errorf("read the queue: %w", err)
	}
	shards, found := stored.ReadDeliveryFormat(text)
	if !found {
		return 0, fmt.Errorf("the queue has a form that this pushctl cannot read: %q", text)
	}
	return shards, nil
}

// shownShard is a shard of the queue.
type shownShard struct {
	Shard   int     `json:"shard"`
	Owner   string  `json:"owner"` // empty if there is none
	Entries int64   `json:"entries"`
	Oldest  float64 `json:"oldest_seconds"` // 0 without entries
	Held    int64   `json:"pushers_in_trouble"`
	Evicted int64   `json:"evicted"`
}

// readShards reads all shards, in one pipeline for each node.
func (b *backend) readShards(ctx context.Context, shards int) ([]shownShard, error) {
	states, lengths := make([]*redis.SliceCmd, shards), make([]*redis.IntCmd, shards)
	oldest, held := make([]*redis.XMessageSliceCmd, shards), make([]*redis.IntCmd, shards)
	_, err := b.client.Pipelined(ctx, func(p redis.Pipeliner) error {
		for n := range shards {
			states[n] = p.HMGet(ctx, b.keys.ShardState(n), stored.StateOwner, stored.StateEnds, stored.StateEvicted)
			lengths[n] = p.XLen(ctx, b.keys.ShardLog(n))
			oldest[n] = p.XRangeN(ctx, b.keys.ShardLog(n), "-", "+", 1)
			held[n] = p.HLen(ctx, b.keys.ShardHeld(n))
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read the queue: %w", err)
	}
	now, all := b.now(), make([]shownShard, shards)
	for n := range all {
		all[n] = shownShard{Shard: n, Entries: lengths[n].Val(), Held: held[n].Val()}
		state := states[n].Val()
		ends, _ := state[1].(string)
		if until, err := strconv.ParseInt(ends, 10, 64); err == nil && until > now.UnixMilli() {
			all[n].Owner, _ = state[0].(string)
		}
		evicted, _ := state[2].(string)
		all[n].Evicted, _ = strconv.ParseInt(evicted, 10, 64)
		if first := oldest[n].Val(); len(first) > 0 {
			milliseconds, _, _ := stored.ReadPosition(first[0].ID) // Redis makes positions
			all[n].Oldest = max(0, now.Sub(time.UnixMilli(milliseconds)).Seconds())
		}
	}
	return all, nil
}

// showQueues shows all shards; errProblems where one has no owner.
func (c *deliveryCall) showQueues(ctx context.Context, shards int) error {
	all, err := c.readShards(ctx, shards)
	if err != nil {
		return err
	}
	if *c.json {
		err = writeJSON(c.out, all)
	} else {
		err = writeShards(c.out, all)
	}
	if err == nil && slices.ContainsFunc(all, func(s shownShard) bool { return s.Owner == "" }) {
		return errProblems
	}
	return err
}

// writeShards writes a line for each owner, and for each shard of which there is
// something to tell.
func writeShards(w io.Writer, all []shownShard) error {
	owners := map[string]int{}
	for _, s := range all {
		owners[cmp.Or(s.Owner, "nobody")]++
	}
	var hosts, shards [][]string
	for _, owner := range slices.Sorted(maps.Keys(owners)) {
		hosts = append(hosts, []string{printable(owner), fmt.Sprintf("%d of %d", owners[owner], len(all))})
	}
	for _, s := range all {
		if s.Entries+s.Held+s.Evicted > 0 || s.Owner == "" {
			shards = append(shards, []string{
				strconv.Itoa(s.Shard), printable(cmp.Or(s.Owner, "nobody")), strconv.FormatInt(s.Entries, 10),
				time.Duration(s.Oldest * float64(time.Second)).Round(time.Millisecond).String(),
				strconv.FormatInt(s.Held, 10), strconv.FormatInt(s.Evicted, 10),
			})
		}
	}
	if err := writeTable(w, []string{"OWNER", "SHARDS"}, hosts); err != nil {
		return err
	}
	fmt.Fprintln(w)
	return writeTable(w, []string{"SHARD", "OWNER", "ENTRIES", "OLDEST", "PUSHERS IN TROUBLE", "EVICTED"}, shards)
}
