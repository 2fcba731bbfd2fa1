package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	"github.com/pushfx/pushfx/module/delivery"
)

func queuesFlushCommand() command {
	return command{
		name: "queues flush", args: "[USER]",
		summary: "drops what waits for pushers",
		about: "Has the hosts drop notifications that wait: of a user, of a gateway, those that are older than a time, or\n" +
			"what is all of that. What a host has not read of its log yet is dropped when it does, and it says so.\n" +
			"What is being sent right now is left alone, and pushers get what comes afterwards.",
		setup: forDelivery(func(f *flags, c *deliveryCall) {
			addGateway(f, c)
			f.DurationVar(&c.older, "older", 0, "only what was handed over longer ago than that `TIME`, 1h for example")
		}, func(ctx context.Context, c *deliveryCall) error {
			if err := c.wantChoice(); err != nil {
				return err
			}
			return c.flush(ctx)
		}),
	}
}

// flush drops what the logs have first, so that none of it gets into the records
// meanwhile, and then what these have.
func (c *deliveryCall) flush(ctx context.Context) error {
	before := c.now().Add(-c.older)
	logs, err := c.flushLogs(ctx, before)
	if err != nil {
		return err
	}
	in := delivery.Instruction{Action: delivery.Flush, Before: before}
	held, shards, err := c.selectHeld(ctx, func(h heldPusher) bool { return countBefore(h.Kept, in.Before) > 0 })
	if err != nil {
		return err
	}
	what, effect, left := "would flush", delivery.Effect{Pushers: len(held), Notifications: countNotifications(held, in)}, map[int]error{}
	if !c.dryRun {
		what = "done: flush"
		if effect, left, err = c.instructOwners(ctx, in, held, shards); err != nil {
			return err
		}
		effect.Pushers += logs.effect.Pushers
		effect.Notifications += logs.effect.Notifications
	}
	if err := errors.Join(c.tell(what, effect, in), logs.tell(c)); err != nil {
		return err
	}
	maps.DeleteFunc(logs.left, func(shard int, _ error) bool { return left[shard] != nil })
	return errors.Join(c.tellLeft("nothing", left), c.tellLeft("nothing of its log", logs.left))
}

// flushedLogs is what was dropped of the logs of some shards, or would be.
type flushedLogs struct {
	effect  delivery.Effect
	shards  int   // in whose logs more may have to be dropped
	entries int64 // that these logs have
	left    map[int]error
}

// flushLogs drops what the logs have of what the flags name.
func (c *deliveryCall) flushLogs(ctx context.Context, before time.Time) (logs flushedLogs, err error) {
	shards, err := c.shardCount(ctx)
	if err != nil {
		return logs, err
	}
	in := delivery.Instruction{Action: delivery.FlushLog, Before: before, Gateway: c.gateway}
	if len(c.args) > 0 {
		if in.User, err = c.userArgument(); err != nil {
			return logs, err
		}
	}
	states, err := c.readShards(ctx, shards)
	if err != nil {
		return logs, err
	}
	logs.left = map[int]error{}
	instructions := map[int][]byte{}
	for _, s := range states {
		switch {
		case s.Entries == 0 || in.User != "" && s.Shard != delivery.ShardOf(in.User, shards):
		case c.dryRun:
			logs.add(s)
		case s.Owner == "":
			logs.left[s.Shard] = errNoOwner
		default:
			instructions[s.Shard] = in.AppendTo(nil)
		}
	}
	for shard, effect := range c.give(ctx, instructions, logs.left) {
		logs.effect.Pushers += effect.Pushers
		logs.effect.Notifications += effect.Notifications
		if effect.Behind {
			logs.add(states[shard])
		}
	}
	return logs, ctx.Err()
}

func (l *flushedLogs) add(s shownShard) {
	l.shards++
	l.entries += s.Entries
}

// tell says what is to be dropped beside what was counted.
func (l *flushedLogs) tell(c *deliveryCall) error {
	if l.shards == 0 {
		return nil
	}
	when := ", when their hosts read them"
	if c.dryRun {
		when = ""
	}
	_, err := fmt.Fprintf(c.out, "and what is to be dropped of up to %d events in the logs of %d shards%s\n", l.entries, l.shards, when)
	return err
}
