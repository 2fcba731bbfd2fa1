package main

import (
	"context"
	"errors"
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
	key     string // the key to examine again
	subject string // the user, or the key if it belongs to no user
	part    string // tells problems of one kind and subject apart
	detail  string // contains no secrets

	damaged *record                     // the unreadable value, for the file of -save
	refusal error                       // why the problem cannot be repaired
	repair  func(context.Context) error // repairs the problem if the data has not changed; nil: only a person can repair it
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

// cells are the problem in a line of -list.
func (p problem) cells() []string { return []string{p.kind.name, p.subject, p.detail} }

// unconfirmed has the problems that involve several keys or commands. Their data is not read at the same moment, and a
// host may be changing it, so a problem counts only if a second examination of its key finds it again.
type unconfirmed struct {
	*examiner
	found  map[*redis.Client][]problem // by the node that was examined
	number int
	newest time.Time
}

const (
	maxUnconfirmed = 5000

	// confirmDelay is longer than a host needs between its writes to two keys.
	confirmDelay = time.Second
)

func newUnconfirmed(e *examiner) *unconfirmed {
	return &unconfirmed{examiner: e, found: map[*redis.Client][]problem{}}
}

func (u *unconfirmed) add(x *examination) {
	if n := len(x.unconfirmed); n > 0 {
		u.found[x.node] = append(u.found[x.node], x.unconfirmed...)
		u.number, u.newest = u.number+n, time.Now()
	}
}

// confirm empties u and returns the problems that still exist.
func (u *unconfirmed) confirm(ctx context.Context) (confirmed []problem, err error) {
	if u.number == 0 {
		return nil, nil
	}
	if err := retry.Sleep(ctx, time.Until(u.newest.Add(confirmDelay))); err != nil {
		return nil, err
	}
	for node, problems := range u.found {
		type identity struct{ kind, subject, part string }
		before, keys := map[identity]bool{}, map[string]bool{}
		for _, p := range problems {
			before[identity{p.kind.name, p.subject, p.part}], keys[p.key] = true, true
		}
		for names := range slices.Chunk(slices.Collect(maps.Keys(keys)), pageSize) {
			x, err := u.examine(ctx, node, names)
			if err != nil {
				if err = u.skipAt("values", u.addressOf(node), "", err); err != nil {
					return nil, err
				}
				continue
			}
			for _, p := range x.unconfirmed {
				if before[identity{p.kind.name, p.subject, p.part}] {
					confirmed = append(confirmed, p)
				}
			}
		}
	}
	clear(u.found)
	u.number = 0
	return confirmed, nil
}
