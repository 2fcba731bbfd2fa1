package rediscommit

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"
)

// script is a Lua script with one key that answers 1 or 0, and the wait that
// follows it.
type script struct {
	client     redis.UniversalClient
	durability Durability
	source     string
	lua        *redis.Script
	nodes      *nodes
	waited     func(took time.Duration, reached bool) // is told of each wait
}

func newScript(nodes *nodes, source string, d Durability) *script {
	if d.isAsked() {
		nodes.watch()
	}
	return &script{nodes.client, d, source, redis.NewScript(source), nodes, func(time.Duration, bool) {}}
}

// run runs the script. Done is true where it answered 1 and its effect has come
// as far as the durability asks.
func (s *script) run(ctx context.Context, key string, args []any) (done bool, err error) {
	if !s.durability.isAsked() {
		return s.lua.Run(ctx, s.client, []string{key}, args...).Bool()
	}
	r := run{script: s, key: key, args: args}
	if r.node, err = s.nodes.masterOf(ctx, key); err != nil {
		return false, err
	}
	for range maxSends {
		done, err = r.send(ctx)
		if err == nil || !r.redirect(ctx, err) {
			return done, err
		}
	}
	return false, err
}

// maxSends bounds how often a run is sent: as it is, with the source of the
// script, and after a few redirections.
const maxSends = 5

// run is a script with a wait. Both are sent in one pipeline to the master of
// the key, because the wait is for what its connection has written, and a
// cluster client does not send two commands on one connection.
type run struct {
	*script
	key    string
	args   []any
	node   *redis.Client
	asking bool // the slot is on its way to the node
	whole  bool // the node does not know the script
}

func (r *run) send(ctx context.Context) (done bool, err error) {
	release, err := r.nodes.turns.take(ctx, r.node)
	if err != nil {
		return false, err
	}
	defer release()
	start := time.Now()
	var swap, wait, waitAOF *redis.Cmd
	// The pipeline's own error is that of one of the commands, or of none.
	_, _ = r.node.Pipelined(ctx, func(p redis.Pipeliner) error {
		if r.asking {
			p.Do(ctx, "ASKING")
		}
		if r.whole {
			swap = p.Eval(ctx, r.source, []string{r.key}, r.args...)
		} else {
			swap = p.EvalSha(ctx, r.lua.Hash(), []string{r.key}, r.args...)
		}
		timeout := r.timeout(ctx).Milliseconds()
		if n := r.durability.Replicas; n > 0 {
			wait = p.Do(ctx, "WAIT", n, timeout)
		}
		if r.durability.AOF {
			waitAOF = p.Do(ctx, "WAITAOF", 1, 0, timeout)
		}
		return nil
	})
	if done, err = swap.Bool(); err != nil || !done {
		return false, err
	}
	err = cmp.Or(r.checkReplicas(wait), r.checkAOF(waitAOF))
	r.waited(time.Since(start), err == nil)
	return err == nil, err
}

// timeout is how long each wait may take. Its answer should come before ctx
// ends, or else the client gives the connection up. To wait for 0 would be for
// ever.
func (r *run) timeout(ctx context.Context) time.Duration {
	timeout := r.durability.Timeout
	if deadline, found := ctx.Deadline(); found {
		left := time.Until(deadline) / r.durability.waits()
		timeout = min(timeout, max(left-lateness, left/2))
	}
	return max(timeout, time.Millisecond)
}

func (r *run) checkReplicas(wait *redis.Cmd) error {
	if wait == nil {
		return nil
	}
	got, err := wait.Int64()
	if err == nil && got < int64(r.durability.Replicas) {
		err = fmt.Errorf("%d of %d replicas have the change after %v", got, r.durability.Replicas, r.durability.Timeout)
	}
	return err
}

func (r *run) checkAOF(wait *redis.Cmd) error {
	if wait == nil {
		return nil
	}
	got, err := wait.Int64Slice()
	if err == nil && (len(got) == 0 || got[0] < 1) {
		err = fmt.Errorf("the master does not have the change on disk after %v", r.durability.Timeout)
	}
	return err
}

// redirect prepares to send again what was not run, and reports whether that
// can help.
func (r *run) redirect(ctx context.Context, err error) bool {
	if redis.HasErrorPrefix(err, "NOSCRIPT") {
		again := !r.whole
		r.whole = true
		return again
	}
	address, moved := redis.IsMovedError(err)
	asked := false
	if !moved {
		address, asked = redis.IsAskError(err)
	}
	r.asking = asked
	if !moved && !asked {
		return false
	}
	node := r.nodes.at(ctx, address)
	if node != nil {
		r.node, r.whole = node, false
	}
	return node != nil
}
