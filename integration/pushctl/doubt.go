package main

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/pushfx/pushfx/module/retry"
)

// doubts are problems that wait for a second examination, which decides.
type doubts struct {
	*backend
	waiting []problem
	since   time.Time // of the youngest
}

const (
	// maxDoubts is how many wait at most.
	maxDoubts = 5000

	// doubtTime is how long they wait: longer than it takes a host to go from one
	// key to the next.
	doubtTime = time.Second
)

// add has problems wait.
func (d *doubts) add(doubtful []problem) {
	if len(doubtful) > 0 {
		d.waiting, d.since = append(d.waiting, doubtful...), time.Now()
	}
}

// isFull reports whether it is time to decide.
func (d *doubts) isFull() bool { return len(d.waiting) >= maxDoubts }

// decide returns the problems that are still there. None wait then.
func (d *doubts) decide(ctx context.Context) (sure []problem, err error) {
	if len(d.waiting) == 0 {
		return nil, nil
	}
	if err := retry.Sleep(ctx, time.Until(d.since.Add(doubtTime))); err != nil {
		return nil, err
	}
	waiting, keys := map[identity]bool{}, map[*redis.Client]map[string]bool{}
	for _, p := range d.waiting {
		if p.kind != misplacedKey {
			waiting[p.identity()] = true
			if keys[p.node] == nil {
				keys[p.node] = map[string]bool{}
			}
			keys[p.node][p.key] = true
			continue
		}
		misplaced, err := isMisplaced(ctx, p)
		if err != nil {
			return nil, err
		}
		if misplaced {
			sure = append(sure, p)
		}
	}
	for node, names := range keys {
		for part := range slices.Chunk(slices.Collect(maps.Keys(names)), pageSize) {
			x, err := d.examine(ctx, node, part)
			if err != nil {
				return nil, err
			}
			for _, p := range x.doubtful {
				if waiting[p.identity()] {
					sure = append(sure, p)
				}
			}
		}
	}
	d.waiting = nil
	return sure, nil
}

// isMisplaced reports whether a node still holds a key of a slot that is neither
// its own nor on the way to it.
func isMisplaced(ctx context.Context, p problem) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, replyLimit)
	defer cancel()
	moved := p.node.Type(ctx, p.key).Err()
	if _, isMoved := redis.IsMovedError(moved); !isMoved {
		return false, nil
	}
	slot, err := strconv.Atoi(strings.Fields(moved.Error())[1]) // MOVED SLOT ADDRESS
	if err != nil {
		return false, moved
	}
	nodes, err := p.node.ClusterNodes(ctx).Result()
	if err != nil {
		return false, fmt.Errorf("CLUSTER NODES: %w", err)
	}
	if strings.Contains(nodes, fmt.Sprintf("[%d-", slot)) {
		return false, nil // on its way
	}
	keys, err := p.node.ClusterGetKeysInSlot(ctx, slot, 1<<16).Result()
	if err != nil {
		return false, fmt.Errorf("CLUSTER GETKEYSINSLOT: %w", err)
	}
	return slices.Contains(keys, p.key), nil
}
