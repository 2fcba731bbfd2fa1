package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/delivery"
	"github.com/pushfx/pushfx/module/fault"
	"github.com/pushfx/pushfx/module/mxid"
)

// The records of pushers in trouble are written by the owners of shards alone, from
// memory. So what operators want is not done here: the owners are instructed.

func queuesRetryCommand() command {
	return command{
		name: "queues retry", args: "[USER]",
		summary: "sends what waits for a user's pushers, or for a gateway, at once",
		about: "Has the hosts try pushers at once that wait after a failure, and their gateways, though these are\n" +
			"closed or have told to wait. Give a user or -gateway. It returns when the hosts have taken it up.",
		setup: forDelivery(addGateway, func(ctx context.Context, c *deliveryCall) error {
			if err := c.wantChoice(); err != nil {
				return err
			}
			return c.instruct(ctx, "retry", delivery.Instruction{Action: delivery.Retry}, func(h heldPusher) bool { return !h.Rejected })
		}),
	}
}

// wantChoice refuses a call that is for all pushers, which nobody wants.
func (c *deliveryCall) wantChoice() error {
	if c.older < 0 {
		return fmt.Errorf("-older %v: want a time above 0", c.older)
	}
	if len(c.args) == 0 && c.gateway == "" && c.older == 0 {
		return errors.New("want USER, or flags that say which pushers (-h explains them)")
	}
	return nil
}

// countBefore counts the times before one, the zero time for all.
func countBefore(all []time.Time, before time.Time) (n int) {
	for _, t := range all {
		if before.IsZero() || t.Before(before) {
			n++
		}
	}
	return n
}

// deliveryCall is a call of a command about delivery, with its flags.
type deliveryCall struct {
	*call
	json    *bool
	dryRun  bool
	gateway string
	older   time.Duration
	pusher  string // a digest
	allowed string // prefixes
}

// forDelivery is the setup of a command about delivery.
func forDelivery(declare func(*flags, *deliveryCall), run func(context.Context, *deliveryCall) error) func(*flags) runner {
	return func(f *flags) runner {
		d := &deliveryCall{}
		declare(f, d)
		return func(ctx context.Context, c *call) error {
			d.call = c
			return run(ctx, d)
		}
	}
}

// addGateway is for commands that instruct the owners of shards.
func addGateway(f *flags, c *deliveryCall) {
	f.StringVar(&c.gateway, "gateway", "", "`HOST` of a push gateway, as host, host:port or scheme://host:port: only its pushers")
	addDryRun(f, c)
}

// addDryRun is for commands that change what hosts deliver.
func addDryRun(f *flags, c *deliveryCall) {
	f.BoolVar(&c.dryRun, "dry-run", false, "only tell what it would do")
}

// instruct has the owners of shards do something with the pushers that the flags
// name, if they are fit for it.
func (c *deliveryCall) instruct(ctx context.Context, what string, in delivery.Instruction, isFit func(heldPusher) bool) error {
	held, shards, err := c.selectHeld(ctx, isFit)
	if err != nil {
		return err
	}
	if c.dryRun {
		return c.tell("would "+what, delivery.Effect{Pushers: len(held), Notifications: countNotifications(held, in)}, in)
	}
	effect, left, err := c.instructOwners(ctx, in, held, shards)
	if err != nil {
		return err
	}
	if err := c.tell("done: "+what, effect, in); err != nil {
		return err
	}
	return c.tellLeft("nothing", left)
}

func countNotifications(held []heldPusher, in delivery.Instruction) (n int) {
	for _, h := range held {
		n += countBefore(h.Kept, in.Before)
	}
	return n
}

func (c *deliveryCall) tell(what string, e delivery.Effect, in delivery.Instruction) error {
	text := fmt.Sprintf("%s %d pushers", what, e.Pushers)
	if in.Action == delivery.Flush {
		text += fmt.Sprintf(", %d notifications", e.Notifications)
	}
	_, err := fmt.Fprintln(c.out, text)
	return err
}

// tellLeft tells of shards in which what, nothing for example, was done, and why.
func (c *deliveryCall) tellLeft(what string, left map[int]error) error {
	shards := map[string][]string{}
	for _, shard := range slices.Sorted(maps.Keys(left)) {
		reason := fault.Details(left[shard])
		shards[reason] = append(shards[reason], strconv.Itoa(shard))
	}
	for _, reason := range slices.Sorted(maps.Keys(shards)) {
		fmt.Fprintf(c.out, "shard %s: %s, for %s\n", strings.Join(shards[reason], ", "), what, reason)
	}
	if len(left) > 0 {
		return errProblems
	}
	return nil
}

// selectHeld returns the pushers in trouble that the flags name, and how many shards
// there are.
func (c *deliveryCall) selectHeld(ctx context.Context, isFit func(heldPusher) bool) (held []heldPusher, shards int, err error) {
	if shards, err = c.shardCount(ctx); err != nil {
		return nil, 0, err
	}
	var of []int
	var user mxid.UserID
	if len(c.args) > 0 {
		if user, err = c.userArgument(); err != nil {
			return nil, 0, err
		}
		of = []int{delivery.ShardOf(user, shards)}
	} else {
		for n := range shards {
			of = append(of, n)
		}
	}
	held, err = c.readHeld(ctx, of, func(h heldPusher) bool { return (user == "" || h.User == user) && isFit(h) })
	if err != nil {
		return nil, 0, err
	}
	for part := range slices.Chunk(held, pageSize) {
		if err := c.findGateways(ctx, part); err != nil {
			return nil, 0, err
		}
	}
	if c.gateway != "" {
		held = slices.DeleteFunc(held, func(h heldPusher) bool { return !delivery.IsGateway(h.gateway, c.gateway) })
	}
	return held, shards, nil
}

