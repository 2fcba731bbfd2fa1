package main

import (
	"cmp"
	"context"
	"fmt"

	"github.com/redis/go-redis/v9"

	"github.com/pushfx/pushfx/module/delivery"
	"github.com/pushfx/pushfx/module/stored"
)

// examineDelivery looks for what no host can read among the keys of delivery.
func (s *scanner) examineDelivery(ctx context.Context, node *redis.Client, x *examination, names []string) error {
	for _, name := range names {
		key := s.keys.Parse(name)
		p := problem{name: name, key: name, node: node, shard: key.Shard}
		var err error
		switch key.Kind {
		case stored.DeliveryFormatKey:
			err = again(ctx, func(ctx context.Context) error { return x.examineFormat(ctx, node, p) })
		case stored.DeliveryGatewaysKey:
			err = again(ctx, func(ctx context.Context) error { return x.examineGateways(ctx, node, p) })
		case stored.ShardLogKey:
			err = s.examineLog(ctx, node, x, p)
		case stored.ShardHeldKey:
			err = x.examineHeld(ctx, node, p)
		}
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

func (x *examination) examineFormat(ctx context.Context, node *redis.Client, p problem) error {
	text, err := node.Get(ctx, p.key).Result()
	if _, found := stored.ReadDeliveryFormat(text); err == nil && !found {
		p.kind, p.detail = unreadableFormat, text
		x.sure = append(x.sure, p)
	}
	return err
}

func (x *examination) examineGateways(ctx context.Context, node *redis.Client, p problem) error {
	all, err := node.HGetAll(ctx, p.key).Result()
	for name, text := range all {
		if _, found := stored.ReadGateway(text); !found {
			p.kind, p.detail = unreadableGateway, name
			x.sure = append(x.sure, p)
		}
	}
	return err
}

// examineLog reads a log in pages, as long as it is now: all that cannot be read in
// it is one problem.
func (s *scanner) examineLog(ctx context.Context, node *redis.Client, x *examination, p problem) error {
	var length int64
	err := again(ctx, func(ctx context.Context) (err error) {
		length, err = node.XLen(ctx, p.key).Result()
		return err
	})
	unreadable, first := 0, ""
	for from, read := "-", int64(0); err == nil && read < length; {
		var page []redis.XMessage
		if page, err = s.logPage(ctx, node, p.key, from); len(page) == 0 {
			break
		}
		for _, entry := range page {
			data, _ := entry.Values[stored.LogData].(string)
			if delivery.CheckEntry(data) != nil {
				unreadable++
				first = cmp.Or(first, entry.ID)
			}
		}
		from, read = "("+page[len(page)-1].ID, read+int64(len(page))
		x.Entries += int64(len(page))
	}
	if unreadable > 0 {
		p.kind, p.detail = unreadableEntry, fmt.Sprintf("%d: the first is %s", unreadable, first)
		x.sure = append(x.sure, p)
	}
	return err
}

// logPage reads the next entries of a log.
func (s *scanner) logPage(ctx context.Context, node *redis.Client, key, from string) (page []redis.XMessage, err error) {
	if err := s.pace.wait(ctx, pageSize); err != nil {
		return nil, err
	}
	err = again(ctx, func(ctx context.Context) (err error) {
		page, err = node.XRangeN(ctx, key, from, "+", pageSize).Result()
		return err
	})
	return page, err
}

func (x *examination) examineHeld(ctx context.Context, node *redis.Client, p problem) error {
	return scanHeld(ctx, node, p.key, func(id, text string) {
		x.Held++
		if _, err := delivery.ReadHeld([]byte(text)); err != nil {
			p.kind, p.detail, p.held, p.text = unreadableHeld, id, id, text
			x.sure = append(x.sure, p)
		}
	})
}
