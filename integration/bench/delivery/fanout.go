package delivery

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/match"
	"github.com/pushfx/pushfx/module/pushrule"
	"github.com/pushfx/pushfx/module/stored"
)

const (
	largeRoom = 100_000 // members
	repeats   = 10      // of what takes milliseconds
)

// cost is what something took of Redis.
type cost struct {
	cpu    time.Duration
	memory int64
}

// redisCost returns what the CPU and the data of Redis grow by.
func (b *bench) redisCost(ctx context.Context, do func() error) (c cost, err error) {
	cpu, _, err := b.RedisCPU(ctx)
	if err != nil {
		return c, err
	}
	memory, err := b.dataset(ctx)
	if err != nil {
		return c, err
	}
	if err := do(); err != nil {
		return c, err
	}
	after, _, err := b.RedisCPU(ctx)
	if err != nil {
		return c, err
	}
	grown, err := b.dataset(ctx)
	return cost{after - cpu, grown - memory}, err
}

// dataset is how many bytes Redis has for data.
func (b *bench) dataset(ctx context.Context) (int64, error) {
	info, err := b.Client.InfoMap(ctx, "memory").Result()
	if err != nil {
		return 0, err
	}
	return strconv.ParseInt(info["Memory"]["used_memory_dataset"], 10, 64)
}

// measureFanOut hands over events for a large room, and then adds the same entries
// with nothing but XADD.
func (b *bench) measureFanOut(ctx context.Context) error {
	one, err := b.decide(ctx, 1)
	if err != nil {
		return err
	}
	decisions := make(module.Decisions, largeRoom)
	for i := range decisions {
		decisions[i] = module.Decision{User: userName(i), Result: one[0].Result}
	}
	handed, err := b.redisCost(ctx, func() error {
		for n := range repeats {
			if err := b.push.Notifier.Notify(ctx, message(n), "", decisions); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	entries, err := b.firstEntries(ctx)
	if err != nil {
		return err
	}
	bare, err := b.redisCost(ctx, func() error { return b.addBare(ctx, entries) })
	if err != nil {
		return err
	}
	b.table.add(row{
		"CPU of Redis for an event to 100,000 pushers", ms(handed.cpu / repeats), ms(bare.cpu/repeats) + " (bare XADDs)",
		times(by(handed.cpu, bare.cpu)), "2",
	})
	b.table.add(row{
		"memory of Redis for it", megabytes(handed.memory / repeats), megabytes(bare.memory/repeats) + " (bare XADDs)",
		times(by(handed.memory, bare.memory)), "1.5",
	})
	return nil
}

// firstEntries returns the data of the first entry in the log of each shard.
func (b *bench) firstEntries(ctx context.Context) ([]any, error) {
	entries := make([]any, config().Delivery.Shards)
	for n := range entries {
		log, err := b.Client.XRangeN(ctx, stored.Keys{}.ShardLog(n), "-", "+", 1).Result()
		if err != nil || len(log) == 0 {
			return nil, fmt.Errorf("the log of shard %d has %d entries: %w", n, len(log), err)
		}
		entries[n] = log[0].Values[stored.LogData]
	}
	return entries, nil
}

func (b *bench) addBare(ctx context.Context, entries []any) error {
	for range repeats {
		_, err := b.Client.Pipelined(ctx, func(p redis.Pipeliner) error {
			for n, data := range entries {
				p.XAdd(ctx, &redis.XAddArgs{Stream: fmt.Sprintf("bare:%d", n), Values: []any{stored.LogData, data}})
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// measureDecide decides for a large room again and again, and evaluates for it with
// rules that are there already.
func (b *bench) measureDecide(ctx context.Context) error {
	ctx, stop := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		b.push.Run(ctx)
	}()
	defer func() { <-ended }()
	defer stop()
	asked := &countingHook{}
	b.Client.AddHook(asked)
	room := members(0, largeRoom)
	marked := context.WithValue(ctx, countedKey{}, true)
	if err := b.decideUntilCached(marked, asked, room); err != nil {
		return err
	}
	cache := match.NewCache(config().Delivery.MaxCachedRules)
	ready := members(0, largeRoom)
	for i := range ready {
		ready[i].Rules = cache.Rules(ready[i].User, pushrule.ServerDefault(ready[i].User))
	}
	before := asked.commands.Load()
	var decided, evaluated []time.Duration
	for n := range repeats {
		began := time.Now()
		if _, err := b.push.Notifier.Decide(marked, message(n), room); err != nil {
			return err
		}
		decided = append(decided, time.Since(began))
		began = time.Now()
		if err := evaluate(ctx, message(n), ready); err != nil {
			return err
		}
		evaluated = append(evaluated, time.Since(began))
	}
	reads := asked.commands.Load() - before
	b.table.add(row{
		"Decide for 100,000 members", ms(median(decided)), ms(median(evaluated)) + " (EvaluateAll)",
		times(by(median(decided), median(evaluated))), "10",
	})
	b.table.add(row{"commands to Redis for that", strconv.FormatInt(reads, 10), "", "", "0"})
	return nil
}

// decideUntilCached decides for a room until no rules are read for it: caches need a
// watch that lasts.
func (b *bench) decideUntilCached(ctx context.Context, asked *countingHook, room []match.Member) error {
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); {
		before := asked.commands.Load()
		if _, err := b.push.Notifier.Decide(ctx, message(0), room); err != nil {
			return err
		}
		if asked.commands.Load() == before {
			return nil
		}
	}
	return errors.New("rules are read each time")
}

func evaluate(ctx context.Context, e module.Event, room []match.Member) error {
	event, err := match.ReadEvent(e.JSON)
	if err != nil {
		return err
	}
	_, err = match.EvaluateAll(ctx, event, e.Room, room)
	return err
}
