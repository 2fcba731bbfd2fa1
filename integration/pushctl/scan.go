package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/redis/go-redis/v9"
	"github.com/schollz/progressbar/v3"
	"golang.org/x/sync/errgroup"
	"golang.org/x/term"
	"golang.org/x/time/rate"

	"github.com/pushfx/pushfx/module/redisclient"
	"github.com/pushfx/pushfx/module/stored"
)

// pageSize is how many keys are asked for at once: few enough that no request
// of a client waits for long behind them.
const pageSize = 250

// limiter keeps to the rate; at most a page is taken at once.
func (p *pace) limiter() *rate.Limiter {
	if p.rate == 0 {
		return rate.NewLimiter(rate.Inf, 0)
	}
	return rate.NewLimiter(rate.Limit(p.rate), p.page(pageSize))
}

// page is how many keys to take at once, so that a slow pace is an even one.
func (p *pace) page(most int) int {
	if p.rate == 0 {
		return most
	}
	return min(most, max(1, p.rate/10))
}

// bar returns a progress bar on stderr, which shows only on a terminal.
func (p *pace) bar(doing string, total int64) *progressbar.ProgressBar {
	visible := !p.quiet && term.IsTerminal(int(os.Stderr.Fd()))
	return progressbar.NewOptions64(max(total, 1), progressbar.OptionSetVisibility(visible), progressbar.OptionSetWriter(os.Stderr),
		progressbar.OptionSetDescription(doing), progressbar.OptionShowCount(), progressbar.OptionShowIts(),
		progressbar.OptionClearOnFinish(), progressbar.OptionFullWidth())
}

// scanner goes through the keys of all masters.
type scanner struct {
	*backend
	pace    *pace
	limiter *rate.Limiter
	bar     *progressbar.ProgressBar
	own     atomic.Int64 // keys of users
}

// pageFunc handles a page of the keys of a node. Pages of several nodes are handled
// at the same time.
type pageFunc func(ctx context.Context, node *redis.Client, keys []string) error

// errNothing is for a scan that found no key of the module's: the flags most likely
// name another prefix or Redis than the hosts use.
var errNothing = errors.New("there are no push rules or pushers")

// errMoved is for a scan that may have missed keys.
var errMoved = errors.New("slots have moved, or a master was replaced meanwhile, so that keys may have been missed: run it again")

// newScanner returns a scanner; doing is what the command does, for the bar.
func (b *backend) newScanner(p *pace, doing string) *scanner {
	return &scanner{backend: b, pace: p, limiter: p.limiter(), bar: p.bar(doing, 0)}
}

// scan calls page for all keys, for some of them twice. Errors: [errNothing],
// [errMoved], those of page.
func (s *scanner) scan(ctx context.Context, page pageFunc) error {
	before, err := s.topology(ctx)
	if err != nil {
		return err
	}
	s.bar.ChangeMax64(max(s.size(ctx), 1))
	scanning, stop := context.WithCancel(ctx)
	defer stop()
	err = redisclient.EachMaster(scanning, s.client, func(ctx context.Context, node *redis.Client) error {
		err := s.scanNode(ctx, node, page)
		if err != nil {
			stop()
		}
		return err
	})
	if err = errors.Join(err, s.bar.Exit()); err != nil {
		return err
	}
	after, err := s.topology(ctx)
	switch {
	case err != nil:
		return err
	case before != after:
		return errMoved
	case s.own.Load() == 0:
		return fmt.Errorf("%w under -key-prefix %q on %s", errNothing, s.keys.Prefix, s.servers)
	}
	return nil
}

func (s *scanner) scanNode(ctx context.Context, node *redis.Client, page pageFunc) error {
	for cursor := uint64(0); ; {
		keys, next, err := node.Scan(ctx, cursor, s.keys.Pattern(), int64(s.pace.page(pageSize))).Result()
		if err != nil {
			return fmt.Errorf("SCAN on %s: %w", s.addressOf(node), err)
		}
		for part := range slices.Chunk(keys, s.pace.page(pageSize)) { // a reply may be longer than was asked for
			if err := s.limiter.WaitN(ctx, len(part)); err != nil {
				return err
			}
			if err := s.handle(ctx, node, part, page); err != nil {
				return err
			}
		}
		if cursor = next; cursor == 0 {
			return nil
		}
	}
}

func (s *scanner) handle(ctx context.Context, node *redis.Client, keys []string, page pageFunc) error {
	if err := page(ctx, node, keys); err != nil {
		return err
	}
	for _, key := range keys {
		if kind := s.keys.Parse(key).Kind; kind == stored.RulesKey || kind == stored.PushersKey || kind == stored.ClaimsKey {
			s.own.Add(1)
		}
	}
	_ = s.bar.Add(len(keys)) // it is only shown
	return nil
}

// topology tells which runs of servers are masters, and which slots each has.
func (b *backend) topology(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, replyLimit)
	defer cancel()
	var mu sync.Mutex
	var all []string
	err := redisclient.EachMaster(ctx, b.client, func(ctx context.Context, node *redis.Client) error {
		info, err := node.Info(ctx, "server").Result()
		if err != nil {
			return fmt.Errorf("INFO on %s: %w", b.addressOf(node), err)
		}
		_, rest, _ := strings.Cut(info, "\r\nrun_id:")
		id, _, _ := strings.Cut(rest, "\r\n")
		mu.Lock()
		defer mu.Unlock()
		all = append(all, id)
		return nil
	})
	if err != nil {
		return "", err
	}
	if cluster, isCluster := b.client.(*redis.ClusterClient); isCluster {
		nodes, err := cluster.ClusterNodes(ctx).Result()
		if err != nil {
			return "", fmt.Errorf("CLUSTER NODES: %w", err)
		}
		all = append(all, slotsIn(nodes)...)
	}
	slices.Sort(all)
	return strings.Join(all, "\n"), nil
}

// slotsIn returns the slots of each master in the reply of CLUSTER NODES.
func slotsIn(nodes string) (all []string) {
	for line := range strings.Lines(nodes) {
		fields := strings.Fields(line) // id, address, flags, five more, and the slots
		if len(fields) <= 8 || !strings.Contains(fields[2], "master") {
			continue
		}
		own := slices.DeleteFunc(fields[8:], func(s string) bool { return strings.HasPrefix(s, "[") }) // those on their way
		all = append(all, fields[0]+" "+strings.Join(own, " "))
	}
	return all
}

// size is about how many keys there are, those of others included; 0 if the
// login may not ask.
func (b *backend) size(ctx context.Context) int64 {
	var n atomic.Int64
	err := redisclient.EachMaster(ctx, b.client, func(ctx context.Context, node *redis.Client) error {
		size, err := node.DBSize(ctx).Result()
		n.Add(size)
		return err
	})
	if err != nil {
		return 0
	}
	return n.Load()
}

// workers is how many changes are made at a time.
const workers = 16

// parallel calls do for each of all, some at a time, until one fails.
func parallel[T any](ctx context.Context, all []T, do func(context.Context, T) error) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(workers)
	for _, one := range all {
		group.Go(func() error {
			if err := ctx.Err(); err != nil {
				return err
			}
			return do(ctx, one)
		})
	}
	return group.Wait()
}