const (
	// answerLimit is how long the owner of a shard may take. It hears of an
	// instruction within a second, or six where it is another host's first.
	answerLimit = 15 * time.Second

	// instructionPushers is how many pushers are in one instruction.
	instructionPushers = 1000
)

// The reasons for which nothing was done in a shard.
var (
	errNoOwner  = errors.New("no host owns it")
	errNoAnswer = errors.New("its host has not answered, though it may still do it: it is busy, cannot reach the Redis, or is of a version before instructions")
	errNotKnown = errors.New("its host does not know the instruction: it is of an older version")
)

// instructOwners has the owners of shards do something with pushers, some at a time.
// Left says why nothing was done in a shard.
func (c *deliveryCall) instructOwners(
	ctx context.Context, in delivery.Instruction, held []heldPusher, shards int,
) (total delivery.Effect, left map[int]error, err error) {
	states, err := c.readShards(ctx, shards)
	if err != nil {
		return total, nil, err
	}
	waiting := map[int][]heldPusher{}
	for _, h := range held {
		waiting[h.shard] = append(waiting[h.shard], h)
	}
	left = map[int]error{}
	for shard := range waiting {
		if states[shard].Owner == "" {
			left[shard] = errNoOwner
			delete(waiting, shard)
		}
	}
	for len(waiting) > 0 && ctx.Err() == nil {
		effect := c.instructOnce(ctx, in, waiting, left)
		total.Pushers += effect.Pushers
		total.Notifications += effect.Notifications
	}
	return total, left, ctx.Err()
}

// instructOnce instructs each shard about its next pushers, and takes these, or all
// of a shard that is left, out of what waits.
func (c *deliveryCall) instructOnce(
	ctx context.Context, in delivery.Instruction, waiting map[int][]heldPusher, left map[int]error,
) (total delivery.Effect) {
	instructions := map[int][]byte{}
	for shard, held := range waiting {
		in.Pushers, in.Gateways = nil, nil
		for _, h := range held[:min(len(held), instructionPushers)] {
			in.Pushers = append(in.Pushers, h.id)
			in.Gateways = append(in.Gateways, h.gateway)
		}
		slices.Sort(in.Gateways)
		in.Gateways = slices.Compact(in.Gateways)
		instructions[shard] = in.AppendTo(nil)
		if waiting[shard] = held[len(in.Pushers):]; len(waiting[shard]) == 0 {
			delete(waiting, shard)
		}
	}
	for shard, effect := range c.give(ctx, instructions, left) {
		if left[shard] != nil {
			delete(waiting, shard)
		}
		total.Pushers += effect.Pushers
		total.Notifications += effect.Notifications
	}
	return total
}

// give gives the owners of shards their instructions, and returns what they have
// done. Left gets the reasons of those who have done nothing.
func (c *deliveryCall) give(ctx context.Context, instructions map[int][]byte, left map[int]error) map[int]delivery.Effect {
	ctx, cancel := context.WithTimeout(ctx, answerLimit)
	defer cancel()
	effects := make(map[int]delivery.Effect, len(instructions))
	for shard, result := range c.queue.Instruct(ctx, instructions) {
		effect, reason := readEffect(result)
		if effects[shard] = effect; reason != nil {
			left[shard] = reason
		}
	}
	return effects
}

// readEffect reads what the owner of a shard has answered, if it has.
func readEffect(result module.Result[[]byte]) (effect delivery.Effect, reason error) {
	if errors.Is(result.Err, module.ErrNotAnswered) {
		return effect, errNoAnswer
	}
	if result.Err != nil {
		return effect, result.Err
	}
	if effect, reason = delivery.ReadEffect(result.Value); reason != nil {
		return effect, errNotKnown
	}
	return effect, nil
}

// forgetHeld has the hosts drop what waits for the pushers of a user who has none any
// more.
func (c *deliveryCall) forgetHeld(ctx context.Context, user mxid.UserID) error {
	held, shards, err := c.selectHeld(ctx, func(h heldPusher) bool { return h.User == user })
	if errors.Is(err, errNoQueue) || err == nil && len(held) == 0 {
		return nil
	}
	if err != nil {
		return err
	}
	dropped := 0
	for _, action := range []delivery.Action{delivery.Flush, delivery.Confirm} {
		effect, left, err := c.instructOwners(ctx, delivery.Instruction{Action: action}, held, shards)
		if err != nil {
			return err
		}
		if shard := held[0].shard; left[shard] != nil {
			return fmt.Errorf("all is removed but what waits for %d pushers, which a host drops when it finds them gone: shard %d: %w",
				len(held), shard, left[shard])
		}
		dropped += effect.Notifications
	}
	_, err = fmt.Fprintf(c.out, "done: drop %d notifications that waited for %d pushers\n", dropped, len(held))
	return err
}
