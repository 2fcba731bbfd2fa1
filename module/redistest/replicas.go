package redistest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"
)

const replicationTimeout = 20 * time.Second

// ReplicatedServers is a master with replicas, without a cluster or a sentinel:
// nothing but Promote changes the roles. Its methods may be called from any
// goroutine while the test that started it runs.
type ReplicatedServers struct {
	servers   []*Server
	promotion sync.Mutex // held as long as roles change

	mu     sync.Mutex
	master *Server
}

// Replicated starts a master and this number of replicas, and waits until all
// follow it. The arguments are added to the command line of every server. A
// master that is stopped and started again comes back without the data that the
// arguments do not have it save, and then so do its replicas.
func Replicated(t testing.TB, replicas int, args ...string) *ReplicatedServers {
	t.Helper()
	if replicas < 0 {
		t.Fatalf("a master cannot have %d replicas", replicas)
	}
	r := &ReplicatedServers{}
	for range 1 + replicas {
		r.servers = append(r.servers, Single(t, args...))
	}
	r.master = r.servers[0]
	ctx, cancel := context.WithTimeout(context.Background(), replicationTimeout)
	defer cancel()
	if err := r.Promote(ctx, r.master); err != nil {
		t.Fatalf("cannot make replicas: %v\n%s", err, logs(r.servers))
	}
	return r
}

// Servers returns all servers, first the one that began as the master.
func (r *ReplicatedServers) Servers() []*Server {
	return slices.Clone(r.servers)
}

// Master returns the server that was promoted last, or else the one that began
// as the master.
func (r *ReplicatedServers) Master() *Server {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.master
}

// Replicas returns all servers but the master, be they running or not.
func (r *ReplicatedServers) Replicas() []*Server {
	master := r.Master()
	return slices.DeleteFunc(r.Servers(), func(s *Server) bool { return s == master })
}

// Promote makes the server the master, whoever else is one, and waits until the
// others that run follow it. Those that are stopped will, once they are started
// again. Writes that the old master acknowledged and the new one did not get are
// lost. After an error, as when a server is paused, it can be called again.
func (r *ReplicatedServers) Promote(ctx context.Context, replica *Server) error {
	if !slices.Contains(r.servers, replica) {
		return fmt.Errorf("the server at %s is none of these", replica.Addr())
	}
	r.promotion.Lock()
	defer r.promotion.Unlock()
	if !replica.running() {
		return fmt.Errorf("the server at %s is stopped", replica.Addr())
	}
	if err := replica.follow(ctx, nil); err != nil {
		return err
	}
	r.mu.Lock()
	r.master = replica
	r.mu.Unlock()
	var errs []error
	for _, other := range r.Replicas() {
		errs = append(errs, other.follow(ctx, replica))
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	return poll(ctx, func(ctx context.Context) error { return checkFollowed(ctx, replica, r.Replicas()) })
}

// follow makes the server a replica of the master, or a master when there is
// none: now if it runs, and whenever it is started again.
func (s *Server) follow(ctx context.Context, master *Server) error {
	host, port, option := "no", "one", []string(nil)
	if master != nil {
		host, port = localhost, strconv.Itoa(master.port)
		option = []string{"--replicaof", host, port}
	}
	s.mu.Lock()
	s.following = option
	s.mu.Unlock()
	client := s.adminClient()
	defer client.Close()
	if !s.running() {
		return nil
	}
	if err := client.Do(ctx, "replicaof", host, port).Err(); err != nil && s.running() {
		return fmt.Errorf("REPLICAOF %s %s on %s: %w", host, port, s.Addr(), err)
	}
	return nil
}

// checkFollowed succeeds when both sides say that all the replicas that run
// follow the master.
func checkFollowed(ctx context.Context, master *Server, replicas []*Server) error {
	running := slices.DeleteFunc(replicas, func(s *Server) bool { return !s.running() })
	for _, s := range append(running, master) {
		client := s.adminClient()
		err := checkReplication(ctx, client, len(running))
		client.Close()
		if err != nil {
			return fmt.Errorf("server at %s: %w", s.Addr(), err)
		}
	}
	return nil
}
