package rediscommit

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/commit"
	"github.com/pushfx/pushfx/module/observe"
	"github.com/pushfx/pushfx/module/retry"
)

// Writer sends writes to the masters of their keys, and waits for their durability. A
// [Store] has one; others are for writes that are not compare-and-set of a whole value.
// It is safe for concurrent use, does no I/O in the background, and needs no closing.
type Writer struct {
	name     string
	observed string
	cfg      Config
	observer observe.Observer
	nodes    *nodes
	batches  coalescer[[]*sentWrite]
}

// maxBatches bounds the batches on their way to a node: Redis executes one while the
// next travels.
const maxBatches = 2

// Write writes keys of one slot. It must be idempotent, because it is sent again after a
// lost reply.
type Write struct {
	Key string // any of the keys

	// Queue queues the commands; it is called for each sending. Check then returns
	// their error, which must be or wrap the error from Redis.
	Queue func(ctx context.Context, to redis.Pipeliner) (check func() error)
}

// NewWriter returns a writer on client, which the caller closes. Name is for errors,
// observed for observers.
func NewWriter(client redis.UniversalClient, name, observed string, cfg Config, o Options) (*Writer, error) {
	if err := errors.Join(cfg.Validate(), cfg.Durability.checkClient(client)); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	switch client.(type) {
	case *redis.Client, *redis.ClusterClient:
	default:
		return nil, fmt.Errorf("%s: it needs a *redis.Client or *redis.ClusterClient, not a %T", name, client)
	}
	return newWriter(newNodes(client, o.WaitLimiter), name, observed, cfg, o.Observer), nil
}

func newWriter(nodes *nodes, name, observed string, cfg Config, observer observe.Observer) *Writer {
	nodes.watch()
	return &Writer{
		name: name, observed: observed, cfg: cfg, observer: observe.Or(observer), nodes: nodes,
		batches: coalescer[[]*sentWrite]{slots: maxBatches},
	}
}

// Do sends writes, in one pipeline for each node, and returns their errors, each
// [module.Unavailable], after which the write may have been done. Until its time is up,
// it repeats a write whose slot moves or has no master.
func (w *Writer) Do(ctx context.Context, writes ...Write) []error {
	return w.do(ctx, w.sendAtOnce, writes)
}

// DoDurably is Do with a wait for the durability. Concurrent calls share pipelines.
func (w *Writer) DoDurably(ctx context.Context, writes ...Write) []error {
	return w.do(ctx, w.sendTogether, writes)
}

type sending func(ctx context.Context, node *redis.Client, writes []*sentWrite)

func (w *Writer) do(ctx context.Context, send sending, writes []Write) []error {
	ctx, cancel := w.cfg.Bound(ctx)
	defer cancel()
	errs := w.sendAll(ctx, send, writes)
	for i, err := range errs {
		if err != nil {
			errs[i] = module.Unavailable(fmt.Errorf("%s: %w", w.name, err))
		}
	}
	if slices.ContainsFunc(errs, func(err error) bool { return err != nil }) {
		w.nodes.reload()
	}
	return errs
}

// sendAll sends writes until none needs a redirection, or ctx ends.
func (w *Writer) sendAll(ctx context.Context, send sending, writes []Write) []error {
	errs := make([]error, len(writes))
	open := make([]*sentWrite, len(writes))
	for i := range writes {
		open[i] = &sentWrite{Write: &writes[i], err: &errs[i]}
	}
	for try := 0; len(open) > 0; try++ {
		w.sendOnce(ctx, send, open)
		open = slices.DeleteFunc(open, func(s *sentWrite) bool { return !w.redirect(ctx, s) })
		if len(open) > 0 && !waitBeforeRetry(ctx, try) {
			break
		}
	}
	return errs
}

// waitBeforeRetry waits longer with each try. It returns false when ctx has ended.
func waitBeforeRetry(ctx context.Context, try int) bool {
	if try == 0 {
		return ctx.Err() == nil
	}
	maxWait := min(time.Millisecond<<min(try, 7), 100*time.Millisecond)
	return retry.Sleep(ctx, rand.N(maxWait)) == nil
}

type sentWrite struct {
	*Write
	node       *redis.Client // nil if it must be found by key
	asking     bool          // the slot is moving to the node
	withSource bool          // the node lacked the script
	err        *error
}

func (w *Writer) sendOnce(ctx context.Context, send sending, writes []*sentWrite) {
	groups := map[*redis.Client][]*sentWrite{}
	for _, s := range writes {
		node := s.node
		if node == nil {
			if node, *s.err = w.nodes.masterOf(ctx, s.Key); *s.err != nil {
				continue
			}
		}
		groups[node] = append(groups[node], s)
	}
	var nodes sync.WaitGroup
	for node, group := range groups {
		nodes.Go(func() { send(ctx, node, group) })
	}
	nodes.Wait()
}

