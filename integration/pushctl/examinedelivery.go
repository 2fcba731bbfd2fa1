package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"

	"github.com/redis/go-redis/v9"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/delivery"
	"github.com/pushfx/pushfx/module/stored"
)

var (
	unreadableEntry   = kind{"unreadable notifications", byHost}
	unreadableGateway = kind{"unreadable held gateway", byHand}
	lostBacklog       = kind{"notifications that are never due", byRepair}
)

// expiring are the kinds of delivery's keys that expire.
var expiring = []stored.KeyKind{stored.SeenKey, stored.SentKey, stored.ShardSummaryKey}

// otherQueue returns an error if the queue is of another version, or cannot be asked.
func (b *backend) otherQueue(ctx context.Context) (other, err error) {
	ctx, cancel := context.WithTimeout(ctx, replyTimeout)
	defer cancel()
	text, err := b.client.Get(ctx, b.keys.DeliveryFormat()).Result()
	switch {
	case err == nil:
		_, other = stored.ReadDeliveryFormat(text)
		return other, nil
	case errors.Is(err, redis.Nil) || redis.HasErrorPrefix(err, "WRONGTYPE"):
		return nil, nil
	}
	return nil, fmt.Errorf("read %s: %w", b.keys.DeliveryFormat(), err)
}

// examineDelivery looks for unreadable values among the keys of delivery. Other, if any, says
// that the queue is of another version, whose keys this version does not know.
func (s *scanner) examineDelivery(ctx context.Context, node *redis.Client, x *examination, names []string, other error) error {
	var lasting []string
	for _, name := range names {
		key := s.keys.Parse(name)
		if key.Kind == stored.OtherVersionKey || other != nil && key.Kind.OfDelivery() {
			if key.Kind == stored.DeliveryFormatKey {
				x.addOtherVersion(value{name: name}, other)
			} else {
				x.problems = append(x.problems, problem{kind: otherVersion, subject: name})
			}
			continue
		}
		if key.Kind == stored.PendingKey || key.Kind.OfDelivery() && !slices.Contains(expiring, key.Kind) {
			lasting = append(lasting, name)
		}
		err := s.examineDeliveryKey(ctx, node, x, name, key)
		v := value{name: name, Key: key}
		if failed := v.fill(redis.NewStatusResult("", err)); failed != nil {
			return fmt.Errorf("read %s: %w", name, failed)
		}
		if v.state == isOtherType || v.state == isElsewhere {
			s.examineValue(x, node, v)
		}
	}
	return s.examineExpiries(ctx, node, x, lasting)
}

func (s *scanner) examineDeliveryKey(ctx context.Context, node *redis.Client, x *examination, name string, key stored.Key) error {
	switch key.Kind {
	case stored.DeliveryFormatKey:
		return node.Get(ctx, name).Err()
	case stored.DeliveryGatewaysKey:
		return x.examineGateways(ctx, node, name)
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
		if found && !(module.Target{Name: key.Target}).IsFanOut() {
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
