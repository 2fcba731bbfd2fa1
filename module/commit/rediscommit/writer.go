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

// Writer sends writes to the masters that have their keys, many at once, and waits
// for their durability. A [Store] has one; others are for writes that are no
// compare-and-set of a whole value. It is safe for concurrent use, does no I/O of its
// own accord, and needs no closing.
type Writer struct {
	name     string
	observed string
	cfg      Config
	observer observe.Observer
	nodes    *nodes
	together coalescer[[]*sentWrite]
}

// batchesAtATime is how many batches of calls are on their way to a node. While one is
// executed the next one travels.
const batchesAtATime = 2

// Write is what is written under keys of one slot. It must be such that to send
// it again changes nothing, as it is after a lost answer.
type Write struct {
	Key string // one of the keys

	// Queue queues the commands. It is called for each sending, and what it
	// returns once after that, for the error of the commands. Errors that Redis
	// answers are to be wrapped, if at all.
	Queue func(ctx context.Context, to redis.Pipeliner) (check func() error)
}

// NewWriter returns a writer on client, which stays the caller's. Name is that of
// the store, for errors; observed is what an observer knows it by.
func NewWriter(client redis.UniversalClient, name, observed string, cfg Config, o Options) (*Writer, error) {
	if err := errors.Join(cfg.Validate(), cfg.Durability.fits(client)); err != nil {
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
		together: coalescer[[]*sentWrite]{slots: batchesAtATime},
	}
}

// Do sends writes, those for a node in one pipeline, and returns the error of
// each: [module.Unavailable], after which it may be done or not. While the slot of
// a write moves, or its cluster has no master for it, it is sent again until it is
// done or the time is up.
func (w *Writer) Do(ctx context.Context, writes ...Write) []error {
	return w.do(ctx, w.sendAtOnce, writes)
}

// DoDurably is Do, and then waits for the durability of the writes. Calls that come
// while others are on their way to a node are sent to it together.
func (w *Writer) DoDurably(ctx context.Context, writes ...Write) []error {
	return w.do(ctx, w.sendTogether, writes)
}

// sending is a way to send writes to a node. It puts down the error of each.
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

// sendAll sends writes until none of them is redirected any more, or ctx ends.
func (w *Writer) sendAll(ctx context.Context, send sending, writes []Write) []error {
	errs := make([]error, len(writes))
	open := make([]*sentWrite, len(writes))
	for i := range writes {
		open[i] = &sentWrite{Write: &writes[i], err: &errs[i]}
	}
	for try := 0; len(open) > 0; try++ {
		w.sendOnce(ctx, send, open)
		open = slices.DeleteFunc(open, func(s *sentWrite) bool { return !w.redirect(ctx, s) })
		if len(open) > 0 && !pauseBefore(ctx, try) {
			break
		}
	}
	return errs
}

// pauseBefore waits before what was redirected is sent again, longer each time.
// It returns false when ctx has ended.
func pauseBefore(ctx context.Context, try int) bool {
	if try == 0 {
		return ctx.Err() == nil
	}
	longest := min(time.Millisecond<<min(try, 7), 100*time.Millisecond)
	return retry.Sleep(ctx, rand.N(longest)) == nil
}

// sentWrite is a write on its way.
type sentWrite struct {
	*Write
	node   *redis.Client // nil where it is to be found
	asking bool          // the slot is on its way to the node
	whole  bool          // the node did not know the script
	err    *error
}

// sendOnce sends each write to its node.
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

// sendTogether is sendDurably, along with the writes of other calls. What failed since
// another call's context has ended, or a connection was lost, is sent again.
func (w *Writer) sendTogether(ctx context.Context, node *redis.Client, group []*sentWrite) {
	own := make([]*sentWrite, len(group)) // may be in use when this call has returned
	for i, s := range group {
		c := *s
		c.err = new(error)
		own[i] = &c
	}
	batched, err := w.together.do(ctx, node, own, func(batch [][]*sentWrite) {
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

// isUnanswered reports whether Redis has not answered.
func isUnanswered(err error) bool {
	var refusal redis.Error
	return err != nil && !errors.As(err, &refusal) && !errors.Is(err, commit.ErrNotConfirmed)
}

// sendAtOnce sends writes in a pipeline.
func (w *Writer) sendAtOnce(ctx context.Context, node *redis.Client, group []*sentWrite) {
	pipe := node.Pipeline()
	queueAll(ctx, pipe, group)(ctx, pipe)
}

// sendDurably sends writes in a pipeline, with the wait for the durability of all of
// them behind it.
func (w *Writer) sendDurably(ctx context.Context, node *redis.Client, group []*sentWrite) {
	d := w.cfg.Durability
	if !d.isAsked() {
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
	waits := wait{what: d, ends: start.Add(d.Timeout)}
	var connection connection = node
	if d.isBoth() { // the second wait is sent when the first has ended
		one := node.Conn()
		defer one.Close()
		connection = one
	}
	pipe := connection.Pipeline()
	check := queueAll(ctx, pipe, group)
	waited := waits.queueFirst(ctx, pipe)
	check(ctx, pipe)
	done := slices.DeleteFunc(slices.Clone(group), func(s *sentWrite) bool { return *s.err != nil })
	if len(done) == 0 {
		return
	}
	if err = waits.checkFirst(waited); err == nil && d.isBoth() {
		err = waits.checkAOF(waits.queueAOF(ctx, connection))
	}
	w.observer.Took(observe.DurabilityWait, w.observed, time.Since(start), err == nil)
	setErrors(done, err)
}

// connection is a client, or one connection of it.
type connection interface {
	doer
	Pipeline() redis.Pipeliner
}

func setErrors(group []*sentWrite, err error) {
	for _, s := range group {
		*s.err = err
	}
}

// queueAll queues the commands of writes. What it returns sends them, and puts
// down the error of each.
func queueAll(ctx context.Context, pipe redis.Pipeliner, group []*sentWrite) func(context.Context, redis.Pipeliner) {
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

// redirect prepares to send again what was not done, and reports whether that can
// help.
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
		again := !s.whole
		s.whole = true
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
