package redistest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

const (
	localhost    = "127.0.0.1"
	startTimeout = 5 * time.Minute // for a start; a busy machine may take long
	pollInterval = 20 * time.Millisecond

	// These ports, and the cluster bus ports 10000 above them, are below the range for
	// outgoing connections, so no client connects to itself. While a server is stopped,
	// reserve keeps its port.
	firstPort    = 10000
	portCount    = 10000
	busOffset    = 10000
	portAttempts = 200
)

// Server is one server, which can be stopped and started again.
//
// Its methods are safe for concurrent use while its test runs. Stop, Start, Pause and
// Resume report failures with Errorf of that test.
type Server struct {
	t        testing.TB
	binary   string
	dir      string
	port     int
	args     []string
	password string

	mu      sync.Mutex
	process *process // the current run, or the last one
	closed  bool     // the test is over
}

// Single starts one server that saves no data. The arguments are added to its command
// line: "--appendonly", "yes" makes it save data; "--requirepass" makes clients and
// replicas log in.
func Single(t testing.TB, args ...string) *Server {
	t.Helper()
	return launch(t, dataArgs(args))
}

func dataArgs(extra []string) []string {
	args := []string{
		"--bind", localhost,
		"--daemonize", "no",
		"--save", "",
		"--appendonly", "no",
		// The master sends its data to a new replica at once, not after 5 s.
		"--repl-diskless-sync-delay", "0",
		// A master sends writes to a replica, and a cluster lists the replica, only
		// after the replica has acknowledged a ping. The default is a ping every 10 s.
		"--repl-ping-replica-period", "1",
	}
	if password := passwordOf(extra); password != "" {
		args = append(args, "--masterauth", password)
	}
	return append(args, extra...)
}

func passwordOf(args []string) (password string) {
	for i, arg := range args[:max(0, len(args)-1)] {
		if arg == "--requirepass" {
			password = args[i+1]
		}
	}
	return password
}

func launch(t testing.TB, args []string) *Server {
	t.Helper()
	s := &Server{t: t, binary: findBinary(t), dir: t.TempDir(), args: args, password: passwordOf(args)}
	t.Cleanup(s.close) // runs before the folder is removed
	s.mu.Lock()
	defer s.mu.Unlock()
	err := errPortTaken
	for attempt := 0; attempt < portAttempts && errors.Is(err, errPortTaken); attempt++ {
		s.port = freePort(t)
		err = s.run()
	}
	if err != nil {
		t.Fatalf("cannot start a server: %v", err)
	}
	return s
}

// freePort reserves a port that is free, and whose cluster bus port is free.
func freePort(t testing.TB) int {
	t.Helper()
	for range portAttempts {
		port := firstPort + rand.IntN(portCount)
		if reserve(t, port) && isFree(port) && isFree(port+busOffset) {
			return port
		}
	}
	t.Fatal("no port is free")
	return 0
}

// reserve reserves a port for this test until it ends, also while the server is
// stopped: tests in other processes choose from the same ports. The lock is the UDP
// port of the same number, which no server needs.
func reserve(t testing.TB, port int) bool {
	reserved, err := net.ListenPacket("udp4", localAddr(port))
	if err != nil {
		return false
	}
	t.Cleanup(func() { reserved.Close() })
	return true
}

func isFree(port int) bool {
	listener, err := net.Listen("tcp4", localAddr(port))
	return err == nil && listener.Close() == nil
}

func localAddr(port int) string { return net.JoinHostPort(localhost, strconv.Itoa(port)) }

// Addr returns the server's host and port, which a restart keeps.
func (s *Server) Addr() string { return localAddr(s.port) }

// running reports whether the process runs or is paused.
func (s *Server) running() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.process.alive()
}

// Stop kills the server, like a crash. It does nothing if the server is stopped.
func (s *Server) Stop() {
	s.t.Helper()
	s.do("stop", (*process).kill)
}

// Pause suspends the process: connections stay open and the kernel accepts new ones,
// but the server does not answer.
func (s *Server) Pause() {
	s.t.Helper()
	s.do("pause", (*process).pause)
}

