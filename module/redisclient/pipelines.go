package redisclient

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/pushfx/pushfx/module/fault"
	"github.com/pushfx/pushfx/module/observe"
	"github.com/pushfx/pushfx/module/retry"
)

// Pipelines sends commands to the masters of their keys. Concurrent commands share
// pipelines. All users of a client share one Pipelines. It is safe for concurrent use,
// does no I/O in the background, and needs no closing.
type Pipelines struct {
	client   redis.UniversalClient
	moves    *moves
	silences *silences

	reads  coalescer
	writes coalescer

	mu      sync.Mutex
	durable map[Durability]*coalescer // writes
}

// NewPipelines returns the pipelines of a client, which must read from masters. The
// caller closes the client. The observer gets each [observe.MasterSkipped].
func NewPipelines(client redis.UniversalClient, observer observe.Observer) *Pipelines {
	s := &silences{observer: observe.Or(observer)}
	p := &Pipelines{client: client, moves: newMoves(client, s), silences: s, durable: map[Durability]*coalescer{}}
	p.reads = coalescer{pipelines: p, kind: Kind{IsRead: true}, slots: func(*redis.Client) int { return runtime.GOMAXPROCS(0) }}
	p.writes = coalescer{pipelines: p, slots: func(*redis.Client) int { return maxBatches }}
	return p
}

// maxBatches bounds the batches of writes on their way to a node: Redis executes one
// while the next travels.
const maxBatches = 2

// Sender is a pipeline, or a client if a command is sent alone.
type Sender interface {
	redis.Cmdable
	Do(ctx context.Context, args ...any) *redis.Cmd
}

// Command is one or more commands of Redis on keys of one slot.
type Command struct {
	Key string // any of the keys

	// Queue queues the commands. It is called each time they are sent, perhaps with
	// another caller's context. Check then returns their error, which must be or wrap the
	// error from Redis, or [ErrReplied].
	Queue func(ctx context.Context, to Sender) (check func() error)

	IsSingle bool // Queue sends one command

	// After the command:

	Node   *redis.Client // the node that replied, nil if it is not known
	Asked  bool          // see [Pipelines.Elsewhere]
	Waited time.Duration // for its durability
}

// reload makes a cluster client load the topology again, in the background and at most
// five times a second, because a node may have failed.
func (p *Pipelines) reload() {
	if cluster, isCluster := p.client.(*redis.ClusterClient); isCluster {
		cluster.ReloadState(context.Background())
	}
}

// Kind says what commands need. Only commands of one kind share a pipeline.
//
// A read is repeated after a lost reply. On a cluster, no master replies to it during a
// manual failover.
//
// A write may be sent twice, so it must be idempotent, or find out by itself that it was
// done before. After an error that is not from Redis, it may have been done.
type Kind struct {
	IsRead     bool
	Durability Durability // that a write waits for
}

func (k Kind) isDurable() bool { return k.Durability.IsRequired() }

// sent is a command that is being sent.
type sent struct {
	*Command
	redirect     *redis.Client // the node of a redirection; nil means the master of the key
	asking       bool          // the slot is moving to that node
	shared       bool          // its last pipeline was shared: another caller's context may have ended it
	withoutReply int           // how often it was sent without getting a reply
	left         error         // the caller's context has ended, but the command may still be sent

	// The caller that sends the pipeline sets these fields. Once left is set, the
	// command's own caller does not read them.

	check  func() error
	err    error
	waited time.Duration
}

// Do sends commands of one kind and returns the error of each. Until ctx ends, it sends
// a failed command again if that can help, for example after the slot has moved. If ctx
// has ended before, nothing is sent.
func (p *Pipelines) Do(ctx context.Context, k Kind, commands ...*Command) []error {
	if err := ctx.Err(); err != nil { // another caller, with a context of its own, might send them
		return slices.Repeat([]error{err}, len(commands))
	}
	all, open := make([]sent, len(commands)), make([]*sent, len(commands))
	for i, c := range commands {
		all[i].Command = c
		open[i] = &all[i]
	}
	known, began := newcomers{}, time.Now()
	defer known.close()
	for try := 0; len(open) > 0; try++ {
		if len(open) > 1 {
			p.sendGroups(ctx, k, open)
		} else if s := open[0]; p.findNode(ctx, s) {
			p.sendTo(ctx, k, s.Node, open)
		}
		if slices.ContainsFunc(open, func(s *sent) bool { return s.left != nil }) {
			break
		}
		open = slices.DeleteFunc(open, func(s *sent) bool { return !p.mayRepeat(ctx, k, s, known) })
		isLate := p.leavesSilent(ctx) && time.Since(began) > silentAfter // nodes refuse, perhaps during a failover
		if len(open) > 0 && (isLate || !waitBeforeRetry(ctx, try)) {
			break
		}
	}
	errs := make([]error, len(all))
	for i := range all {
		errs[i] = p.finish(&all[i])
	}
	return errs
}

