package redisqueue

import (
	"cmp"
	"context"
	crand "crypto/rand"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/fault"
	"github.com/pushfx/pushfx/module/redisclient"
	"github.com/pushfx/pushfx/module/stored"
)

// Enqueue implements [module.DeliveryQueue]. A batch is one call of a script.
func (q *Queue) Enqueue(ctx context.Context, batches []module.DeliveryBatch) []module.Result[module.Enqueued] {
	results := make([]module.Result[module.Enqueued], len(batches))
	var open []*batch
	for i, of := range batches {
		b, err := q.newBatch(of)
		if err != nil {
			results[i].Err = err
			continue
		}
		b.result = &results[i]
		open = append(open, b)
	}
	const tries = 5 // backlogs may change their gates meanwhile
	for try := 0; len(open) > 0 && try < tries; try++ {
		open = q.sendBatches(ctx, open)
	}
	return results
}

// sendBatches sends batches, and returns the ones to send again.
func (q *Queue) sendBatches(ctx context.Context, all []*batch) (again []*batch) {
	calls := make([]*redisclient.Call, len(all))
	for i, b := range all {
		calls[i] = enqueue.Call(b.keys(q), b.args()...)
	}
	for i, err := range q.runBy(ctx, q.writer.DoDurably, calls...) {
		b := all[i]
		if err == nil {
			b.result.Value, err = b.enqueued(calls[i].Reply)
		}
		if b.result.Err = err; errors.Is(err, errMoreGates) {
			again = append(again, b)
		}
	}
	return again
}

// batch is a [module.DeliveryBatch] that is being added.
type batch struct {
	module.DeliveryBatch
	result *module.Result[module.Enqueued]
	order  []int    // of the additions, by gate: the script lists those of a gate at once
	heads  []string // the first 33 bytes of the additions' entries
	gates  []string // whose keys the script needs
	nonce  string
	lease  int64
}

var (
	errBadAddition = errors.New(name + ": an addition cannot be stored")
	errTooMany     = fmt.Errorf("%s: a batch has more than %d additions", name, module.MaxAdditions)
	errTooLarge    = fault.New(fault.InvalidParam, "The notification is too large.")
	errMoreGates   = unavailable("enqueue", errors.New("backlogs change their gates"))
)

func (q *Queue) newBatch(of module.DeliveryBatch) (*batch, error) {
	if len(of.Additions) > module.MaxAdditions {
		return nil, errTooMany
	}
	b := &batch{DeliveryBatch: of, nonce: crand.Text()[:12], lease: microseconds(of.Lease)}
	for i, a := range of.Additions {
		n := a.Notification
		head, ok := stored.BacklogEntry{Priority: byte(n.Priority), ID: n.ID, Room: n.Room, User: a.User}.Head()
		switch {
		case !ok || len(a.Gate) > stored.MaxGate:
			return nil, errBadAddition
		case len(n.Text) > module.MaxText:
			return nil, errTooLarge
		}
		b.order, b.heads = append(b.order, i), append(b.heads, head)
		b.need(a.Gate)
	}
	slices.SortStableFunc(b.order, func(i, j int) int { return strings.Compare(of.Additions[i].Gate, of.Additions[j].Gate) })
	if of.Of.Token != 0 {
		b.need(module.FanOut)
	}
	return b, nil
}

// need adds a gate, and returns its place, from 1.
func (b *batch) need(gate string) int {
	i := slices.Index(b.gates, gate)
	if i < 0 {
		i, b.gates = len(b.gates), append(b.gates, gate)
	}
	return i + 1
}

func (b *batch) keys(q *Queue) []string {
	keys := []string{
		q.keys.Seen(b.Shard, b.Key), q.keys.ShardGates(b.Shard), q.keys.ShardFirst(b.Shard), q.keys.ShardTexts(b.Shard),
		q.keys.ShardTrouble(b.Shard), q.keys.ShardBytes(b.Shard),
	}
	for _, gate := range b.gates {
		keys = append(keys, q.keys.Due(b.Shard, gate))
	}
	for _, i := range b.order {
		keys = append(keys, q.keys.More(b.Shard, b.Additions[i].Target))
	}
	return keys
}

func (b *batch) args() []any {
	expansion := ""
	if b.Of.Token != 0 {
		expansion = fmt.Sprint(b.Of.Target.Name, " ", b.Of.Token, " ", b.From, " ", b.To)
	}
	limits := fmt.Sprint(b.MaxBacklog, " ", b.MaxUserBytes, " ", b.KeepFor.Seconds(), " ", b.MaxRoomBytes, " ", b.MaxShardBytes)
	args := []any{b.nonce, b.Window.Milliseconds(), b.lease, limits, expansion, len(b.gates), len(b.Additions)}
	for _, gate := range b.gates {
		args = append(args, gate)
	}
	for _, i := range b.order {
		args = append(args, b.Additions[i].Target)
	}
	args = append(args, module.FanOut+b.Room)
	var texts []any
	places := map[string]int{"": 0} // of texts
	for _, i := range b.order {
		a, n := b.Additions[i], b.Additions[i].Notification
		place, found := places[n.Text]
		if !found {
			texts = append(texts, n.Text)
			place = len(texts)
			places[n.Text] = place
		}
		var delay any = microseconds(a.Delay)
		if a.Claim {
			delay = "claim"
		}
		urgent := ""
		if a.Urgent {
			urgent = "u"
		}
		args = append(args, b.need(a.Gate), place, b.heads[i], n.Meta, delay, a.Generation, urgent)
	}
	return append(args, texts...)
}

// microseconds returns the duration with up to a millisecond more. The random part makes
// the tokens of two claims differ. The number is even, because even scores mark claims.
func microseconds(d time.Duration) int64 {
	if d <= 0 {
		return 0
	}
	return d.Microseconds()/2*2 + 2*rand.Int64N(500)
}

// enqueued reads the reply of enqueueScript. It returns errMoreGates if the
// batch was not added, because the script needs the keys of more gates.
func (b *batch) enqueued(reply *redis.Cmd) (e module.Enqueued, err error) {
	values, err := reply.Slice()
	if err != nil || len(values) == 0 {
		return e, unavailable("enqueue", cmp.Or(err, errors.New("empty reply")))
	}
	switch state, _ := values[0].(int64); {
	case state == -1:
		return module.Enqueued{Behind: true}, nil
	case state == -2:
		return module.Enqueued{Full: true}, nil
	case state == -3:
		return e, module.ErrFenced
	case state == -4:
		for _, gate := range textsIn(values[1:]) {
			b.need(gate)
		}
		return e, errMoreGates
	}
	additions := b.Additions
	numbers := make([]int64, len(values))
	for i, n := range values {
		numbers[i], _ = n.(int64)
	}
	if len(numbers) != 3+len(additions) {
		return e, unavailable("enqueue", fmt.Errorf("%d replies", len(numbers)))
	}
	e = module.Enqueued{Again: numbers[0] == 0, Coalesced: int(numbers[1]), Due: int(numbers[2])}
	e.Claims = make([]module.Claim, len(additions))
	for at, token := range numbers[3:] {
		if i := b.order[at]; token != 0 {
			a := additions[i]
			e.Claims[i] = module.Claim{Target: module.Target{Shard: b.Shard, Name: a.Target}, Gate: a.Gate, Token: token, First: a.Notification.ID}
		}
	}
	return e, nil
}
