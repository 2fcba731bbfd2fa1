package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/redis/go-redis/v9"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/delivery"
	"github.com/pushfx/pushfx/module/stored"
)

var (
	unreadableFormat  = kind{"queue in an unknown format", byHand}
	oldDelivery       = kind{"queue in an outdated format", byRepair}
	unreadableEntry   = kind{"unreadable notifications", byHost}
	unreadableGateway = kind{"unreadable held gateway", byHand}
	lostBacklog       = kind{"notifications that are never due", byRepair}
)

// examineDelivery looks for unreadable values among the keys of delivery.
func (s *scanner) examineDelivery(ctx context.Context, node *redis.Client, x *examination, names []string) error {
	for _, name := range names {
		key := s.keys.Parse(name)
		err := s.examineDeliveryKey(ctx, node, x, name, key)
		v := value{name: name, Key: key}
		if failed := v.fill(redis.NewStatusResult("", err)); failed != nil {
			return fmt.Errorf("read %s: %w", name, failed)
		}
		if v.state == isOtherType || v.state == isElsewhere {
			s.examineValue(x, node, v)
		}
	}
	return nil
}

func (s *scanner) examineDeliveryKey(ctx context.Context, node *redis.Client, x *examination, name string, key stored.Key) error {
	switch key.Kind {
	case stored.DeliveryFormatKey:
		return x.examineFormat(ctx, node, name)
	case stored.DeliveryGatewaysKey:
		return x.examineGateways(ctx, node, name)
	case stored.OldDeliveryKey:
		x.problems = append(x.problems, problem{
			kind: oldDelivery, subject: name,
			repair: func(ctx context.Context) error { return s.client.Del(ctx, name).Err() },
		})
	case stored.BacklogKey:
		return s.examineBacklog(ctx, node, x, name, key)
	case stored.ShardDueKey:
		return node.ZCard(ctx, name).Err()
	case stored.ShardTroubleKey:
		n, err := node.HLen(ctx, name).Result()
		x.Failing += n
		return err
	case stored.ShardBytesKey, stored.TextsKey:
		return node.HLen(ctx, name).Err()
	}
	return nil
}

func (x *examination) examineFormat(ctx context.Context, node *redis.Client, name string) error {
	text, err := node.Get(ctx, name).Result()
	if _, found := stored.ReadDeliveryFormat(text); err == nil && !found {
		p := problem{kind: unreadableFormat, subject: name, detail: text}
		if stored.IsOldDeliveryFormat(text) {
			p.kind = oldDelivery
			p.repair = func(ctx context.Context) error { return node.Del(ctx, name).Err() }
		}
		x.problems = append(x.problems, p)
	}
	return err
}

func (x *examination) examineGateways(ctx context.Context, node *redis.Client, name string) error {
	all, err := node.HGetAll(ctx, name).Result()
	for gateway, text := range all {
		if _, failed := strconv.ParseInt(text, 10, 64); failed != nil {
			x.problems = append(x.problems, problem{kind: unreadableGateway, subject: name, detail: gateway})
		}
	}
	return err
}

// examineBacklog reads a backlog. All its unreadable entries are one problem.
func (s *scanner) examineBacklog(ctx context.Context, node *redis.Client, x *examination, name string, key stored.Key) error {
	entries, err := node.LRange(ctx, name, 0, -1).Result()
	if err != nil {
		return err
	}
	unreadable, first := 0, ""
	for i, text := range entries {
		e, found := stored.ReadBacklogEntry(text)
		if found && key.Target != module.FanOut {
			_, err := delivery.ReadBacklog(module.Backlog{First: module.Notification{Meta: e.Meta}})
			found = err == nil
		}
		if !found {
			unreadable++
			first = cmp.Or(first, strconv.Itoa(i))
		}
	}
	x.Waiting += int64(len(entries))
	if unreadable > 0 {
		x.problems = append(x.problems, problem{
			kind: unreadableEntry, subject: name, detail: fmt.Sprintf("%d entries, the first at index %s", unreadable, first),
		})
	}
	due := s.keys.ShardDue(key.Shard)
	isLost := func(ctx context.Context) (bool, error) {
		err := s.client.ZScore(ctx, due, key.Target).Err()
		if errors.Is(err, redis.Nil) {
			n, err := s.client.Exists(ctx, name).Result()
			return n > 0, err
		}
		return false, err
	}
	lost, err := isLost(ctx)
	if lost {
		x.unconfirmed = append(x.unconfirmed, problem{
			kind: lostBacklog, subject: name, recheck: isLost,
			repair: func(ctx context.Context) error {
				return s.client.ZAddNX(ctx, due, redis.Z{Score: 1, Member: key.Target}).Err()
			},
		})
	}
	return err
}