// Elsewhere looks for missing keys on the other masters of a cluster. It returns an error
// for each command whose key another master may have, and wraps [ErrOtherMaster] if that
// is certain. The key may have been created or moved since the reply. So the caller sends
// the command again: the error counts only if the key is still missing. The caller also
// sends a command again whose Asked is set: the slot's master has redirected it to the target
// of a move. If that was long ago, the slot may have moved on, and be on its way back to this
// node, which lacks the keys that are still at the new source.
func (p *Pipelines) Elsewhere(ctx context.Context, commands ...*Command) []error {
	errs := make([]error, len(commands))
	if !p.isCluster() {
		return errs
	}
	// One request answers for all slots of a block. So the keys of a block are checked one
	// by one, and blocks concurrently.
	blocks := map[int][]int{}
	for i, c := range commands {
		block := SlotOf(c.Key) / slotBlock
		blocks[block] = append(blocks[block], i)
	}
	var asking sync.WaitGroup
	for _, block := range blocks {
		asking.Go(func() {
			for _, i := range block {
				errs[i] = p.moves.elsewhere(ctx, commands[i].Key, commands[i].Node)
			}
		})
	}
	asking.Wait()
	return errs
}

// finish returns the error of a command.
func (p *Pipelines) finish(s *sent) error {
	if s.left != nil {
		p.reload()
		return s.left
	}
	if lacksReply(s.err) {
		p.reload()
	}
	s.Command.Waited = s.waited
	return s.err
}

// waitBeforeRetry waits longer with each try. It returns false when ctx has ended.
func waitBeforeRetry(ctx context.Context, try int) bool {
	if try == 0 {
		return ctx.Err() == nil
	}
	maxWait := min(time.Millisecond<<min(try, 7), 100*time.Millisecond)
	return retry.Sleep(ctx, rand.N(maxWait)) == nil
}

// sendGroups sends commands to several nodes at once.
func (p *Pipelines) sendGroups(ctx context.Context, k Kind, commands []*sent) {
	groups := map[*redis.Client][]*sent{}
	for _, s := range commands {
		if p.findNode(ctx, s) {
			groups[s.Node] = append(groups[s.Node], s)
		}
	}
	var nodes sync.WaitGroup
	for node, group := range groups {
		if len(groups) == 1 {
			p.sendTo(ctx, k, node, group)
			return
		}
		nodes.Go(func() { p.sendTo(ctx, k, node, group) })
	}
	nodes.Wait()
}

// leavesSilent reports whether a call does not wait for silent nodes. If there is only one
// server, each call waits for it.
func (p *Pipelines) leavesSilent(ctx context.Context) bool {
	return p.isCluster() && retry.LeavesSilent(ctx)
}

// Silent returns whether each node of a cluster is silent, by address, as far as calls have
// found out. It leaves out nodes that have got no commands for a minute.
func (p *Pipelines) Silent() map[string]bool {
	if !p.isCluster() {
		return nil
	}
	return p.silences.states()
}

// Wait waits for commands for which calls have not waited.
func (p *Pipelines) Wait() { p.silences.left.Wait() }

// sendTo sends commands to a node. A call for many users does not wait for a silent node.
func (p *Pipelines) sendTo(ctx context.Context, k Kind, node *redis.Client, group []*sent) {
	if node == nil || !p.leavesSilent(ctx) {
		p.coalescerOf(k).send(ctx, node, group)
		return
	}
	own := make([]sent, len(group)) // what the sender changes, perhaps when nobody waits any more
	sending := make([]*sent, len(group))
	for i, s := range group {
		own[i] = *s
		sending[i] = &own[i]
	}
	if !p.silences.isSilent(node) && p.silences.await(node, func() { p.coalescerOf(k).send(ctx, node, sending) }) {
		for i, s := range group {
			*s = own[i]
		}
		return
	}
	for _, s := range group {
		s.err = fmt.Errorf("the Redis at %s: %w", node.Options().Addr, retry.ErrSilent)
	}
}

// findNode sets the node of a command, or its error.
func (p *Pipelines) findNode(ctx context.Context, s *sent) (found bool) {
	if s.Node = s.redirect; s.Node != nil {
		return true
	}
	if s.Node, s.err = p.masterOf(ctx, s.Key); s.err != nil {
		s.err = fmt.Errorf("%w: %w", errNoMaster, s.err)
	}
	return s.err == nil
}

