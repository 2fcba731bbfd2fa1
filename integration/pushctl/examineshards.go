package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/delivery"
	"github.com/pushfx/pushfx/module/delivery/content"
	"github.com/pushfx/pushfx/module/stored"
)

var (
	strayShard = kind{"shard above the number of shards", byRepair}
	strayEvent = kind{"large event in such a shard", byHand}
)

// strayShards collects the shards with numbers that hosts do not use, because they have fewer shards.
type strayShards struct {
	mu     sync.Mutex
	shards int // number of the hosts' shards; 0: unknown
	found  map[int]bool
}

func (s *strayShards) add(key stored.Key) {
	isLasting := key.Kind.OfShard() && key.Kind != stored.AsideKey && !slices.Contains(expiring, key.Kind)
	if isLasting && s.shards > 0 && key.Shard >= s.shards {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.found[key.Shard] = true
	}
}

// problems returns the problems of the shards.
func (s *strayShards) problems(ctx context.Context, b *backend) (all []problem, err error) {
	for _, shard := range slices.Sorted(maps.Keys(s.found)) {
		pushers, events := 0, 0
		if err := b.queue.Backlogs(ctx, shard, func(backlog module.Backlog) bool {
			if backlog.Claim.Target.IsFanOut() {
				events++
			} else {
				pushers++
			}
			return true
		}); err != nil {
			return nil, fmt.Errorf("read shard %d: %w", shard, err)
		}
		subject := fmt.Sprint("shard ", shard)
		if events > 0 {
			all = append(all, problem{kind: strayEvent, subject: subject, detail: fmt.Sprint(events, " rooms")})
		}
		if pushers > 0 || events == 0 {
			all = append(all, problem{
				kind: strayShard, subject: subject, detail: fmt.Sprint(pushers, " pushers"),
				repair: func(ctx context.Context) error { return b.moveShard(ctx, shard, s.shards) },
			})
		}
	}
	return all, nil
}

// moveShard moves the pushers' backlogs of a shard to the shards where hosts look for them.
func (b *backend) moveShard(ctx context.Context, shard, shards int) error {
	var backlogs []module.Backlog
	if err := b.queue.Backlogs(ctx, shard, func(backlog module.Backlog) bool {
		if !backlog.Claim.Target.IsFanOut() {
			backlogs = append(backlogs, backlog)
		}
		return true
	}); err != nil {
		return err
	}
	var left error
	for _, backlog := range backlogs {
		w, err := delivery.ReadBacklog(backlog)
		if err != nil {
			left = errByHand
			continue
		}
		_, err = b.queue.Move(ctx, backlog, content.UserDigest(w.User), delivery.ShardOf(w.User, shards))
		switch {
		case errors.Is(err, module.ErrFenced):
			left = errChanged
		case err != nil:
			return err
		}
	}
	if left != nil {
		return left
	}
	return b.queue.DropShard(ctx, shard)
}
