package redisqueue

import (
	"context"
	crand "crypto/rand"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/redisclient"
	"github.com/pushfx/pushfx/module/stored"
)

// Enqueue implements [module.DeliveryQueue]. A batch is one transaction: a plain command
// for the texts, and a script for the rest.
func (q *Queue) Enqueue(ctx context.Context, batches []module.DeliveryBatch) []module.Result[module.Enqueued] {
	results := make([]module.Result[module.Enqueued], len(batches))
	var open []*sending
	for i, b := range batches {
		s, err := q.newSending(b)
		if err != nil {
			results[i].Err = err
			continue
		}
		s.result = &results[i]
		open = append(open, s)
	}
	const tries = 5 // backlogs may change their gates meanwhile
	for try := 0; len(open) > 0 && try < tries; try++ {
		open = q.sendBatches(ctx, open)
	}
	return results
}

// sendBatches sends batches, and returns those that must be sent again.
func (q *Queue) sendBatches(ctx context.Context, all []*sending) (again []*sending) {
	commands := make([]*redisclient.Command, len(all))
	for i, s := range all {
		s.call = enqueue.Call(s.keys(q), s.args()...)
		commands[i] = &redisclient.Command{Key: q.keys.ShardFirst(s.batch.Shard), Queue: s.queue}
	}
	for i, err := range q.writer.DoDurably(ctx, commands...) {
		s := all[i]
		isAside := (isWrongType(err) || s.lostTexts) && q.putAside(ctx, s.call.Keys())
		if err == nil {
			s.result.Value, err = s.enqueued()
		}
		if s.result.Err = err; errors.Is(err, errMoreGates) || isWrongType(err) && isAside {
			again = append(again, s)
		}
	}
	return again
}

// sending is a batch that is being added.
type sending struct {
	batch  module.DeliveryBatch
	result *module.Result[module.Enqueued]
	heads  []string // of the additions' entries
	gates  []string // whose keys the script needs
	nonce  string
	lease  int64

	call      *redisclient.Call
	reply     []any
	lostTexts bool // the key of texts has another type
}

var (
	errBadAddition = errors.New(name + ": an addition cannot be stored")
	errMoreGates   = unavailable("enqueue", errors.New("backlogs change their gates"))
)

func (q *Queue) newSending(b module.DeliveryBatch) (*sending, error) {
	s := &sending{batch: b, nonce: crand.Text()[:12], lease: microseconds(b.Lease)}
	for _, a := range b.Additions {
		n := a.Notification
		head, ok := stored.BacklogEntry{Priority: byte(n.Priority), ID: n.ID, Room: n.Room, User: a.User}.Head()
		if !ok || len(a.Gate) > stored.MaxGate {
			return nil, errBadAddition
		}
		s.heads = append(s.heads, head)
		s.need(a.Gate)
	}
	if b.Of.Token != 0 {
		s.need(module.FanOut)
	}
	return s, nil
}

// need adds a gate, and returns its place, from 1.
func (s *sending) need(gate string) int {
	i := slices.Index(s.gates, gate)
	if i < 0 {
		i, s.gates = len(s.gates), append(s.gates, gate)
	}
	return i + 1
}

func (s *sending) keys(q *Queue) []string {
	b := s.batch
	keys := []string{
		q.keys.Seen(b.Shard, b.Key), q.keys.ShardGates(b.Shard), q.keys.ShardFirst(b.Shard), q.keys.ShardTexts(b.Shard),
		q.keys.ShardTrouble(b.Shard), q.keys.ShardBytes(b.Shard),
	}
	for _, gate := range s.gates {
		keys = append(keys, q.keys.Due(b.Shard, gate))
	}
	for _, a := range b.Additions {
		keys = append(keys, q.keys.More(b.Shard, a.Target))
	}
	return keys
}

