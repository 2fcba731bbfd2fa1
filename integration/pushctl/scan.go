package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/pushfx/pushfx/module/retry"
)

// pageSize is how many keys are asked for at once: few enough that no request
// of a client waits for long behind them.
const pageSize = 250

// scanner goes through the keys of all masters. It can be interrupted, and goes
// on later from its position.
type scanner struct {
	*backend
	pace     *pace
	progress *progress
	position *position

	// flush is called, unless it is nil, before the position is saved: what was put
	// off has to be done by then.
	flush func(context.Context) error

	page  pageFunc
	mu    sync.Mutex // held while a page is applied, and while the position is saved
	saved time.Time
}

// pageFunc reads a page of the keys of a node. Pages of several nodes are read at
// the same time. What it returns is called when no other page's is, just before
// the position moves behind the page; an interruption does not stop it, so that
// nothing is done twice or left out.
type pageFunc func(ctx context.Context, node *redis.Client, keys []string) (apply func(context.Context) error, err error)

// newScanner returns a scanner that begins at a position; doing is what the
// command does, for its progress.
func (c *call) newScanner(doing string, from *position) *scanner {
	return &scanner{backend: c.backend, pace: &pace{rate: c.rate}, progress: c.newProgress(doing, "keys"), position: from}
}

// interruptedError says that a scan was stopped before its end.
type interruptedError struct{ remedy string }

func (e *interruptedError) Error() string { return "interrupted: " + e.remedy }

// errMoved is for a scan that may have missed keys: slots of the cluster moved,
// or a server was restarted or replaced, for which the cursors of the former one
// mean nothing.
var errMoved = errors.New("slots have moved, or a master was replaced meanwhile, so that keys may have been missed: run it again")

// Scan calls page for all keys. Errors: an [interruptedError] when ctx ends, a
// [nothingFoundError], those of page.
func (s *scanner) Scan(ctx context.Context, page pageFunc) error {
	masters, err := s.masters(ctx)
	if err != nil {
		return err
	}
	layout, err := s.layout(ctx)
	if err != nil {
		return err
	}
	s.position.begin(masters, layout)
	s.progress.start(s.size(ctx, masters))
	defer s.progress.stop()
	s.page, s.saved = page, time.Now()
	if err := errors.Join(s.scanMasters(ctx, masters), s.save(ctx)); err != nil {
		return s.explain(ctx, err)
	}
	err = s.checkMasters(ctx)
	if err == nil && s.position.Found == 0 {
		err = s.nothingFound(ctx, masters)
	}
	return errors.Join(err, s.position.remove())
}

// checkMasters checks that the masters are those of the start, with their slots.
func (s *scanner) checkMasters(ctx context.Context) error {
	layout, err := s.layout(ctx)
	if err != nil {
		return err
	}
	masters, err := s.masters(ctx)
	if err != nil {
		return err
	}
	if layout != s.position.Layout || !s.position.isOf(masters) {
		return errMoved
	}
	return nil
}

// explain tells an interruption from a failure.
func (s *scanner) explain(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return &interruptedError{s.position.remedy()}
	}
	if s.position.isKept() {
		return fmt.Errorf("%w (%s)", err, s.position.remedy())
	}
	return err
}

func (s *scanner) scanMasters(ctx context.Context, masters []master) error {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	var scanning sync.WaitGroup
	for _, m := range masters {
		scanning.Go(func() {
			if err := s.scanMaster(ctx, m); err != nil {
				stop(err)
			}
		})
	}
	scanning.Wait()
	return context.Cause(ctx)
}

// scanMaster goes through the keys of one master, from where it was.
func (s *scanner) scanMaster(ctx context.Context, m master) error {
	for cursor, ended := s.position.of(m); !ended; {
		keys, next, err := s.nextKeys(ctx, m.client, cursor, s.keys.Pattern())
		if err != nil {
			return err
		}
		apply, err := s.read(ctx, m.client, keys)
		if err != nil {
			return err
		}
		if err := s.apply(ctx, m, keys, next, apply); err != nil {
			return err
		}
		cursor, ended = next, next == 0
	}
	return nil
}

// nextKeys asks for the keys from a cursor on.
func (s *scanner) nextKeys(ctx context.Context, node *redis.Client, cursor uint64, pattern string) (keys []string, next uint64, err error) {
	err = again(ctx, func(ctx context.Context) (err error) {
		keys, next, err = node.Scan(ctx, cursor, pattern, int64(s.pace.page(pageSize))).Result()
		return err
	})
	if err != nil {
		return nil, 0, fmt.Errorf("SCAN on %s: %w", s.addressOf(node), err)
	}
	return keys, next, nil
}

// read reads all that one SCAN returned. It may be more than was asked for, and is
// read in parts.
func (s *scanner) read(ctx context.Context, node *redis.Client, keys []string) (all []func(context.Context) error, err error) {
	for part := range slices.Chunk(keys, pageSize) {
		if err := s.pace.wait(ctx, len(part)); err != nil {
			return nil, err
		}
		var apply func(context.Context) error
		if err := again(ctx, func(ctx context.Context) (err error) {
			apply, err = s.page(ctx, node, part)
			return err
		}); err != nil {
			return nil, err
		}
		all = append(all, apply)
	}
	return all, nil
}

// applyLimit bounds how long an interruption waits for a page that was begun.
const applyLimit = time.Minute

// apply applies what was read and moves the position behind it.
func (s *scanner) apply(ctx context.Context, m master, keys []string, next uint64, all []func(context.Context) error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), applyLimit)
	defer cancel()
	for _, apply := range all {
		if err := apply(ctx); err != nil {
			return err
		}
	}
	s.progress.add(len(keys))
	s.position.move(m, next, s.countOwn(keys))
	if time.Since(s.saved) < saveInterval {
		return nil
	}
	return s.saveNow(ctx)
}

// saveInterval is how much of a scan is done again at most.
const saveInterval = 5 * time.Second

// save brings what was put off to its end, though ctx may have ended.
func (s *scanner) save(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), applyLimit)
	defer cancel()
	return s.saveNow(ctx)
}

func (s *scanner) saveNow(ctx context.Context) error {
	if s.flush != nil {
		if err := s.flush(ctx); err != nil {
			return err
		}
	}
	s.saved = time.Now()
	return s.position.save()
}

// maxAgain is how often a read is tried again that a server did not answer.
const maxAgain = 3

// again tries a read again that no server has refused. Each time it may take
// [replyLimit].
func again(ctx context.Context, read func(context.Context) error) (err error) {
	for n := range maxAgain + 1 {
		if n > 0 && retry.Sleep(ctx, time.Duration(n)*time.Second) != nil {
			return err
		}
		reading, cancel := context.WithTimeout(ctx, replyLimit)
		err = read(reading)
		cancel()
		var refused redis.Error
		if err == nil || ctx.Err() != nil || errors.As(err, &refused) {
			return err
		}
	}
	return err
}
