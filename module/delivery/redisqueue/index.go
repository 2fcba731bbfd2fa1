package redisqueue

import (
	"cmp"
	"context"
	"fmt"
	"hash/fnv"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/redisclient"
	"github.com/pushfx/pushfx/module/stored"
)

// DefaultShards is how many shards the index has, unless [Index.Shards] is changed.
const DefaultShards = 16

// Index lists in shards, for each gate, the users who have something to send there. It may
// list users who have nothing to send, but each user who has is listed. The methods are for
// tools. It is safe for concurrent use.
type Index struct {
	connection

	// Shards is fixed when the queue is first opened. It may be changed before the first call.
	Shards int

	places   places
	looks    looks
	listings listings
	removals batch[settlement]
}

// places has the master of each shard.
type places struct {
	mu      sync.Mutex
	read    time.Time
	masters []*redis.Client
}

const placesAge = time.Second

// masters returns the master of each shard, nil if it is not known.
func (x *Index) masters(ctx context.Context) []*redis.Client {
	x.places.mu.Lock()
	defer x.places.mu.Unlock()
	if time.Since(x.places.read) > placesAge {
		masters := make([]*redis.Client, x.Shards)
		for shard := range masters {
			masters[shard] = x.pipelines.Master(ctx, x.keys.ShardGates(shard))
		}
		x.places.masters, x.places.read = masters, time.Now()
	}
	return x.places.masters
}

// spread is how many shards of a master list its users, about: so few scripts list those of a
// call. A user has one shard as long as the masters stay, since each further entry of a user makes
// a look claim in vain.
const spread = 4

// shardOf returns a shard for a user: on the user's own master if there is one.
func (x *Index) shardOf(ctx context.Context, user mxid.UserID) (shard int, isNear bool) {
	own := x.pipelines.Master(ctx, x.keys.UserLog(user))
	return findShard(x.masters(ctx), user, func(master *redis.Client) bool { return master == own })
}

func findShard(masters []*redis.Client, user mxid.UserID, isGood func(*redis.Client) bool) (shard int, isFound bool) {
	sum := fnv.New32a()
	_, _ = sum.Write([]byte(user))
	spread := min(spread, len(masters))
	start := int(sum.Sum32()%uint32(spread)) * len(masters) / spread
	for n := range masters {
		if shard := (start + n) % len(masters); isGood(masters[shard]) {
			return shard, true
		}
	}
	return start, false
}

// checkFormat compares the format, unless it could not be read, and stores a missing one.
func (x *Index) checkFormat(ctx context.Context, found *string) error {
	want := stored.DeliveryFormatText(x.Shards)
	switch {
	case found == nil || *found == want:
		return nil
	case *found == "":
		return x.storeFormat(ctx, want)
	}
	others, err := stored.ReadDeliveryFormat(*found)
	if err != nil {
		return err
	}
	return fmt.Errorf("%s: its index has %d shards, not %d: the number is fixed when it is first opened", name, others, x.Shards)
}

func (x *Index) storeFormat(ctx context.Context, want string) error {
	key := x.keys.DeliveryFormat()
	var stored *redis.Cmd
	return unlessNil(x.writer.Do(ctx, command(key, &stored, func(ctx context.Context, to redisclient.Sender) *redis.Cmd {
		return to.Do(ctx, "SET", key, want, "NX")
	}))[0])
}

// listedGates is how many gates of a shard are read.
const listedGates = 2000

// GateNames returns the gates of each shard, at most 2,000 of it. The error names the shards that
// cannot be read, whose gates are missing.
func (x *Index) GateNames(ctx context.Context) (byShard [][]string, err error) {
	names, commands := make([]*redis.StringSliceCmd, x.Shards), make([]*redisclient.Command, x.Shards)
	for shard := range commands {
		key := x.keys.ShardGates(shard)
		commands[shard] = command(key, &names[shard], func(ctx context.Context, to redisclient.Sender) *redis.StringSliceCmd {
			return to.ZRange(ctx, key, 0, listedGates-1)
		})
	}
	byShard = make([][]string, x.Shards)
	var failed []int
	for shard, one := range x.writer.Read(ctx, commands...) {
		if one != nil {
			failed, err = append(failed, shard), one
			continue
		}
		byShard[shard] = names[shard].Val()
	}
	if err != nil {
		err = fmt.Errorf("cannot read shards %v of %d: %w", failed, x.Shards, err)
	}
	return byShard, err
}

// UsersAt returns the users of a gate in a shard.
func (x *Index) UsersAt(ctx context.Context, shard int, gate string) (all []mxid.UserID, err error) {
	for _, key := range []string{x.keys.ShardDue(shard, gate), x.keys.ShardFailing(shard, gate)} {
		const page = 1000
		for from := int64(0); ; from += page {
			var users *redis.StringSliceCmd
			if err := x.read(ctx, command(key, &users, func(ctx context.Context, to redisclient.Sender) *redis.StringSliceCmd {
				return to.ZRange(ctx, key, from, from+page-1)
			})); err != nil {
				return nil, err
			}
			for _, user := range users.Val() {
				all = append(all, mxid.UserID(user))
			}
			if len(users.Val()) < page {
				break
			}
		}
	}
	return all, nil
}

// Listed returns when a look finds users of a gate at the latest, and how many entries the
// index has of each. A user who is not found is not in the map.
func (x *Index) Listed(ctx context.Context, gate string, users []mxid.UserID) (at map[mxid.UserID]time.Time, entries int, err error) {
	names := make([]string, len(users))
	for i, user := range users {
		names[i] = string(user)
	}
	var commands []*redisclient.Command
	gates, scores := make([]*redis.FloatCmd, x.Shards), make([][2]*redis.FloatSliceCmd, x.Shards)
	for shard := range x.Shards {
		key := x.keys.ShardGates(shard)
		commands = append(commands, command(key, &gates[shard], func(ctx context.Context, to redisclient.Sender) *redis.FloatCmd { return to.ZScore(ctx, key, gate) }))
		for n, key := range []string{x.keys.ShardDue(shard, gate), x.keys.ShardFailing(shard, gate)} {
			commands = append(commands, command(key, &scores[shard][n], func(ctx context.Context, to redisclient.Sender) *redis.FloatSliceCmd {
				return to.ZMScore(ctx, key, names...)
			}))
		}
	}
	if err := x.read(ctx, commands...); err != nil {
		return nil, 0, err
	}
	at = map[mxid.UserID]time.Time{}
	for shard := range x.Shards {
		for _, of := range scores[shard] {
			for i, score := range of.Val() {
				if score == 0 {
					continue
				}
				entries++
				found := time.UnixMicro(int64(max(score, gates[shard].Val())))
				if old, known := at[users[i]]; gates[shard].Err() == nil && (!known || found.Before(old)) {
					at[users[i]] = found
				}
			}
		}
	}
	return at, entries, nil
}

// tryWrites returns the error of a master that refuses writes. The write changes nothing.
func (x *Index) tryWrites(ctx context.Context) error {
	commands := make([]*redisclient.Command, x.Shards)
	replies := make([]*redis.IntCmd, x.Shards)
	for shard := range commands {
		key := x.keys.ShardGates(shard)
		commands[shard] = command(key, &replies[shard], func(ctx context.Context, to redisclient.Sender) *redis.IntCmd {
			return to.ZAddXX(ctx, key, redis.Z{Member: ""})
		})
	}
	return cmp.Or(x.writer.Do(ctx, commands...)...)
}
