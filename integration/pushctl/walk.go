package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// pageSize is how many keys are asked for at once: few enough that no request
// of a client waits for long behind them.
const pageSize = 250

// walk goes through the keys of all masters, side by side. It can be interrupted
// and goes on later where it was.
type walk struct {
	*backend
	pace     *pace
	progress *progress
	position *position

	// look reads a page of keys of a node. What it returns is called when no other
	// page's is, just before the position moves behind the page. An interruption
	// does not stop it, so that nothing is counted twice or lost.
	look func(ctx context.Context, node *redis.Client, keys []string) (done func(context.Context) error, err error)

	// settle is called, if it is not nil, when no page is, before the position is
	// saved: what was put off has to be done by then.
	settle func(ctx context.Context) error

	mu    sync.Mutex
	saved time.Time
}

// interruptedError says that a walk was stopped before its end.
type interruptedError struct{ remedy string }

func (e *interruptedError) Error() string { return "interrupted: " + e.remedy }

// errMoved is for a walk during which keys may have gone from where it had not
// been yet to where it had: slots of the cluster moved, or a server was restarted
// or replaced, to which the cursors of the former one mean nothing.
var errMoved = errors.New("slots have moved, or a master was replaced meanwhile, so that keys may have been missed: run it again")

// run goes through all keys.
func (w *walk) run(ctx context.Context) error {
	masters, err := w.masters(ctx)
	if err != nil {
		return err
	}
	layout, err := w.layout(ctx)
	if err != nil {
		return err
	}
	w.position.begin(masters, layout)
	w.progress.start(w.size(ctx, masters))
	defer w.progress.stop()
	w.saved = time.Now()
	err = w.walkMasters(ctx, masters)
	err = errors.Join(err, w.save(ctx))
	if err != nil {
		return w.explain(ctx, err)
	}
	if err := w.checkSame(ctx); err != nil {
		return errors.Join(err, w.position.remove())
	}
	if w.position.Found == 0 {
		err = w.nothingFound(ctx, masters)
	}
	return errors.Join(err, w.position.remove())
}

// checkSame checks that the masters are those of the start, with their slots.
func (w *walk) checkSame(ctx context.Context) error {
	layout, err := w.layout(ctx)
	if err != nil {
		return err
	}
	masters, err := w.masters(ctx)
	if err != nil {
		return err
	}
	if layout != w.position.Layout || !w.position.isOf(masters) {
		return errMoved
	}
	return nil
}

// explain tells an interruption from a failure.
func (w *walk) explain(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return &interruptedError{w.position.remedy()}
	}
	if w.position.isKept() {
		return fmt.Errorf("%w (%s)", err, w.position.remedy())
	}
	return err
}

func (w *walk) walkMasters(ctx context.Context, masters []master) error {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	var walking sync.WaitGroup
	for _, m := range masters {
		walking.Go(func() {
			if err := w.walkMaster(ctx, m); err != nil {
				stop(err)
			}
		})
	}
	walking.Wait()
	return context.Cause(ctx)
}

// walkMaster goes through the keys of one master, from where it was.
func (w *walk) walkMaster(ctx context.Context, m master) error {
	for cursor, ended := w.position.of(m); !ended; {
		count := w.pace.page(pageSize)
		var keys []string
		var next uint64
		if err := again(ctx, func() (err error) {
			keys, next, err = w.scan(ctx, m.client, cursor, count)
			return err
		}); err != nil {
			return err
		}
		if err := w.page(ctx, m, keys, next); err != nil {
			return err
		}
		cursor, ended = next, next == 0
	}
	return nil
}

// page handles all that one SCAN returned. It may be more than was asked for, and
// is read in parts, but it counts as a whole.
func (w *walk) page(ctx context.Context, m master, keys []string, next uint64) error {
	var done []func(context.Context) error
	for part := range slices.Chunk(keys, pageSize) {
		if err := w.pace.wait(ctx, len(part)); err != nil {
			return err
		}
		if err := again(ctx, func() error {
			apply, err := w.look(ctx, m.client, part)
			if err == nil {
				done = append(done, apply)
			}
			return err
		}); err != nil {
			return err
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.finish(ctx, m, keys, next, done)
}

// finish counts a page that was read, and moves the position behind it.
func (w *walk) finish(ctx context.Context, m master, keys []string, next uint64, done []func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), finishLimit)
	defer cancel()
	for _, apply := range done {
		if err := apply(ctx); err != nil {
			return err
		}
	}
	w.progress.add(len(keys))
	w.position.move(m, next)
	w.position.Found += int64(w.sort(keys).known())
	if time.Since(w.saved) < saveInterval {
		return nil
	}
	w.saved = time.Now()
	return w.saveNow(ctx)
}

