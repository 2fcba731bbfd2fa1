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

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

const (
	localhost    = "127.0.0.1"
	startTimeout = 10 * time.Second
)

// Server is one server process, which may be stopped and started again.
//
// Its methods may be called from any goroutine while the test that started it
// runs. Stop, Start, Pause and Resume report problems as errors of that test,
// without ending it.
type Server struct {
	t        testing.TB
	binary   string
	dir      string
	port     int
	args     []string
	password string

	mu        sync.Mutex
	process   *process // the current run, or the last one
	held      []func() // let go of the ports while it is stopped
	following []string // arguments of the next run that make it a replica
	closed    bool     // the test is over
}

// Single starts one standalone server that saves nothing. The arguments are
// added to its command line, so they can change that: "--appendonly", "yes".
// With "--requirepass" among them, the clients log in, and so do replicas.
func Single(t testing.TB, args ...string) *Server {
	t.Helper()
	return mustLaunch(t, freePort, serverRole(args))
}

// Addr returns the host and port of the server, which never change.
func (s *Server) Addr() string {
	return localAddr(s.port)
}

// Pid returns the id of the server's process or, while the server is stopped,
// the id that its last process had.
func (s *Server) Pid() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.process.os.Pid
}

// running tells whether the server has a process, be it a paused one.
func (s *Server) running() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.process.alive()
}

// Stop kills the server, as a crash would, and waits until it is gone. It does
// nothing when the server is stopped already.
func (s *Server) Stop() {
	s.t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.process.alive() {
		return
	}
	if err := s.process.kill(); err != nil {
		s.t.Errorf("cannot stop the server at %s: %v", s.Addr(), err)
	}
	for _, port := range []int{s.port, s.port + busOffset} {
		s.held = append(s.held, holdPort(port))
	}
}

// letGo gives the ports of a stopped server free.
func (s *Server) letGo() {
	for _, letGo := range s.held {
		letGo()
	}
	s.held = nil
}

// Start starts the stopped server again, on the same port and in the same
// folder, and waits until it answers. It does nothing when the server runs, and
// nothing when the test that started it is over.
func (s *Server) Start() {
	s.t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || s.process.alive() {
		return
	}
	s.letGo()
	if err := s.restart(); err != nil {
		s.t.Errorf("cannot start the server again: %v", err)
	}
}

// Pause suspends the server: connections stay open and new ones are accepted by
// the kernel, but nothing is answered until Resume.
func (s *Server) Pause() {
	s.t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.process.pause(); err != nil {
		s.t.Errorf("cannot pause the server at %s: %v", s.Addr(), err)
	}
}

// Resume ends the suspension by Pause.
func (s *Server) Resume() {
	s.t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.process.resume(); err != nil {
		s.t.Errorf("cannot resume the server at %s: %v", s.Addr(), err)
	}
}

// Client returns a client for this server that obeys the deadline of a context.
// It is closed when the given test ends.
func (s *Server) Client(t testing.TB) *redis.Client {
	t.Helper()
	client := redis.NewClient(&redis.Options{
		Addr:                     s.Addr(),
		Password:                 s.password,
		ContextTimeoutEnabled:    true,
		MaintNotificationsConfig: noMaintenance(),
	})
	closeAfter(t, client)
	return client
}

// adminClient returns a client for asking the server: it fails at once.
func (s *Server) adminClient() *redis.Client {
	return redis.NewClient(&redis.Options{
		Addr:                     s.Addr(),
		Password:                 s.password,
		MaxRetries:               -1,
		DialerRetries:            1,
		ContextTimeoutEnabled:    true,
		MaintNotificationsConfig: noMaintenance(),
	})
}

func noMaintenance() *maintnotifications.Config {
	return &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
}

func closeAfter(t testing.TB, client redis.UniversalClient) {
	t.Cleanup(func() {
		if err := client.Close(); err != nil && !errors.Is(err, redis.ErrClosed) {
			t.Errorf("cannot close the Redis client: %v", err)
		}
	})
}

// close ends the server for good.
func (s *Server) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	s.letGo()
	if s.process == nil {
		return
	}
	if err := s.process.terminate(); err != nil {
		s.t.Errorf("cannot end the server at %s: %v", s.Addr(), err)
	}
}

// restart runs the server again, with some patience for a port that somebody
// holds for a moment.
func (s *Server) restart() error {
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	for {
		err := s.run()
		if !errors.Is(err, errPortTaken) || ctx.Err() != nil {
			return err
		}
		time.Sleep(pollInterval)
	}
}

// run starts a process and waits until it answers. An error shows the log.
func (s *Server) run() error {
	p, err := startProcess(s.binary, s.dir, slices.Concat(s.args, s.following))
	if err != nil {
		return err
	}
	s.process = p
	if err := s.waitReady(p); err != nil {
		return errors.Join(
			fmt.Errorf("server at %s: %w\n%s", s.Addr(), err, p.lastLog()),
			p.kill(),
		)
	}
	return nil
}

// waitReady waits until the process answers, or has ended, or takes too long.
func (s *Server) waitReady(p *process) error {
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	go func() {
		select {
		case <-p.done:
			cancel()
		case <-ctx.Done():
		}
	}()
	client := s.adminClient()
	defer client.Close()
	err := poll(ctx, func(ctx context.Context) error {
		return s.checkAnswer(ctx, client, p.os.Pid)
	})
	if err != nil && !p.alive() {
		return p.exitError()
	}
	if err != nil {
		return fmt.Errorf("no answer within %v: %w", startTimeout, err)
	}
	return nil
}

// checkAnswer succeeds when the process with this id answers to PING. It looks
// at the id because another server may have taken the port.
func (s *Server) checkAnswer(ctx context.Context, client *redis.Client, pid int) error {
	// The Redis client would write a log line for every failure to connect.
	if err := checkDial(ctx, s.Addr()); err != nil {
		return err
	}
	if err := client.Ping(ctx).Err(); err != nil {
		return err
	}
	info, err := readInfo(ctx, client, "server")
	if err != nil {
		return err
	}
	if got := info["process_id"]; got != strconv.Itoa(pid) {
		return fmt.Errorf("process %s answers in place of process %d", got, pid)
	}
	return nil
}
