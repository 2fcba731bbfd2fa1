package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/delivery"
	"github.com/pushfx/pushfx/module/delivery/content"
	"github.com/pushfx/pushfx/module/stored"
)

var (
	unreadableEntry   = kind{"unreadable notifications", byHost}
	unreadableGateway = kind{"unreadable held gateway", byHand}
	lostBacklog       = kind{"notifications that are never due", byRepair}
	lateBacklog       = kind{"notifications that are due too late", byRepair}
	strayText         = kind{"texts without a notification", byRepair}
)

// expiring has the kinds of delivery keys that expire.
var expiring = []stored.KeyKind{stored.SeenKey, stored.SentKey, stored.ShardSummaryKey}

// readFormat returns the number of shards, 0 if it is unknown. Other is an error if another version of the module wrote
// the queue.
func (b *backend) readFormat(ctx context.Context) (shards int, other, err error) {
	ctx, cancel := context.WithTimeout(ctx, replyTimeout)
	defer cancel()
	text, err := b.client.Get(ctx, b.keys.DeliveryFormat()).Result()
	switch {
	case err == nil:
		shards, other = stored.ReadDeliveryFormat(text)
		return shards, other, nil
	case errors.Is(err, redis.Nil) || redis.HasErrorPrefix(err, "WRONGTYPE"):
		return 0, nil, nil
	}
	return 0, nil, fmt.Errorf("read %s: %w", b.keys.DeliveryFormat(), err)
}

// examineDelivery looks for unreadable values in the delivery keys. Other is not nil if another version wrote the
// queue; this version does not know the keys of that queue.
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
		s.strays.add(key)
		if key.Kind == stored.PendingKey || key.Kind.OfDelivery() && !slices.Contains(expiring, key.Kind) {
			lasting = append(lasting, name)
		}
		err := s.examineDeliveryKey(ctx, node, x, name, key)
		v := value{name: name, Key: key}
		if failed := v.fill(redis.NewStatusResult("", err)); failed != nil {
			return fmt.Errorf("read %s: %w", name, failed)
		}
		switch {
		case v.state == isOtherType || key.Kind == stored.AsideKey:
			x.problems = append(x.problems, problem{kind: wrongType, subject: name, detail: "DEL removes it"})
		case v.state == isElsewhere:
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
	case stored.ShardFirstKey:
		return s.examineFirst(ctx, node, x, name, key)
	case stored.MoreKey:
		return s.examineMore(ctx, node, x, name, key)
	case stored.DueKey:
		return s.examineDue(ctx, node, x, name, key)
	case stored.ShardGatesKey:
		return node.ZCard(ctx, name).Err()
	case stored.ShardTroubleKey:
		n, err := node.HLen(ctx, name).Result()
		x.Failing += n
		return err
	case stored.ShardTextsKey:
		return s.examineTexts(ctx, node, x, name, key)
	case stored.ShardBytesKey:
		return node.HLen(ctx, name).Err()
	}
	return nil
}

// scanHash calls do with the pairs of fields and values of a hash, a page at a time. A pair may come twice.
func scanHash(ctx context.Context, node *redis.Client, name string, do func(pairs []string) error) error {
	for cursor := uint64(0); ; {
		pairs, next, err := node.HScan(ctx, name, cursor, "", pageSize).Result()
		if err == nil {
			err = do(pairs)
		}
		if cursor = next; err != nil || cursor == 0 {
			return err
		}
	}
}

