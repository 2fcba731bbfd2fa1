package main

import (
	"context"
	"fmt"

	"github.com/redis/go-redis/v9"

	"github.com/pushfx/pushfx/module/delivery"
	"github.com/pushfx/pushfx/module/stored"
)

// maxEntries is how many entries of a log are examined, the oldest: an owner comes
// to the others when these are delivered.
const maxEntries = 1000

// examineDelivery looks for what no host can read among the keys of delivery.
func (b *backend) examineDelivery(ctx context.Context, node *redis.Client, x *examination, names []string) error {
	for _, name := range names {
		key := b.keys.Parse(name)
		p := problem{name: name, key: name, node: node, shard: key.Shard}
		var err error
		switch key.Kind {
		case stored.DeliveryFormatKey:
			err = x.examineFormat(ctx, node, p)
		case stored.DeliveryGatewaysKey:
			err = x.examineGateways(ctx, node, p)
		case stored.ShardLogKey:
			err = x.examineLog(ctx, node, p)
		case stored.ShardHeldKey:
			err = x.examineHeld(ctx, node, p)
		}
		v := value{name: name, Key: key}
		if failed := v.fill(redis.NewStatusResult("", err)); failed != nil {
			return fmt.Errorf("read %s: %w", name, failed)
		}
		if v.state == isOtherType || v.state == isElsewhere {
			b.examineValue(x, node, v)
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

func (x *examination) examineLog(ctx context.Context, node *redis.Client, p problem) error {
	for from, read := "-", 0; read < maxEntries; {
		page, err := node.XRangeN(ctx, p.key, from, "+", pageSize).Result()
		if err != nil {
			return err
		}
		for _, entry := range page {
			x.Entries++
			data, _ := entry.Values[stored.LogData].(string)
			if delivery.CheckEntry([]byte(data)) != nil {
				p.kind, p.detail = unreadableEntry, entry.ID
				x.sure = append(x.sure, p)
			}
		}
		if len(page) < pageSize {
			return nil
		}
		from, read = "("+page[len(page)-1].ID, read+len(page)
	}
	return nil
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
