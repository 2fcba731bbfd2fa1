package redisqueue

import (
	"context"
	crand "crypto/rand"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/redisclient"
	"github.com/pushfx/pushfx/module/stored"
)

// Enqueue implements [module.DeliveryQueue]. A batch is one transaction: plain commands
// for the texts, and a script for the rest.
func (q *Queue) Enqueue(ctx context.Context, batches []module.DeliveryBatch) []module.Result[module.Enqueued] {
	sendings := make([]*sending, len(batches))
	commands := make([]*redisclient.Command, 0, len(batches))
	results := make([]module.Result[module.Enqueued], len(batches))
	places := make([]int, 0, len(batches))
	for i, b := range batches {
		s, err := q.newSending(b)
		if err != nil {
			results[i].Err = err
			continue
		}
		sendings[i] = s
		commands, places = append(commands, &redisclient.Command{Key: s.keys[0], Queue: s.queue}), append(places, i)
	}
	for n, err := range q.writer.DoDurably(ctx, commands...) {
		i := places[n]
		if err == nil {
			results[i].Value, err = sendings[i].enqueued(batches[i])
		}
		results[i].Err = err
	}
	return results
}

type sending struct {
	texts [][]any // commands
	keys  []string
	args  []any

	call  *redisclient.Call
	reply []any
}

var errBadAddition = errors.New(name + ": an addition cannot be stored")

func (q *Queue) newSending(b module.DeliveryBatch) (*sending, error) {
	s := &sending{
		keys: []string{
			q.keys.Seen(b.Shard, b.Key), q.keys.ShardDue(b.Shard), q.keys.ShardTrouble(b.Shard), q.keys.ShardBytes(b.Shard),
			q.keys.Backlog(b.Shard, module.FanOut+b.Room),
		},
		args: []any{
			nonce(), b.Window.Milliseconds(), microseconds(b.Lease), b.MaxBacklog, b.MaxUserBytes, b.Of.Token, b.From, b.To, b.MaxRoomBytes,
			b.MaxShardBytes, b.Of.Target.Name, b.KeepFor.Seconds(),
		},
	}
	for _, a := range b.Additions {
		n := a.Notification
		head, ok := stored.BacklogEntry{Priority: byte(n.Priority), ID: n.ID, Room: n.Room, User: a.User}.Head()
		if !ok {
			return nil, errBadAddition
		}
		texts := q.keys.Texts(b.Shard, a.Target)
		if n.Text != "" {
			s.texts = append(s.texts, []any{"HSET", texts, n.ID, n.Text})
		}
		s.keys = append(s.keys, q.keys.Backlog(b.Shard, a.Target), texts)
		s.args = append(s.args, a.Target, head, len(n.Text), n.Meta, flags(a), microseconds(a.Delay), a.Generation)
	}
	s.call = enqueue.Call(s.keys, s.args...)
	return s, nil
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

func nonce() string { return crand.Text()[:12] }

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
	for _, command := range s.texts {
		queued = append(queued, to.Do(ctx, command...))
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
}

func (s *sending) enqueued(b module.DeliveryBatch) (e module.Enqueued, err error) {
	numbers := make([]int64, len(s.reply))
	for i, n := range s.reply {
		var ok bool
		if numbers[i], ok = n.(int64); !ok {
			return e, unavailable("enqueue", fmt.Errorf("unexpected reply %T", n))
		}
	}
	switch {
	case len(numbers) == 0:
		return e, unavailable("enqueue", errors.New("empty reply"))
	case numbers[0] == -1:
		return module.Enqueued{Behind: true}, nil
	case numbers[0] == -2:
		return module.Enqueued{Full: true}, nil
	case numbers[0] == -3:
		return e, module.ErrFenced
	case len(numbers) != 3+len(b.Additions):
		return e, unavailable("enqueue", fmt.Errorf("%d replies", len(numbers)))
	}
	e = module.Enqueued{Again: numbers[0] == 0, Coalesced: int(numbers[1]), Due: int(numbers[2])}
	e.Claims = make([]module.Claim, len(b.Additions))
	for i, token := range numbers[3:] {
		if token != 0 {
			e.Claims[i] = module.Claim{Target: module.Target{Shard: b.Shard, Name: b.Additions[i].Target}, Token: token}
		}
	}
	return e, nil
}
