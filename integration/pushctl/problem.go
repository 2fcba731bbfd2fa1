package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/pushfx/pushfx/module/retry"
)

// kind is a kind of problem in stored data. It is declared in the file that finds and repairs it.
type kind struct {
	name   string // shown to operators
	remedy string
}

const (
	byRepair  = "repair"
	byReset   = "repair -reset-damaged"
	byHand    = "by hand"
	byHost    = "hosts skip it"
	byRules   = "-default-rules"
	byRefresh = "-features, or refresh-defaults"
	byCluster = "redis-cli --cluster fix"
)

// problem is one occurrence of a kind.
type problem struct {
	kind
	subject string // the user, or the key if it belongs to no user
	detail  string // tells problems of one subject apart; contains no secrets

	key  string
	node *redis.Client // the node with the key

	damaged *record                     // the unreadable value, for the file of -save
	refusal error                       // why the problem cannot be repaired
	repair  func(context.Context) error // repairs the problem if the data has not changed; nil: only a person can repair it

	// recheck reports whether the problem still exists. If recheck is nil, the key is examined again instead.
	recheck func(context.Context) (bool, error)
}

// The reasons why a repair leaves a problem.
var (
	errByHand  = errors.New("needs a person")
	errChanged = errors.New("has just changed")
	errDamaged = errors.New("cannot be read; -reset-damaged replaces it")
)

// orChanged returns errChanged if a repair found other data than the examination.
func orChanged(done bool, err error) error {
	if err == nil && !done {
		return errChanged
	}
	return err
}

type listedProblem struct {
	Problem string `json:"problem"`
	Name    string `json:"name"`
	Detail  string `json:"detail,omitempty"`
}

func (p problem) listed() listedProblem { return listedProblem{p.kind.name, p.subject, p.detail} }

// String returns the problem as a line of -list.
func (p problem) String() string {
	return fmt.Sprintf("%s\t%s\t%s", p.kind.name, printable(p.subject), printable(p.detail))
}

// unconfirmed has the problems that involve several keys. Keys are not read at the same moment, and a host may be
// changing them, so a problem counts only if a second examination finds it again.
type unconfirmed struct {
	*backend
	problems []problem
	newest   time.Time
}

const (
	maxUnconfirmed = 5000

	// confirmDelay is longer than a host needs between its writes to two keys.
	confirmDelay = time.Second
)

func (u *unconfirmed) add(problems []problem) {
	if len(problems) > 0 {
		u.problems, u.newest = append(u.problems, problems...), time.Now()
	}
}

// confirm empties u and returns the problems that still exist.
func (u *unconfirmed) confirm(ctx context.Context) (confirmed []problem, err error) {
	if len(u.problems) == 0 {
		return nil, nil
	}
	if err := retry.Sleep(ctx, time.Until(u.newest.Add(confirmDelay))); err != nil {
		return nil, err
	}
	before, keys := map[listedProblem]bool{}, map[*redis.Client]map[string]bool{}
	for _, p := range u.problems {
		if p.recheck == nil {
			before[p.listed()] = true
			if keys[p.node] == nil {
				keys[p.node] = map[string]bool{}
			}
			keys[p.node][p.key] = true
			continue
		}
		exists, err := p.recheck(ctx)
		if err = u.skip(ctx, "values", p.subject, err); err != nil {
			return nil, err
		}
		if exists {
			confirmed = append(confirmed, p)
		}
	}
	u.problems = nil
	for node, names := range keys {
		for part := range slices.Chunk(slices.Collect(maps.Keys(names)), pageSize) {
			x, err := u.examine(ctx, node, part)
			if err != nil {
				return nil, err
			}
			for _, p := range x.unconfirmed {
				if before[p.listed()] {
					confirmed = append(confirmed, p)
				}
			}
		}
	}
	return confirmed, nil
}
