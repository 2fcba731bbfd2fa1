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

// kind is a kind of problem: a way in which what is stored is not as the module
// promises. A kind is declared beside what finds it, which says how it is repaired.
type kind struct {
	name   string // for operators
	remedy string
}

// What remedies a kind of problem.
const (
	byRepair  = "repair"
	byReset   = "repair -reset-damaged"
	byHand    = "by hand"
	byHost    = "its host skips it"
	byRules   = "-default-rules"
	byCluster = "redis-cli --cluster fix"
)

// problem is a problem that was found.
type problem struct {
	kind
	subject string // the user, or the key of what belongs to none
	detail  string // what tells it from others of the subject; no secrets

	key  string
	node *redis.Client // where the key was found

	saved  *record                     // what cannot be read, for the file of -save
	left   error                       // why it is not repaired
	repair func(context.Context) error // if it is still so; nil for what a person has to look at

	// isStill reports whether the problem is still there; nil for problems that a
	// second examination of the key finds again.
	isStill func(context.Context) (bool, error)
}

// The reasons for which a problem is left.
var (
	errByHand  = errors.New("for somebody to look at")
	errChanged = errors.New("it has changed meanwhile")
	errDamaged = errors.New("cannot be read; -reset-damaged replaces it")
)

// ifDone is the error of a repair that was done only if nothing has changed.
func ifDone(done bool, err error) error {
	if err == nil && !done {
		return errChanged
	}
	return err
}

// listedProblem is a problem in a list.
type listedProblem struct {
	Problem string `json:"problem"`
	Name    string `json:"name"`
	Detail  string `json:"detail,omitempty"`
}

func (p problem) listed() listedProblem { return listedProblem{p.kind.name, p.subject, p.detail} }

// String tells the problem in a line of a list.
func (p problem) String() string {
	return fmt.Sprintf("%s\t%s\t%s", p.kind.name, printable(p.subject), printable(p.detail))
}

// doubts are problems that are about several keys, which cannot be read in one
// moment: they count if they are still there a while later.
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

// decide returns the problems that are still there. None wait then.
func (d *doubts) decide(ctx context.Context) (sure []problem, err error) {
	if len(d.waiting) == 0 {
		return nil, nil
	}
	if err := retry.Sleep(ctx, time.Until(d.since.Add(doubtTime))); err != nil {
		return nil, err
	}
	waiting, keys := map[listedProblem]bool{}, map[*redis.Client]map[string]bool{}
	for _, p := range d.waiting {
		if p.isStill == nil {
			waiting[p.listed()] = true
			if keys[p.node] == nil {
				keys[p.node] = map[string]bool{}
			}
			keys[p.node][p.key] = true
			continue
		}
		still, err := p.isStill(ctx)
		if err != nil {
			return nil, err
		}
		if still {
			sure = append(sure, p)
		}
	}
	d.waiting = nil
	for node, names := range keys {
		for part := range slices.Chunk(slices.Collect(maps.Keys(names)), pageSize) {
			x, err := d.examine(ctx, node, part)
			if err != nil {
				return nil, err
			}
			for _, p := range x.doubtful {
				if waiting[p.listed()] {
					sure = append(sure, p)
				}
			}
		}
	}
	return sure, nil
}