// examineTexts looks for texts that no host removes.
func (s *scanner) examineTexts(ctx context.Context, node *redis.Client, x *examination, name string, key stored.Key) error {
	var fields, all []string
	if err := scanHash(ctx, node, name, func(pairs []string) error {
		for i := 0; i < len(pairs); i += 2 { // each field and its text
			fields = append(fields, pairs[i])
		}
		return nil
	}); err != nil {
		return err
	}
	slices.Sort(fields) // groups the fields of a backlog, so that it is read once
	for part := range slices.Chunk(slices.Compact(fields), pageSize) {
		stray, err := s.queue.StrayTexts(ctx, key.Shard, part)
		if err != nil {
			return err
		}
		all = append(all, stray...)
	}
	if len(all) > 0 {
		x.unconfirmed = append(x.unconfirmed, problem{
			kind: strayText, subject: name, detail: fmt.Sprintf("%d texts", len(all)),
			recheck: func(ctx context.Context) (bool, error) {
				stray, err := s.queue.StrayTexts(ctx, key.Shard, all)
				return len(stray) > 0, err
			},
			repair: func(ctx context.Context) error {
				_, err := s.queue.DropTexts(ctx, key.Shard, all)
				return err
			},
		})
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

// entries are the entries of a key. All unreadable entries of a key are one problem.
type entries struct {
	unreadable int
	first      string
}

func (e *entries) examine(at, target, text string) {
	entry, found := stored.ReadBacklogEntry(text)
	if found && !(module.Target{Name: target}).IsFanOut() {
		_, err := delivery.ReadBacklog(module.Backlog{First: module.Notification{Meta: entry.Meta}})
		found = err == nil
	}
	if !found {
		e.unreadable++
		e.first = cmp.Or(e.first, at)
	}
}

func (e *entries) problems(name string) []problem {
	if e.unreadable == 0 {
		return nil
	}
	return []problem{{
		kind: unreadableEntry, subject: name, detail: fmt.Sprintf("%d entries, the first at %s", e.unreadable, printable(e.first)),
	}}
}

// examineFirst checks the record of the first notification in each backlog of a shard.
func (s *scanner) examineFirst(ctx context.Context, node *redis.Client, x *examination, name string, key stored.Key) error {
	var all entries
	err := scanHash(ctx, node, name, func(pairs []string) error {
		byGate := map[string][]string{}
		for i := 0; i+1 < len(pairs); i += 2 { // each target and its record
			gate, entry, _ := stored.ReadFirstEntry(pairs[i+1])
			all.examine(pairs[i], pairs[i], entry)
			byGate[gate] = append(byGate[gate], pairs[i])
			x.Waiting++
		}
		return s.examineListed(ctx, node, x, key.Shard, byGate)
	})
	if err != nil {
		return err
	}
	x.problems = append(x.problems, all.problems(name)...)
	return nil
}

// examineListed looks for backlogs that are missing from the list of their gate.
func (s *scanner) examineListed(ctx context.Context, node *redis.Client, x *examination, shard int, byGate map[string][]string) error {
	scores := map[string]*redis.FloatSliceCmd{}
	_, err := node.Pipelined(ctx, func(p redis.Pipeliner) error {
		for gate, targets := range byGate {
			scores[gate] = p.ZMScore(ctx, s.keys.Due(shard, gate), targets...)
		}
		return nil
	})
	var refusal redis.Error // the key has another type or is on another master: another examination reports this
	if err != nil && !errors.As(err, &refusal) {
		return err
	}
	for gate, targets := range byGate {
		for i, score := range scores[gate].Val() {
			if score == 0 {
				x.unconfirmed = append(x.unconfirmed, s.lost(shard, targets[i], gate))
			}
		}
	}
	return nil
}

// lost returns the problem of a backlog that is missing from its gate's list, or has lost its first notification.
func (s *scanner) lost(shard int, target, gate string) problem {
	first, due, more := s.keys.ShardFirst(shard), s.keys.Due(shard, gate), s.keys.More(shard, target)
	return problem{
		kind: lostBacklog, subject: more, recheck: func(ctx context.Context) (bool, error) {
			record, err := s.client.HGet(ctx, first, target).Result()
			if errors.Is(err, redis.Nil) {
				n, err := s.client.Exists(ctx, more).Result()
				return n > 0, err
			}
			if is, _, _ := stored.ReadFirstEntry(record); err != nil || is != gate {
				return false, err
			}
			err = s.client.ZScore(ctx, due, target).Err()
			return errors.Is(err, redis.Nil), unlessNil(err)
		},
		repair: func(ctx context.Context) error {
			_, err := s.queue.List(ctx, shard, target, gate)
			return err
		},
	}
}

func unlessNil(err error) error {
	if errors.Is(err, redis.Nil) {
		return nil
	}
	return err
}

// examineMore checks the notifications of a backlog after the first one.
func (s *scanner) examineMore(ctx context.Context, node *redis.Client, x *examination, name string, key stored.Key) error {
	texts, err := node.LRange(ctx, name, 0, -1).Result()
	if err != nil {
		return err
	}
	x.Waiting += int64(len(texts))
	var all entries
	for i, text := range texts {
		all.examine("index "+strconv.Itoa(i), key.Target, text)
	}
	x.problems = append(x.problems, all.problems(name)...)
	gate := "repaired" // a placeholder: the host that sends the backlog knows its gate
	if (module.Target{Name: key.Target}).IsFanOut() {
		gate = module.FanOut
	}
	known, err := node.HExists(ctx, s.keys.ShardFirst(key.Shard), key.Target).Result()
	if err == nil && !known && len(texts) > 0 {
		x.unconfirmed = append(x.unconfirmed, s.lost(key.Shard, key.Target, gate))
	}
	return nil
}

// maxClockSkew is the maximum difference between the clocks of a failed master and its successor.
const maxClockSkew = time.Minute

// examineDue looks for a gate that no host finds, or whose backlogs no host finds in time.
func (s *scanner) examineDue(ctx context.Context, node *redis.Client, x *examination, name string, key stored.Key) error {
	gates, limit := s.keys.ShardGates(key.Shard), x.now.Add(content.MaxWait+maxClockSkew).UnixMicro()
	late, err := node.ZCount(ctx, name, fmt.Sprint("(", limit), "+inf").Result()
	if err != nil {
		return err
	}
	isLost := func(ctx context.Context) (bool, error) {
		err := s.client.ZScore(ctx, gates, key.Target).Err()
		if !errors.Is(err, redis.Nil) {
			return false, err
		}
		n, err := s.client.Exists(ctx, name).Result()
		return n > 0, err
	}
	at, err := node.ZScore(ctx, gates, key.Target).Result()
	switch {
	case errors.Is(err, redis.Nil):
		x.unconfirmed = append(x.unconfirmed, problem{
			kind: lostBacklog, subject: name, recheck: isLost,
			repair: func(ctx context.Context) error {
				return s.client.ZAddNX(ctx, gates, redis.Z{Score: 1, Member: key.Target}).Err()
			},
		})
	case late > 0 || err == nil && int64(at) > limit:
		x.problems = append(x.problems, problem{
			kind: lateBacklog, subject: name, detail: fmt.Sprintf("%d pushers", late),
			repair: func(ctx context.Context) error {
				_, err := s.queue.Hasten(ctx, key.Shard, key.Target, content.MaxWait+maxClockSkew)
				return err
			},
		})
	}
	return nil
}
