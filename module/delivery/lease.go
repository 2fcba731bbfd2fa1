package delivery

import (
	"context"
	"errors"
	"hash/fnv"
	"maps"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/retry"
)

// The times of a shard's lease.
const (
	leaseLasts = 5 * time.Second
	leaseRenew = time.Second
	leaseRetry = 500 * time.Millisecond // while shards that are to be ours are another's

	// leaseSpare is how much of a lease must be left when something is sent.
	leaseSpare = time.Second
)

// ShardOf returns the shard of a user.
func ShardOf(user mxid.UserID, shards int) int {
	h := fnv.New64a()
	h.Write([]byte(user))
	return int(h.Sum64() % uint64(shards))
}

// isBest reports whether a host is the one that a shard is for: the one that wins
// the draw among those that are alive ("rendezvous hashing"), so that a host that
// comes or goes moves no other's shards.
func isBest(host string, hosts []string, shard int) bool {
	best, most := host, draw(host, shard)
	for _, other := range hosts {
		if d := draw(other, shard); d > most || d == most && other > best {
			best, most = other, d
		}
	}
	return best == host
}

func draw(host string, shard int) uint64 {
	h := fnv.New64a()
	h.Write([]byte(host))
	h.Write([]byte{0})
	h.Write([]byte(strconv.Itoa(shard)))
	x := h.Sum64() // whose high bits depend little on its last bytes
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// lease is for how long a shard is ours, by the clock of this machine that does
// not jump. It is read by those who send.
type lease struct{ end atomic.Pointer[time.Time] }

func (l *lease) extend(end time.Time) { l.end.Store(&end) }

func (l *lease) left() time.Duration { return time.Until(*l.end.Load()) }

// isSafe reports whether something may be sent.
func (l *lease) isSafe() bool { return l.left() >= leaseSpare }

// tick says that this host is alive, renews leases, and takes those of shards
// that are to be its own.
func (s *sender) tick() {
	if s.leaving || s.stopped { // who joins while it leaves would be waited for
		return
	}
	s.ticking = true
	ours, skip := slices.Collect(maps.Keys(s.shards)), map[int]bool{}
	for n := range s.releasing {
		skip[n] = true
	}
	stopping, began := s.stopping, time.Now()
	s.bounded(func(ctx context.Context) func() {
		ctx, cancel := context.WithTimeout(ctx, leaseLasts-2*leaseSpare)
		defer cancel()
		hosts, err := s.queue.Join(ctx, s.host, leaseLasts)
		wanted := ours
		if err == nil && !stopping {
			wanted = s.wanted(hosts, ours, skip)
		}
		took := time.Now()
		leases := s.queue.Acquire(ctx, s.host, leaseLasts, wanted)
		return func() { s.ticked(began, took, hosts, leases, err) }
	})
}

// guard gives up the shards whose leases may end before they are renewed, in time
// for what is under way to be cut off before they end.
func (s *sender) guard() {
	for _, sh := range s.shards {
		if !sh.lease.isSafe() {
			s.lose(sh)
		}
	}
	s.after(leaseSpare/2, s.guard)
}

// wanted are the shards to ask for: those that are ours, and those that are to be,
// but for some.
func (s *sender) wanted(hosts []string, ours []int, skip map[int]bool) []int {
	all := ours
	for _, n := range ours {
		skip[n] = true
	}
	for n := range s.cfg.Shards {
		if !skip[n] && isBest(s.host, hosts, n) {
			all = append(all, n)
		}
	}
	return all
}

// ticked takes in the leases. Took is when they were asked for.
func (s *sender) ticked(began, took time.Time, hosts []string, leases map[int]module.Result[module.Lease], err error) {
	s.ticking = false
	wait := leaseRenew
	if err != nil {
		s.failed("join", err)
		hosts = nil
	} else {
		s.hosts = max(1, len(hosts))
	}
	failed := false
	for n, result := range leases {
		if result.Err != nil && !failed && err == nil {
			failed = true
			s.failed("renew leases", result.Err)
		}
		if result.Err == nil && !s.leased(n, result.Value, took.Add(leaseLasts), hosts) {
			wait = leaseRetry
		}
	}
	for n := range s.releasing {
		s.endRelease(n)
	}
	for n, sh := range s.shards {
		if hosts != nil && !isBest(s.host, hosts, n) {
			sh.leave()
		}
	}
	s.after(max(0, wait-time.Since(began)), s.tick)
	s.endIfIdle()
}

// leased takes in one lease. It reports false for a shard that is to be ours and
// is another's.
func (s *sender) leased(n int, l module.Lease, until time.Time, hosts []string) bool {
	sh := s.shards[n]
	if sh != nil && (!l.Held || l.Epoch != sh.epoch) {
		s.forget(sh)
		sh = nil
	}
	switch {
	case !l.Held:
		return s.stopping || !isBest(s.host, hosts, n)
	case sh != nil:
		sh.lease.extend(until)
		sh.renewed(l)
	case s.releasing[n] != nil, s.stopping || hosts != nil && !isBest(s.host, hosts, n):
		s.release(n, l.Epoch)
	default:
		s.own(n, l.Epoch, until)
	}
	return true
}

// lose gives up a shard whose lease may end before it is renewed. It is given
// back, so that its epoch is over with it.
func (s *sender) lose(sh *shard) {
	s.release(sh.n, sh.epoch) // before it is forgotten, or this host may end first
	s.forget(sh)
}

// release is of a shard that is being given back.
type release struct {
	epoch int64 // the last that is known
	given int64 // the last that was given back; 0 for none
}

// release gives a shard back. Until that has been done this host does not take
// it again: the same epoch could then be used by two owners in a row, whose
// writes would not be fenced from each other.
func (s *sender) release(n int, epoch int64) {
	if r := s.releasing[n]; r != nil {
		r.epoch = max(r.epoch, epoch)
		return
	}
	s.releasing[n] = &release{epoch: epoch}
	s.giveBack(n)
}

func (s *sender) giveBack(n int) {
	epoch := s.releasing[n].epoch
	s.bounded(func(ctx context.Context) func() {
		err := s.queue.Release(ctx, s.host, n, epoch)
		return func() {
			if err != nil && !s.stopping {
				s.after(retry.Jitter(leaseRetry), func() { s.giveBack(n) })
				return
			}
			s.releasing[n].given = epoch
			if !s.ticking { // or else leases may come from before
				s.endRelease(n)
			}
		}
	})
}

// endRelease forgets a shard that was given back, unless it was taken again
// meanwhile.
func (s *sender) endRelease(n int) {
	switch r := s.releasing[n]; {
	case r.given == 0:
	case r.given < r.epoch:
		r.given = 0
		s.giveBack(n)
	default:
		delete(s.releasing, n)
		s.endIfIdle()
	}
}

// stop has this host give back all shards when what is under way has ended.
func (s *sender) stop() {
	s.stopping = true
	for _, sh := range s.shards {
		sh.leave()
	}
	s.after(s.cfg.DrainTimeout+queueTimeout, func() { s.stopped = true })
	s.endIfIdle()
}

// endIfIdle ends run when there is nothing left.
func (s *sender) endIfIdle() {
	if !s.stopping || s.leaving || s.ticking || len(s.shards) > 0 || len(s.releasing) > 0 {
		return
	}
	s.leaving = true
	s.bounded(func(ctx context.Context) func() {
		if err := s.queue.Leave(ctx, s.host); err != nil {
			s.failed("leave", err)
		}
		return func() { s.stopped = true }
	})
}

// watch hears of what is appended to the shards of this host.
func (s *sender) watch(ctx context.Context) {
	retry.Repeat(ctx, shortestRetry, longestRetry, func() (watched bool) {
		began := time.Now()
		err := s.queue.Watch(ctx, func() {}, s.appended)
		watched = time.Since(began) > longestRetry
		if watched && ctx.Err() == nil {
			s.failed("watch the queue", orUnknown(err))
		}
		return watched
	})
}

// The waits before a watch that has ended begins again.
const (
	shortestRetry = 100 * time.Millisecond
	longestRetry  = time.Second
)

var errWatchEnded = errors.New("the watch has ended")

func orUnknown(err error) error {
	if err == nil {
		return errWatchEnded
	}
	return err
}

// The values of hinted.
const (
	notOurs int32 = iota
	notHinted
	isHinted
)

// appended may be called by any goroutine.
func (s *sender) appended(n int) {
	if n < 0 || n >= len(s.hinted) || !s.hinted[n].CompareAndSwap(notHinted, isHinted) {
		return
	}
	then := func() {
		s.hinted[n].CompareAndSwap(isHinted, notHinted)
		if sh := s.shards[n]; sh != nil {
			sh.more = true
			sh.touch()
		}
	}
	select {
	case s.results <- then:
	case <-s.ctx.Done():
	}
}