// finishLimit bounds how long an interruption waits for a page that was begun.
const finishLimit = time.Minute

// saveInterval is how much of a walk is done again at most.
const saveInterval = 5 * time.Second

// save brings what was put off to its end, though ctx may have ended.
func (w *walk) save(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*replyLimit)
	defer cancel()
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.saveNow(ctx)
}

func (w *walk) saveNow(ctx context.Context) error {
	if w.settle != nil {
		if err := w.settle(ctx); err != nil {
			return err
		}
	}
	return w.position.save()
}

// maxAgain is how often a page is tried again that a server did not answer for.
const maxAgain = 3

// again tries a read again that no server has refused.
func again(ctx context.Context, read func() error) (err error) {
	for n := range maxAgain + 1 {
		if n > 0 && sleep(ctx, time.Duration(n)*time.Second) != nil {
			return err
		}
		var refused redis.Error
		if err = read(); err == nil || ctx.Err() != nil || errors.As(err, &refused) {
			return err
		}
	}
	return err
}

func (w *walk) scan(ctx context.Context, node *redis.Client, cursor uint64, count int) (keys []string, next uint64, err error) {
	return w.scanMatching(ctx, node, cursor, w.keys.Pattern(), count)
}

func (w *walk) scanMatching(ctx context.Context, node *redis.Client, cursor uint64, pattern string, count int) (keys []string, next uint64, err error) {
	ctx, cancel := context.WithTimeout(ctx, replyLimit)
	defer cancel()
	keys, next, err = node.Scan(ctx, cursor, pattern, int64(count)).Result()
	if err != nil {
		return nil, 0, fmt.Errorf("SCAN on %s: %w", w.addressOf(node), err)
	}
	return keys, next, nil
}

// master is a server with keys of its own.
type master struct {
	client *redis.Client
	id     string // of the server's run: a cursor is good only as long as it lasts
}

// masters returns the masters there are, in the order of their addresses.
func (b *backend) masters(ctx context.Context) (masters []master, err error) {
	ctx, cancel := context.WithTimeout(ctx, replyLimit)
	defer cancel()
	var mu sync.Mutex
	add := func(ctx context.Context, client *redis.Client) error {
		info, err := client.Info(ctx, "server").Result()
		if err != nil {
			return fmt.Errorf("INFO on %s: %w", b.addressOf(client), err)
		}
		_, rest, _ := strings.Cut(info, "\r\nrun_id:")
		id, _, _ := strings.Cut(rest, "\r\n")
		mu.Lock()
		defer mu.Unlock()
		masters = append(masters, master{client, id})
		return nil
	}
	switch c := b.client.(type) {
	case *redis.ClusterClient:
		err = c.ForEachMaster(ctx, add)
	case *redis.Client:
		err = add(ctx, c)
	default:
		err = fmt.Errorf("a %T has no masters", c)
	}
	slices.SortFunc(masters, func(a, b master) int {
		return strings.Compare(a.client.Options().Addr, b.client.Options().Addr)
	})
	return masters, err
}

// layout tells which master has which slots; it is empty where there are none.
func (b *backend) layout(ctx context.Context) (string, error) {
	cluster, isCluster := b.client.(*redis.ClusterClient)
	if !isCluster {
		return "", nil
	}
	ctx, cancel := context.WithTimeout(ctx, replyLimit)
	defer cancel()
	nodes, err := cluster.ClusterNodes(ctx).Result()
	if err != nil {
		return "", fmt.Errorf("CLUSTER NODES: %w", err)
	}
	var parts []string
	for line := range strings.Lines(nodes) {
		fields := strings.Fields(line) // id, address, flags, five more, and the slots
		if len(fields) <= 8 || !strings.Contains(fields[2], "master") {
			continue
		}
		own := slices.DeleteFunc(fields[8:], func(s string) bool { return strings.HasPrefix(s, "[") }) // those on their way
		parts = append(parts, fields[0]+" "+strings.Join(own, " "))
	}
	slices.Sort(parts)
	return strings.Join(parts, ", "), nil
}

// size is about how many keys there are, those of others included.
func (w *walk) size(ctx context.Context, masters []master) (n int64) {
	ctx, cancel := context.WithTimeout(ctx, replyLimit)
	defer cancel()
	for _, m := range masters {
		size, err := m.client.DBSize(ctx).Result()
		if err != nil {
			return 0 // not everybody may ask
		}
		n += size
	}
	return n
}
