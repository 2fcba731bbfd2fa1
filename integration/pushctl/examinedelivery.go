package main

import (
	"cmp"
	"context"
	"fmt"

	"github.com/redis/go-redis/v9"

	"github.com/pushfx/pushfx/module/delivery"
	"github.com/pushfx/pushfx/module/stored"
)

// The problems of delivery.
var (
	unreadableFormat  = kind{"delivery of another form", byHand}
	unreadableEntry   = kind{"unreadable events to be delivered", byHost}
	unreadableGateway = kind{"unreadable state of a push gateway", byHand}
	unreadableHeld    = kind{"unreadable record of a pusher in trouble", byReset}
)

// examineDelivery looks for what no host can read among the keys of delivery.
func (s *scanner) examineDelivery(ctx context.Context, node *redis.Client, x *examination, names []string) error {
	for _, name := range names {
		key := s.keys.Parse(name)
		var err error
		switch key.Kind {
		case stored.DeliveryFormatKey:
			err = x.examineFormat(ctx, node, name)
		case stored.DeliveryGatewaysKey:
			err = x.examineGateways(ctx, node, name)
		case stored.ShardLogKey:
			err = s.examineLog(ctx, node, x, name)
		case stored.ShardHeldKey:
			err = s.examineHeld(ctx, node, x, name, key.Shard)
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

func (x *examination) examineFormat(ctx context.Context, node *redis.Client, name string) error {
	text, err := node.Get(ctx, name).Result()
	if _, found := stored.ReadDeliveryFormat(text); err == nil && !found {
		x.sure = append(x.sure, problem{kind: unreadableFormat, subject: name, detail: text})
	}
	return err
}

func (x *examination) examineGateways(ctx context.Context, node *redis.Client, name string) error {
	all, err := node.HGetAll(ctx, name).Result()
	for gateway, text := range all {
		if _, found := stored.ReadGateway(text); !found {
			x.sure = append(x.sure, problem{kind: unreadableGateway, subject: name, detail: gateway})
		}
	}
	return err
}

// examineLog reads a log in pages, as long as it is at first: all that cannot be read
// in it is one problem.
func (s *scanner) examineLog(ctx context.Context, node *redis.Client, x *examination, name string) error {
	length, err := node.XLen(ctx, name).Result()
	unreadable, first := 0, ""
	for from, read := "-", int64(0); err == nil && read < length; {
		var page []redis.XMessage
		if err = s.limiter.WaitN(ctx, s.pace.page(pageSize)); err == nil {
			page, err = node.XRangeN(ctx, name, from, "+", int64(s.pace.page(pageSize))).Result()
		}
		if len(page) == 0 {
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
		x.sure = append(x.sure, problem{
			kind: unreadableEntry, subject: name, detail: fmt.Sprintf("%d: the first is %s", unreadable, first),
		})
	}
	return err
}

func (s *scanner) examineHeld(ctx context.Context, node *redis.Client, x *examination, name string, shard int) error {
	return scanHeld(ctx, node, name, func(id, text string) {
		x.Held++
		if _, err := delivery.ReadHeld([]byte(text)); err != nil {
			x.sure = append(x.sure, problem{
				kind: unreadableHeld, subject: name, detail: id,
				repair: func(ctx context.Context) error { return ifDone(s.queue.RemoveHeld(ctx, shard, id, []byte(text))) },
			})
		}
	})
}