// sendTogether is sendDurably in one pipeline with other calls. It repeats writes
// without a reply, because another call's context may have ended.
func (w *Writer) sendTogether(ctx context.Context, node *redis.Client, group []*sentWrite) {
	own := make([]*sentWrite, len(group)) // copies, which may be in use after this call
	for i, s := range group {
		c := *s
		c.err = new(error)
		own[i] = &c
	}
	batched, err := w.batches.do(ctx, node, own, func(batch [][]*sentWrite) {
		w.sendDurably(ctx, node, slices.Concat(batch...))
	})
	if err != nil {
		setErrors(group, err)
		return
	}
	var again []*sentWrite
	for i, s := range group {
		*s.err = *own[i].err
		if batched && isUnanswered(*s.err) {
			again = append(again, s)
		}
	}
	if len(again) > 0 && ctx.Err() == nil {
		w.sendDurably(ctx, node, again)
	}
}

func isUnanswered(err error) bool {
	var refusal redis.Error
	return err != nil && !errors.As(err, &refusal) && !errors.Is(err, commit.ErrNotConfirmed)
}

func (w *Writer) sendAtOnce(ctx context.Context, node *redis.Client, group []*sentWrite) {
	pipe := node.Pipeline()
	queueAll(ctx, pipe, group)(ctx, pipe)
}

// sendDurably sends writes in a pipeline that ends with the wait for their durability.
func (w *Writer) sendDurably(ctx context.Context, node *redis.Client, group []*sentWrite) {
	d := w.cfg.Durability
	if !d.isRequired() {
		w.sendAtOnce(ctx, node, group)
		return
	}
	release, err := w.nodes.waits.acquire(ctx, node)
	if err != nil {
		setErrors(group, err)
		return
	}
	defer release()
	start := time.Now()
	wait := durabilityWait{required: d, deadline: start.Add(d.Timeout)}
	var connection connection = node
	if d.needsTwoWaits() { // the second wait needs the same connection
		conn := node.Conn()
		defer conn.Close()
		connection = conn
	}
	pipe := connection.Pipeline()
	exec := queueAll(ctx, pipe, group)
	waited := wait.queueFirst(ctx, pipe)
	exec(ctx, pipe)
	done := slices.DeleteFunc(slices.Clone(group), func(s *sentWrite) bool { return *s.err != nil })
	if len(done) == 0 {
		return
	}
	if err = wait.checkFirst(waited); err == nil && d.needsTwoWaits() {
		err = wait.checkAOF(wait.queueAOF(ctx, connection))
	}
	w.observer.Took(observe.DurabilityWait, w.observed, time.Since(start), err == nil)
	setErrors(done, err)
}

type connection interface {
	doer
	Pipeline() redis.Pipeliner
}

func setErrors(group []*sentWrite, err error) {
	for _, s := range group {
		*s.err = err
	}
}

// queueAll queues the commands of writes. Exec sends them and sets each write's error.
func queueAll(ctx context.Context, pipe redis.Pipeliner, group []*sentWrite) (exec func(context.Context, redis.Pipeliner)) {
	checks := make([]func() error, len(group))
	for i, s := range group {
		if s.asking {
			pipe.Do(ctx, "ASKING")
		}
		checks[i] = s.Queue(ctx, pipe)
	}
	return func(ctx context.Context, pipe redis.Pipeliner) {
		_, _ = pipe.Exec(ctx) // each command has its own error
		for i, s := range group {
			*s.err = checks[i]()
		}
	}
}

// redirect prepares a failed write for another sending, if that can help.
func (w *Writer) redirect(ctx context.Context, s *sentWrite) bool {
	err := *s.err
	var refusal redis.Error
	if err == nil || !errors.As(err, &refusal) {
		return false
	}
	text := refusal.Error()
	word, rest, _ := strings.Cut(text, " ")
	s.node, s.asking = nil, false
	switch word {
	case "NOSCRIPT":
		again := !s.withSource
		s.withSource = true
		return again
	case "MOVED", "ASK":
		if _, address, found := strings.Cut(rest, " "); found {
			s.node = w.nodes.at(ctx, address)
			s.asking = word == "ASK" && s.node != nil
		}
		return true
	case "TRYAGAIN", "CLUSTERDOWN", "READONLY", "LOADING", "MASTERDOWN":
		w.nodes.reload()
		return true
	}
	return false
}
