package rediscommit

import (
	"context"
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

// run runs the script. Done is true if it answered 1 and its effect has come
// as far as the durability asks.
func (s *script) run(ctx context.Context, key string, args []any) (done bool, err error) {
	if !s.durability.isAsked() {
		return s.lua.Run(ctx, s.client, []string{key}, args...).Bool()
	}
	r := run{script: s, key: key, args: args, wait: wait{what: s.durability}}
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
	wait   wait
}

func (r *run) send(ctx context.Context) (done bool, err error) {
	release, err := r.nodes.waits.acquire(ctx, r.node)
	if err != nil {
		return false, err
	}
	defer release()
	start := time.Now()
	r.wait.begin(start)
	send := r.sendWithOne
	if r.durability.isBoth() {
		send = r.sendWithBoth
	}
	swapped, err := send(ctx)
	if swapped {
		r.waited(time.Since(start), err == nil)
	}
	return swapped && err == nil, err
}

// sendWithOne sends the script with one wait. Swapped is true where the script
// answered 1.
func (r *run) sendWithOne(ctx context.Context) (swapped bool, err error) {
	var swap, waited *redis.Cmd
	// The pipeline's own error is that of one of the commands, or of none.
	_, _ = r.node.Pipelined(ctx, func(p redis.Pipeliner) error {
		swap, waited = r.queueScript(ctx, p), r.wait.queueFirst(ctx, p)
		return nil
	})
	if swapped, err = swap.Bool(); err != nil || !swapped {
		return false, err
	}
	return true, r.wait.checkFirst(waited)
}

// sendWithBoth sends the script with the wait for replicas, and the wait for the
// file when that has ended, as only then it is known what is left of the time.
func (r *run) sendWithBoth(ctx context.Context) (swapped bool, err error) {
	connection := r.node.Conn()
	defer connection.Close()
	var swap, waited *redis.Cmd
	_, _ = connection.Pipelined(ctx, func(p redis.Pipeliner) error {
		swap, waited = r.queueScript(ctx, p), r.wait.queueFirst(ctx, p)
		return nil
	})
	if swapped, err = swap.Bool(); err != nil || !swapped {
		return false, err
	}
	if err := r.wait.checkFirst(waited); err != nil {
		return true, err
	}
	return true, r.wait.checkAOF(r.wait.queueAOF(ctx, connection))
}

func (r *run) queueScript(ctx context.Context, p redis.Pipeliner) *redis.Cmd {
	if r.asking {
		p.Do(ctx, "ASKING")
	}
	if r.whole {
		return p.Eval(ctx, r.source, []string{r.key}, r.args...)
	}
	return p.EvalSha(ctx, r.lua.Hash(), []string{r.key}, r.args...)
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
