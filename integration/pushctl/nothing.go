package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/pushfx/pushfx/module/stored"
)

// nothingFoundError is for a scan that found no key of the module's: the flags
// most likely name another prefix or Redis than the hosts use.
type nothingFoundError struct{ text string }

func (e *nothingFoundError) Error() string { return e.text }

func isNothingFound(err error) bool {
	var nothing *nothingFoundError
	return errors.As(err, &nothing)
}

// countOwn returns how many of the keys hold data of users.
func (b *backend) countOwn(keys []string) (n int64) {
	for _, key := range keys {
		if kind := b.keys.Parse(key).Kind; kind == stored.RulesKey || kind == stored.PushersKey || kind == stored.ClaimsKey {
			n++
		}
	}
	return n
}

// nothingFound returns a [nothingFoundError] that says what else is there, nil if
// hosts have stored something meanwhile.
func (s *scanner) nothingFound(ctx context.Context, masters []master) error {
	total := s.size(ctx, masters)
	others, err := s.prefixes(ctx, masters)
	if err != nil {
		return err
	}
	found := fmt.Sprintf("there are no push rules or pushers under -key-prefix %q on %s", s.keys.Prefix, s.servers)
	switch {
	case slices.Contains(others, strconv.Quote(s.keys.Prefix)):
		return nil
	case len(others) > 0:
		found += ", but there are under " + strings.Join(others, ", ")
	case total > 0:
		found += fmt.Sprintf(", nor did any other prefix turn up among its %d keys", total)
	default:
		found += ", which has no keys"
	}
	return &nothingFoundError{found}
}

// How long prefixes are searched for, and how many are named.
const (
	prefixesLimit = 10 * time.Second
	maxPrefixes   = 5
)

// prefixes returns the prefixes under which there are keys of the module's,
// quoted, as far as they turn up in a while.
func (s *scanner) prefixes(ctx context.Context, masters []master) ([]string, error) {
	found := map[string]bool{}
	until := time.Now().Add(prefixesLimit)
	for _, m := range masters {
		for cursor, ended := uint64(0), false; !ended && len(found) < maxPrefixes && time.Now().Before(until); {
			if err := s.pace.wait(ctx, s.pace.page(pageSize)); err != nil {
				return nil, err
			}
			names, next, err := s.nextKeys(ctx, m.client, cursor, stored.AnyPrefixPattern)
			if err != nil {
				return nil, err
			}
			for _, name := range names {
				if prefix, isOwn := stored.PrefixOf(name); isOwn {
					found[strconv.Quote(prefix)] = true
				}
			}
			cursor, ended = next, next == 0
		}
	}
	return slices.Sorted(maps.Keys(found)), nil
}
