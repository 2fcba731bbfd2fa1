package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/pushfx/pushfx/module/fault"
)

// gaps are the parts of the data that a command could not read, because their master does not reply. The command goes
// on without them and fails at its end.
type gaps struct {
	mu    sync.Mutex
	parts map[string]*gap // by what and where
}

type gap struct {
	keys map[string]bool
	err  error // the first one
}

// allowGaps makes the command go on without data that it cannot read.
func (b *backend) allowGaps() { b.gaps = &gaps{parts: map[string]*gap{}} }

// skip returns an error of reading a key, unless the command goes on without the data. It then records the gap.
func (b *backend) skip(ctx context.Context, what, key string, err error) error {
	if err == nil || b.gaps == nil || errors.Is(err, context.Canceled) {
		return err
	}
	return b.skipAt(what, b.whereIs(ctx, key), key, err)
}

func (b *backend) skipAt(what, where, key string, err error) error {
	if err == nil || b.gaps == nil {
		return err
	}
	b.gaps.mu.Lock()
	defer b.gaps.mu.Unlock()
	part := what + " on " + where
	if b.gaps.parts[part] == nil {
		b.gaps.parts[part] = &gap{map[string]bool{}, err}
	}
	b.gaps.parts[part].keys[key] = true
	return nil
}

// whereIs returns the address of the master of a key.
func (b *backend) whereIs(ctx context.Context, key string) string {
	node, err := b.nodeOf(ctx, key)
	if err != nil {
		return "an unknown master"
	}
	return b.addressOf(node)
}

// noProblems is the text of a result without problems.
func (b *backend) noProblems() string {
	if b.incomplete() != nil {
		return "No problems in the data that could be read."
	}
	return "No problems."
}

// incomplete returns an error that names the gaps, if any.
func (b *backend) incomplete() error {
	if b.gaps == nil || len(b.gaps.parts) == 0 {
		return nil
	}
	var all []string
	for _, part := range slices.Sorted(maps.Keys(b.gaps.parts)) {
		g := b.gaps.parts[part]
		all = append(all, fmt.Sprintf("%s (%d): %s", part, len(g.keys), fault.Details(g.err)))
	}
	return fmt.Errorf("could not read everything: %s", strings.Join(all, "; "))
}