// Resume continues a paused process.
func (s *Server) Resume() {
	s.t.Helper()
	s.do("resume", (*process).resume)
}

func (s *Server) do(what string, do func(*process) error) {
	s.t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := do(s.process); err != nil {
		s.t.Errorf("cannot %s the server at %s: %v", what, s.Addr(), err)
	}
}

// Start starts a stopped server again, with the same port and folder, and waits until
// it answers. It does nothing if the server runs, or its test has ended.
func (s *Server) Start() {
	s.t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || s.process.alive() {
		return
	}
	err := s.run()
	for end := time.Now().Add(startTimeout); errors.Is(err, errPortTaken) && time.Now().Before(end); err = s.run() {
		time.Sleep(pollInterval) // Another process may use the port for a moment.
	}
	if err != nil {
		s.t.Errorf("cannot start the server again: %v", err)
	}
}

func (s *Server) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	if s.process == nil {
		return
	}
	if err := s.process.kill(); err != nil {
		s.t.Errorf("cannot end the server at %s: %v", s.Addr(), err)
	}
}

func (s *Server) run() error {
	p, err := startProcess(s.binary, s.dir, append(slices.Clone(s.args), "--port", strconv.Itoa(s.port)))
	if err != nil {
		return err
	}
	s.process = p
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	client := s.adminClient()
	defer client.Close()
	err = poll(ctx, func(ctx context.Context) error {
		if !p.alive() {
			return nil
		}
		return s.checkAnswer(ctx, client)
	})
	if !p.alive() {
		err = p.exitError()
	}
	if err != nil {
		return errors.Join(fmt.Errorf("server at %s: %w\n%s", s.Addr(), err, p.lastLog()), p.kill())
	}
	return nil
}

// checkAnswer checks that the server answers. It compares the process id, because
// another server may use the port.
func (s *Server) checkAnswer(ctx context.Context, client *redis.Client) error {
	// Connecting first avoids a log line of the Redis client for each failed
	// connection.
	conn, err := net.DialTimeout("tcp4", s.Addr(), startTimeout)
	if err != nil {
		return err
	}
	conn.Close()
	info, err := readInfo(client.Info(ctx, "server"))
	if err == nil && info["process_id"] != strconv.Itoa(s.process.os.Pid) {
		err = fmt.Errorf("process %s answers instead of process %d", info["process_id"], s.process.os.Pid)
	}
	return err
}

// Client returns a client that obeys deadlines. It is closed when the test ends.
func (s *Server) Client(t testing.TB) *redis.Client {
	t.Helper()
	client := redis.NewClient(s.options())
	closeAfter(t, client)
	return client
}

func (s *Server) options() *redis.Options {
	return &redis.Options{
		Addr:                     s.Addr(),
		Password:                 s.password,
		ContextTimeoutEnabled:    true,
		MaintNotificationsConfig: noMaintenance(),
	}
}

func (s *Server) adminClient() *redis.Client {
	options := s.options()
	options.MaxRetries, options.DialerRetries = -1, 1
	return redis.NewClient(options)
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

// poll calls check until it succeeds, or returns check's last error when ctx has ended.
func poll(ctx context.Context, check func(context.Context) error) error {
	ticker := time.NewTicker(pollInterval)
	defer ticker.Stop()
	var last error
	for {
		err := check(ctx)
		if err == nil {
			return nil
		}
		if last == nil || ctx.Err() == nil {
			last = err
		}
		select {
		case <-ctx.Done():
			return last
		case <-ticker.C:
		}
	}
}

func readInfo(answer *redis.StringCmd) (map[string]string, error) {
	fields := map[string]string{}
	for line := range strings.Lines(answer.Val()) {
		if name, value, found := strings.Cut(strings.TrimSpace(line), ":"); found {
			fields[name] = value
		}
	}
	return fields, answer.Err()
}

func logs(servers []*Server) string {
	var text strings.Builder
	for _, s := range servers {
		s.mu.Lock()
		fmt.Fprintf(&text, "server at %s, %s\n", s.Addr(), s.process.lastLog())
		s.mu.Unlock()
	}
	return text.String()
}
