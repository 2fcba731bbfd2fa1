package redisqueue

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/redisclient"
)

// completeDelay is how long a completion waits for further ones, to share a round trip. If the
// host crashes in this time, the notification is sent again.
const completeDelay = 2 * time.Millisecond

// maxCompletions bounds the completions of a script.
const maxCompletions = 100

// sentLasts is how long a pusher's last counts are kept.
const sentLasts = 30 * 24 * time.Hour

// completions are sent together, completeDelay after the first: by one script for each
// shard.
type completions struct {
	mu      sync.Mutex
	waiting []*completion
}

type completion struct {
	claim             module.Claim
	id, trouble, sent string

	left int
	err  error
	done chan struct{} // closed when left and err are set
}

// Complete implements [module.DeliveryQueue].
func (q *Queue) Complete(ctx context.Context, c module.Claim, id string, trouble module.Trouble, sent string) (left int, err error) {
	one := &completion{claim: c, id: id, trouble: troubleText(trouble), sent: sent, done: make(chan struct{})}
	q.sendSoon(one)
	select {
	case <-one.done:
		return one.left, one.err
	case <-ctx.Done():
		return 0, unavailable("complete", ctx.Err())
	}
}

// Sent implements [module.DeliveryQueue].
func (q *Queue) Sent(ctx context.Context, t module.Target) (string, error) {
	key := q.keys.Sent(t.Shard, t.Name)
	var text *redis.StringCmd
	err := q.read(ctx, command(key, &text, func(ctx context.Context, to redisclient.Sender) *redis.StringCmd { return to.Get(ctx, key) }))
	if err != nil {
		return "", err
	}
	return text.Val(), nil
}

func (q *Queue) sendSoon(one *completion) {
	q.completions.mu.Lock()
	defer q.completions.mu.Unlock()
	q.completions.waiting = append(q.completions.waiting, one)
	if len(q.completions.waiting) == 1 {
		time.AfterFunc(completeDelay, q.sendCompletions)
	}
}

// sendCompletions sends the waiting completions. It has no caller's context, since it is
// for all callers.
func (q *Queue) sendCompletions() {
	q.completions.mu.Lock()
	all := q.completions.waiting
	q.completions.waiting = nil
	q.completions.mu.Unlock()
	for len(all) > 0 {
		all = q.sendOnce(all)
	}
}

// sendOnce sends one completion of each backlog, up to maxCompletions of a shard, and
// returns the rest: a script can change a backlog only once.
func (q *Queue) sendOnce(all []*completion) (rest []*completion) {
	seen, groups := map[module.Target]bool{}, map[int][]*completion{}
	for _, one := range all {
		shard := one.claim.Target.Shard
		if seen[one.claim.Target] || len(groups[shard]) == maxCompletions {
			rest = append(rest, one)
			continue
		}
		seen[one.claim.Target], groups[shard] = true, append(groups[shard], one)
	}
	var sent [][]*completion
	var calls []*redisclient.Call
	for shard, group := range groups {
		sent, calls = append(sent, group), append(calls, q.completeCall(shard, group))
	}
	for i, err := range q.run(context.Background(), calls...) {
		finish(sent[i], calls[i].Reply, err)
	}
	return rest
}

func (q *Queue) completeCall(shard int, group []*completion) *redisclient.Call {
	slices.SortFunc(group, func(a, b *completion) int { return strings.Compare(a.claim.Gate, b.claim.Gate) })
	keys := []string{q.keys.ShardFirst(shard), q.keys.ShardTexts(shard), q.keys.ShardBytes(shard), q.keys.ShardTrouble(shard)}
	args := []any{len(group), sentLasts.Milliseconds()}
	for _, one := range group {
		keys, args = append(keys, q.keys.More(shard, one.claim.Target.Name)), append(args, one.claim.Target.Name)
	}
	for _, one := range group {
		keys = append(keys, q.keys.Sent(shard, one.claim.Target.Name))
	}
	for i, one := range group {
		if i == 0 || one.claim.Gate != group[i-1].claim.Gate {
			keys = append(keys, q.keys.Due(shard, one.claim.Gate))
		}
		args = append(args, len(keys), one.claim.Token, one.id, one.trouble, one.sent)
	}
	return complete.Call(keys, args...)
}

// finish passes the reply of a script to its completions.
func finish(group []*completion, reply *redis.Cmd, err error) {
	var left []int64
	if err == nil {
		if left, err = reply.Int64Slice(); err == nil && len(left) != len(group) {
			err = unavailable("complete", fmt.Errorf("%d replies", len(left)))
		}
	}
	for i, one := range group {
		if one.err = err; err == nil {
			one.left, one.err = unlessFenced(int(left[i]))
		}
		close(one.done)
	}
}