func (p *Pipelines) coalescerOf(k Kind) *coalescer {
	switch {
	case k.IsRead:
		return &p.reads
	case !k.isDurable():
		return &p.writes
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	c, found := p.durable[k.Durability]
	if !found {
		// While a replica is down, all durable changes wait, and so hold connections. Half of
		// the connections are left for other commands.
		c = &coalescer{pipelines: p, kind: k, slots: func(node *redis.Client) int { return max(1, node.Options().PoolSize/2) }}
		p.durable[k.Durability] = c
	}
	return c
}

// send sends commands in a pipeline that ends with the wait for their durability.
func (p *Pipelines) send(ctx context.Context, k Kind, node *redis.Client, group []*sent) {
	if node != nil {
		f := p.silences.begin(node.Options().Addr, k.Durability.MaxWait())
		defer func() { f.end(errorOf(group)) }()
	}
	switch {
	case k.isDurable():
		sendDurably(ctx, k.Durability, node, group)
	case node == nil:
		pipe := p.client.Pipeline()
		for _, s := range group {
			s.queue(ctx, pipe)
		}
		exec(ctx, pipe, group)
	case len(group) == 1 && group[0].IsSingle && !p.isCluster():
		group[0].err = group[0].Queue(ctx, node)()
	default:
		pipe := node.Pipeline()
		for i, s := range group {
			if k.IsRead && p.isCluster() && i%maxBehindFence == 0 {
				fence(ctx, pipe)
			}
			s.queue(ctx, pipe)
		}
		exec(ctx, pipe, group)
	}
}

// errorOf returns nil if the node has replied to any command.
func errorOf(group []*sent) (err error) {
	for _, s := range group {
		if err = s.err; isReply(err) {
			return nil
		}
	}
	return err
}

func (s *sent) queue(ctx context.Context, pipe redis.Pipeliner) {
	if s.asking {
		pipe.Do(ctx, "ASKING")
	}
	s.check = s.Queue(ctx, pipe)
}

func exec(ctx context.Context, pipe redis.Pipeliner, group []*sent) {
	_, _ = pipe.Exec(ctx) // each command has its own error
	for _, s := range group {
		s.err = s.check()
	}
}

// maxSendings bounds how often a read is sent if replies get lost, unless the client
// itself repeats it.
const maxSendings = 3

// clientRepeats reports whether the client itself repeats commands without a reply. Then
// Pipelines does not, because each try may add a failed dial. After as many failed dials
// as its pool has connections, the client does not dial for up to a second.
func (p *Pipelines) clientRepeats() bool {
	c, isSingle := p.client.(*redis.Client)
	return isSingle && c.Options().MaxRetries > 0
}

// mayRepeat reports whether to send a failed command again, and prepares it.
func (p *Pipelines) mayRepeat(ctx context.Context, k Kind, s *sent, known newcomers) bool {
	if errors.Is(s.err, retry.ErrSilent) {
		return false
	}
	if lacksReply(s.err) {
		return p.repeats(ctx, k, s)
	}
	s.Asked, s.redirect, s.asking = s.asking, nil, false
	var refusal redis.Error
	if !errors.As(s.err, &refusal) {
		return false
	}
	word, rest, _ := strings.Cut(refusal.Error(), " ")
	switch word {
	case "NOSCRIPT": // the call takes the source now
		return true
	case "MOVED", "ASK":
		if _, address, found := strings.Cut(rest, " "); found {
			s.redirect = p.at(ctx, address, known)
			s.asking = word == "ASK" && s.redirect != nil
		}
		return true
	case "TRYAGAIN", "CLUSTERDOWN", "READONLY", "LOADING", "MASTERDOWN":
		p.reload()
		return true
	}
	return false
}

// repeats reports whether a command without a reply is sent again. Any command is sent
// once more if another caller's context may have ended its pipeline. Unless the client
// itself repeats commands, reads and unsent writes are sent again, too. For any other
// write, the caller must find out whether it was done.
func (p *Pipelines) repeats(ctx context.Context, k Kind, s *sent) bool {
	s.redirect, s.asking = nil, false
	s.withoutReply++
	if ctx.Err() != nil || s.withoutReply >= maxSendings {
		return false
	}
	return s.shared && s.withoutReply == 1 || !p.clientRepeats() && (k.IsRead || isUnsent(s.err))
}

var errNoMaster = errors.New("the master of the slot is not known")

// errPanicked is the error of a command until its pipeline ends. It stays if the caller
// that sends the pipeline panics, perhaps in a hook of the client.
var errPanicked = errors.New("the sender of the pipeline panicked")

func isUnsent(err error) bool {
	var network *net.OpError
	return errors.Is(err, errNoMaster) || errors.As(err, &network) && network.Op == "dial"
}

// ErrReplied means that Redis has replied, not with an error, but with a value that makes
// a check fail. The check's error wraps it, so that the command is not sent again.
var ErrReplied = errors.New("replied")

// lacksReply reports whether no server has replied to a command, which it may have
// received.
func lacksReply(err error) bool {
	var refusal redis.Error
	return err != nil && (errors.Is(err, errNoMaster) || !errors.As(err, &refusal) && !errors.Is(err, fault.ErrNotConfirmed) && !errors.Is(err, ErrReplied))
}