func (s *sending) args() []any {
	b := s.batch
	args := []any{
		s.nonce, b.Window.Milliseconds(), s.lease, b.MaxBacklog, b.MaxUserBytes, b.Of.Token, b.From, b.To, b.MaxRoomBytes,
		b.MaxShardBytes, b.Of.Target.Name, b.KeepFor.Seconds(), module.FanOut + b.Room, len(s.gates),
	}
	for _, gate := range s.gates {
		args = append(args, gate)
	}
	for i, a := range b.Additions {
		n := a.Notification
		args = append(args, a.Target, s.need(a.Gate), s.heads[i], len(n.Text), n.Meta, flags(a), microseconds(a.Delay), a.Generation)
	}
	return args
}

// texts returns the command that stores the texts, nil if there are none.
func (s *sending) texts() []any {
	command := []any{"HSET", s.call.Keys()[3]}
	for _, a := range s.batch.Additions {
		if a.Notification.Text != "" {
			command = append(command, stored.TextField(a.Target, a.Notification.ID), a.Notification.Text)
		}
	}
	if len(command) == 2 {
		return nil
	}
	return command
}

func flags(a module.Addition) string {
	text := "-"
	if a.Claim {
		text += "c"
	}
	if a.Urgent {
		text += "u"
	}
	return text
}

// microseconds returns the duration with up to a millisecond more. The random part makes
// the tokens of two claims differ. The number is even, because even scores mark claims.
func microseconds(d time.Duration) int64 {
	if d <= 0 {
		return 0
	}
	return d.Microseconds()/2*2 + 2*rand.Int64N(500)
}

// queue is the [redisclient.Command.Queue] of the batch. In a transaction, one ASKING is
// enough for all commands.
func (s *sending) queue(ctx context.Context, to redisclient.Sender) func() error {
	queued := []*redis.Cmd{to.Do(ctx, "MULTI")}
	if texts := s.texts(); texts != nil {
		queued = append(queued, to.Do(ctx, texts...))
	}
	checkScript := s.call.Queue(ctx, to)
	exec := to.Do(ctx, "EXEC")
	return func() error {
		for _, cmd := range queued {
			if cmd.Err() != nil {
				return cmd.Err()
			}
		}
		if err := checkScript(); err != nil {
			return err
		}
		replies, err := exec.Slice()
		if err != nil {
			return err
		}
		return s.read(replies)
	}
}

// read reads the replies of a transaction.
func (s *sending) read(replies []any) error {
	failed, _ := replies[0].(error)
	s.lostTexts = len(replies) > 1 && isWrongType(failed)
	switch last := replies[len(replies)-1].(type) {
	case []any:
		s.reply = last
		return nil
	case error:
		return s.call.Check(last)
	default:
		return fmt.Errorf("%w: unexpected reply %T", redisclient.ErrAnswered, last)
	}
}

// enqueued reads the reply of enqueueScript. With errMoreGates, the batch was not added.
func (s *sending) enqueued() (e module.Enqueued, err error) {
	if len(s.reply) == 0 {
		return e, unavailable("enqueue", errors.New("empty reply"))
	}
	switch state, _ := s.reply[0].(int64); {
	case state == -1:
		return module.Enqueued{Behind: true}, nil
	case state == -2:
		return module.Enqueued{Full: true}, nil
	case state == -3:
		return e, module.ErrFenced
	case state == -4:
		for _, gate := range textsIn(s.reply[1:]) {
			s.need(gate)
		}
		return e, errMoreGates
	}
	additions := s.batch.Additions
	numbers := make([]int64, len(s.reply))
	for i, n := range s.reply {
		numbers[i], _ = n.(int64)
	}
	if len(numbers) != 3+len(additions) {
		return e, unavailable("enqueue", fmt.Errorf("%d replies", len(numbers)))
	}
	e = module.Enqueued{Again: numbers[0] == 0, Coalesced: int(numbers[1]), Due: int(numbers[2])}
	e.Claims = make([]module.Claim, len(additions))
	for i, token := range numbers[3:] {
		if token != 0 {
			e.Claims[i] = module.Claim{Target: module.Target{Shard: s.batch.Shard, Name: additions[i].Target}, Gate: additions[i].Gate, Token: token}
		}
	}
	return e, nil
}
