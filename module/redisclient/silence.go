package redisclient

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/pushfx/pushfx/module/observe"
	"github.com/pushfx/pushfx/module/retry"
)

// silences knows which nodes of a cluster are silent. A node that owes a reply for
// silentAfter, and has replied to nothing since, gets a [fence]. Without a reply within
// probeFor, it is silent until its next reply, to the fence or to another command.
//
// It is safe for concurrent use.
type silences struct {
	observer observe.Observer

	mu    sync.Mutex
	nodes map[string]*nodeState // by address
	left  sync.WaitGroup        // commands for which nobody waits any more
}

const (
	// silentAfter is how long a node may owe a reply, besides the wait for durability.
	silentAfter = time.Second

	// probeFor is how long calls wait for the reply to a fence. They share it.
	probeFor = 50 * time.Millisecond

	// shownFor is how long a node that gets no commands is shown.
	shownFor = time.Minute
)

// nodeState is the history of a node's replies.
type nodeState struct {
	flying   []time.Time // from when the node owes the replies to commands on their way
	lost     time.Time   // from when it owes a reply for which nobody waits any more; zero for none
	replied  time.Time   // its latest reply
	used     time.Time
	probe    *probe // a fence on its way
	isSilent bool   // reported
}

// probe is a fence on its way.
type probe struct {
	ended chan struct{}
	late  chan struct{} // closed after probeFor
}

// wait closes late after probeFor. It counts only time in which this process runs: without CPU to spare, this host is
// as slow as the node.
func (p *probe) wait() {
	const times = 5
	for range times {
		time.Sleep(probeFor / times)
	}
	close(p.late)
}

// of returns the state of a node. The caller holds the mutex.
func (s *silences) of(address string) *nodeState {
	n := s.nodes[address]
	if n == nil {
		n = &nodeState{}
		if s.nodes == nil {
			s.nodes = map[string]*nodeState{}
		}
		s.nodes[address] = n
	}
	return n
}

// flight is commands on their way to a node.
type flight struct {
	all *silences
	to  *nodeState
	due time.Time
}

// begin notes commands on their way to a node, which may wait on purpose before it replies.
func (s *silences) begin(address string, onPurpose time.Duration) flight {
	now := time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	f := flight{s, s.of(address), now.Add(onPurpose)}
	f.to.used, f.to.flying = now, append(f.to.flying, f.due)
	return f
}

// end notes the error of the commands: none if the node has replied to any.
func (f flight) end(err error) {
	f.all.mu.Lock()
	defer f.all.mu.Unlock()
	n := f.to
	i := slices.Index(n.flying, f.due)
	n.flying = slices.Delete(n.flying, i, i+1)
	switch {
	case isReply(err):
		n.replied, n.lost, n.isSilent = time.Now(), time.Time{}, false
	case (isTimeout(err) || isLoading(err)) && (n.lost.IsZero() || f.due.Before(n.lost)):
		n.lost = f.due
	}
}

// isReply reports whether an error says that the node serves its data.
func isReply(err error) bool { return !lacksReply(err) && !isLoading(err) }

func isLoading(err error) bool { return redis.HasErrorPrefix(err, "LOADING") }

// owes returns for how long a node owes a reply.
func (n *nodeState) owes() time.Duration {
	since := n.lost
	for _, due := range n.flying {
		if since.IsZero() || due.Before(since) {
			since = due
		}
	}
	if since.IsZero() {
		return 0
	}
	if n.replied.After(since) {
		since = n.replied
	}
	return time.Since(since)
}

// isSilent reports whether a node is silent. It waits for a fence if that is not known.
func (s *silences) isSilent(client *redis.Client) bool {
	address := client.Options().Addr
	s.mu.Lock()
	n := s.of(address)
	if n.owes() < silentAfter {
		s.mu.Unlock()
		return false
	}
	if n.probe == nil {
		n.probe = &probe{make(chan struct{}), make(chan struct{})}
		s.send(client, n, n.probe)
	}
	p := n.probe
	s.mu.Unlock()
	select {
	case <-p.ended:
	case <-p.late:
	}
	s.mu.Lock()
	isSilent := n.owes() >= silentAfter
	isNew := isSilent && !n.isSilent
	n.isSilent = isSilent
	s.mu.Unlock()
	if isNew {
		s.observer.Report(observe.MasterSkipped, fmt.Errorf("the Redis at %s: %w", address, retry.ErrSilent))
	}
	return isSilent
}

// send sends the fence of a probe: a PING is answered while the node delays writes, and reads behind a fence.
func (s *silences) send(client *redis.Client, n *nodeState, p *probe) {
	s.left.Go(p.wait)
	s.left.Go(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		f := s.begin(client.Options().Addr, 0)
		pipe := client.Pipeline()
		fence(ctx, pipe)
		_, err := pipe.Exec(ctx)
		f.end(err)
		s.mu.Lock()
		defer s.mu.Unlock()
		n.probe = nil
		close(p.ended)
	})
}

// await runs do until it returns, or the node is silent.
func (s *silences) await(client *redis.Client, do func()) (isDone bool) {
	done := make(chan struct{})
	s.left.Go(func() {
		defer close(done)
		do()
	})
	look := time.NewTimer(silentAfter)
	defer look.Stop()
	for {
		select {
		case <-done:
			return true
		case <-look.C:
		}
		if s.isSilent(client) {
			return false
		}
		s.mu.Lock()
		look.Reset(max(probeFor, silentAfter-s.of(client.Options().Addr).owes()))
		s.mu.Unlock()
	}
}

// hasAny reports whether a node is silent. A node that has left the cluster gets no commands.
func (s *silences) hasAny() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, n := range s.nodes {
		if n.isSilent && time.Since(n.used) <= shownFor {
			return true
		}
	}
	return false
}

// states is [Pipelines.Silent].
func (s *silences) states() map[string]bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	maps.DeleteFunc(s.nodes, func(_ string, n *nodeState) bool {
		return len(n.flying) == 0 && n.probe == nil && time.Since(n.used) > shownFor
	})
	states := make(map[string]bool, len(s.nodes))
	for address, n := range s.nodes {
		states[address] = n.isSilent
	}
	return states
}
