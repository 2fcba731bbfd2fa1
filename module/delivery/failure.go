package delivery

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/fault"
	"github.com/pushfx/pushfx/module/observe"
	"github.com/pushfx/pushfx/module/retry"
)

// FailReason is why the queue, or a store that delivery reads, failed.
type FailReason string

// The reasons. FailOOM, FailReadOnly and FailNoPerm are refusals by Redis.
const (
	FailOOM         FailReason = "oom"         // the memory of Redis is full
	FailReadOnly    FailReason = "readonly"    // Redis refuses writes: a replica, a master without replicas, or a full disk
	FailNoPerm      FailReason = "noperm"      // the password is wrong, or the ACL lacks a right
	FailDurability  FailReason = "durability"  // replicas or disks were too slow
	FailUnreachable FailReason = "unreachable" // no connection, or a node that is loading or without its cluster
	FailTimeout     FailReason = "timeout"     // no answer in time
	FailCanceled    FailReason = "canceled"    // by the caller
	FailOther       FailReason = "other"
)

// FailReasons returns all reasons.
func FailReasons() []FailReason {
	return []FailReason{
		FailOOM, FailReadOnly, FailNoPerm, FailDurability, FailUnreachable, FailTimeout, FailCanceled, FailOther,
	}
}

// refusals are texts within errors of Redis. Before version 7, errors of scripts do not
// begin with them.
var refusals = []struct {
	text   string
	reason FailReason
}{
	{"OOM ", FailOOM},
	{"READONLY ", FailReadOnly}, {"NOREPLICAS ", FailReadOnly}, {"MISCONF ", FailReadOnly},
	{"NOPERM ", FailNoPerm}, {"NOAUTH ", FailNoPerm}, {"WRONGPASS ", FailNoPerm}, {"ACL failure", FailNoPerm}, {"can't run this command", FailNoPerm},
	{"LOADING ", FailUnreachable}, {"CLUSTERDOWN ", FailUnreachable}, {"MASTERDOWN ", FailUnreachable},
}

// failures counts and reports the failures of background work, and what no call returns. It is
// safe for concurrent use.
type failures struct {
	observer observe.Observer
	mu       sync.Mutex
	reported map[string]time.Time
}

// reportEvery is the least time between two reports of one kind of failure.
const reportEvery = 30 * time.Second

// add counts a failure, and reports it.
func (f *failures) add(doing string, err error) {
	f.observer.Count(observe.DeliveryFailed, string(reasonOf(err)), 1)
	f.report(observe.DeliveryDelayed, doing, err)
}

// report reports at most one error of a kind in reportEvery.
func (f *failures) report(problem observe.Problem, doing string, err error) {
	f.mu.Lock()
	isNew := time.Since(f.reported[doing]) >= reportEvery
	if isNew {
		f.reported[doing] = time.Now()
	}
	f.mu.Unlock()
	if isNew {
		f.observer.Report(problem, fmt.Errorf("delivery: %s: %w", doing, err))
	}
}

// reasonsOf returns the reasons of a call, each once; none for a fault of the event.
func reasonsOf(err error) (reasons []FailReason) {
	left := new(module.LeftError)
	if !errors.As(err, &left) {
		left.Reasons = []error{err}
	}
	for _, one := range left.Reasons {
		if reason := reasonOf(one); one != nil && !module.IsPermanent(one) && !slices.Contains(reasons, reason) {
			reasons = append(reasons, reason)
		}
	}
	return reasons
}

func reasonOf(err error) FailReason {
	var refusal interface {
		error
		RedisError() // of go-redis
	}
	var network net.Error
	switch {
	case errors.Is(err, fault.ErrNotConfirmed):
		return FailDurability
	case errors.As(err, &refusal):
		for _, r := range refusals {
			if strings.Contains(refusal.Error(), r.text) {
				return r.reason
			}
		}
	case errors.Is(err, context.Canceled):
		return FailCanceled
	case errors.Is(err, retry.ErrSilent), errors.Is(err, context.DeadlineExceeded), errors.As(err, &network) && network.Timeout():
		return FailTimeout
	case errors.As(err, &network), errors.Is(err, io.EOF):
		return FailUnreachable
	}
	return FailOther
}
