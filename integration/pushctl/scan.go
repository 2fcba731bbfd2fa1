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

	"github.com/pushfx/pushfx/module/stored"
)

// pageSize is the number of keys per SCAN and pipeline. It is small, so that clients'
// requests do not wait long.
const pageSize = 250

// pace is a number of keys per second; 0 is no limit.
type pace uint

func (p pace) limiter() *rate.Limiter {
	if p == 0 {
		return rate.NewLimiter(rate.Inf, 0)
	}
	return rate.NewLimiter(rate.Limit(p), p.page(pageSize))
}

// page returns the number of keys to read at once. At a low rate, pages are small, so that the load is even.
func (p pace) page(limit int) int {
	if p == 0 {
		return limit
	}
	return min(limit, max(1, int(p/10)))
}

// newBar returns a progress bar on stderr, visible on a terminal only.
func newBar(label string, total int64) *progressbar.ProgressBar {
	columns, _, err := term.GetSize(int(os.Stderr.Fd()))
	if err == nil && columns == 0 {
		columns = 80 // the terminal does not tell
	}
	return progressbar.NewOptions64(max(total, 1), append(barOptions(columns),
		progressbar.OptionSetWriter(os.Stderr), progressbar.OptionSetDescription(label))...)
}

// barOptions returns the options of a bar that fits on a terminal. Without a terminal, columns is 0.
func barOptions(columns int) []progressbar.Option {
	options := []progressbar.Option{
		progressbar.OptionSetVisibility(columns >= 45), progressbar.OptionShowCount(), progressbar.OptionClearOnFinish(),
	}
	if columns < 80 { // too narrow for the times
		return append(options, progressbar.OptionSetWidth(5),
			progressbar.OptionSetElapsedTime(false), progressbar.OptionSetPredictTime(false))
	}
	return append(options, progressbar.OptionShowIts(), progressbar.OptionFullWidth())
}

type scanner struct {
	*call
	limiter *rate.Limiter
	bar     *progressbar.ProgressBar
	found   atomic.Int64 // keys of the module
}

// pageFunc handles a page of a node's keys. Calls for several nodes are concurrent.
type pageFunc func(ctx context.Context, node *redis.Client, keys []string) error

// errNoKeys is the error of a scan without a key of the module. The flags probably name
// another prefix or Redis than the hosts use.
var errNoKeys = errors.New("there is no data of hosts")

// errTopologyChanged is the error of a scan that may have missed keys.
var errTopologyChanged = errors.New("slots moved or a master was replaced during the scan, so it may have missed keys: run it again")

// newScanner returns a scanner whose progress bar shows label.
func (c *call) newScanner(label string) *scanner {
	return &scanner{call: c, limiter: c.rate.limiter(), bar: newBar(label, 0)}
}

// scan calls page with all keys; a key may come twice. Errors: [errNoKeys], [errTopologyChanged], errors of page.
func (s *scanner) scan(ctx context.Context, page pageFunc) error {
	before, err := s.topology(ctx)
	if err != nil {
		return err
	}
	s.bar.ChangeMax64(max(s.size(ctx), 1))
	scanning, stop := context.WithCancel(ctx)
	defer stop()
	err = s.eachMaster(scanning, func(ctx context.Context, node *redis.Client) error {
		err := s.scanNode(ctx, node, page)
		if err != nil && ctx.Err() == nil {
			err = s.skipAt("all keys", s.addressOf(node), "", err)
		}
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
		return errTopologyChanged
	case s.found.Load() == 0 && s.incomplete() == nil:
		return s.noKeys()
	}
	return nil
}

func (b *backend) noKeys() error {
	return fmt.Errorf("%w under -key-prefix %q on %s", errNoKeys, b.keys.Prefix, b.servers)
}

func (s *scanner) scanNode(ctx context.Context, node *redis.Client, page pageFunc) error {
	for cursor := uint64(0); ; {
		keys, next, err := node.Scan(ctx, cursor, s.keys.Pattern(), int64(s.rate.page(pageSize))).Result()
		if err != nil {
			return fmt.Errorf("SCAN on %s: %w", s.addressOf(node), err)
		}
		for part := range slices.Chunk(keys, s.rate.page(pageSize)) { // a reply of SCAN may have more keys than COUNT
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
		if kind := s.keys.Parse(key).Kind; kind != stored.ForeignKey && kind != stored.MalformedKey {
			s.found.Add(1)
		}
	}
	_ = s.bar.Add(len(keys))
	return nil
}

// topology returns a text that changes when a master is replaced or restarted, or slots move.
func (b *backend) topology(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, replyTimeout)
	defer cancel()
	var mu sync.Mutex
	var all []string
	err := b.eachMaster(ctx, func(ctx context.Context, node *redis.Client) error {
		info, err := node.Info(ctx, "server").Result()
		if err != nil && b.gaps != nil {
			return nil // its keys are a gap
		}
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
		slots, err := cluster.ClusterSlots(ctx).Result() //nolint:staticcheck // CLUSTER SHARDS needs Redis 7
		if err != nil {
			return "", fmt.Errorf("CLUSTER SLOTS: %w", err)
		}
		for _, s := range slots {
			all = append(all, fmt.Sprint(s.Start, s.End, s.Nodes[0].ID)) // a slot that is moving is still of its source
		}
	}
	slices.Sort(all)
	return strings.Join(all, "\n"), nil
}

// size estimates the number of keys, other services' keys included. It returns 0 if the login may not ask for the
// number.
func (b *backend) size(ctx context.Context) int64 {
	var n atomic.Int64
	err := b.eachMaster(ctx, func(ctx context.Context, node *redis.Client) error {
		size, err := node.DBSize(ctx).Result()
		n.Add(size)
		return err
	})
	if err != nil {
		return 0
	}
	return n.Load()
}

// workers is the number of changes that run at the same time.
const workers = 16

// parallel calls do for each element, [workers] at a time, until a call fails.
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
