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
	startTimeout = 10 * time.Second
	pollInterval = 20 * time.Millisecond

	// The ports of the servers lie below the range from which operating systems
	// usually take the ports of outgoing connections, and so do the ports of the
	// cluster bus, 10000 above. Such a port is not taken by chance while its server
	// is stopped, nor can a client that dials it connect to itself.
	firstPort    = 10000
	portCount    = 10000
	busOffset    = 10000
	portAttempts = 200
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

	mu      sync.Mutex
	process *process // the current run, or the last one
	closed  bool     // the test is over
}

// Single starts one standalone server that saves nothing. The arguments are
// added to its command line, so they can change that: "--appendonly", "yes".
// With "--requirepass" among them, the clients log in, and so do replicas.
func Single(t testing.TB, args ...string) *Server {
	t.Helper()
	return launch(t, dataArgs(args))
}

// dataArgs is the command line of a server that holds data.
func dataArgs(extra []string) []string {
	args := []string{
		"--bind", localhost,
		"--daemonize", "no",
		"--save", "",
		"--appendonly", "no",
		// A replica is served at once, not after the usual 5 s.
		"--repl-diskless-sync-delay", "0",
		// A replica confirms something soon, be it nothing but this ping, which
		// is usual every 10 s. Before, it counts as new: its master holds writes
		// back, and a cluster does not name it to clients.
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

// launch starts a server in a new folder. Where another process takes the port
// before the server does, it tries the next one.
func launch(t testing.TB, args []string) *Server {
	t.Helper()
	s := &Server{t: t, binary: findBinary(t), dir: t.TempDir(), args: args, password: passwordOf(args)}
	t.Cleanup(s.close) // before that of the folder
	s.mu.Lock()
	defer s.mu.Unlock()
	err := errPortTaken
	for attempt := 0; attempt < portAttempts && errors.Is(err, errPortTaken); attempt++ {
		s.port = firstPort + rand.IntN(portCount)
		if isFree(s.port) && isFree(s.port+busOffset) {
			err = s.run()
		}
	}
	if err != nil {
		t.Fatalf("cannot start a server: %v", err)
	}
	return s
}

// isFree asks the kernel whether the port can be listened on.
func isFree(port int) bool {
	listener, err := net.Listen("tcp4", localAddr(port))
	return err == nil && listener.Close() == nil
}

func localAddr(port int) string { return net.JoinHostPort(localhost, strconv.Itoa(port)) }

// Addr returns the host and port of the server, which never change.
func (s *Server) Addr() string { return localAddr(s.port) }

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
	s.do("stop", (*process).kill)
}

// Pause suspends the server: connections stay open and new ones are accepted by
// the kernel, but nothing is answered until Resume.
func (s *Server) Pause() {
	s.t.Helper()
	s.do("pause", (*process).pause)
}

// Resume ends the suspension by Pause.
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
	err := s.run()
	for end := time.Now().Add(startTimeout); errors.Is(err, errPortTaken) && time.Now().Before(end); err = s.run() {
		time.Sleep(pollInterval) // Another process may hold the port for a moment.
	}
	if err != nil {
		s.t.Errorf("cannot start the server again: %v", err)
	}
}

// close ends the server for good.
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

// run starts a process and waits until it answers. An error shows the log.
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

// checkAnswer succeeds when the process answers. It looks at the process id
// because another server may have taken the port.
func (s *Server) checkAnswer(ctx context.Context, client *redis.Client) error {
	// The Redis client would write a log line for every failure to connect.
	conn, err := net.DialTimeout("tcp4", s.Addr(), startTimeout)
	if err != nil {
		return err
	}
	conn.Close()
	info, err := readInfo(client.Info(ctx, "server"))
	if err == nil && info["process_id"] != strconv.Itoa(s.process.os.Pid) {
		err = fmt.Errorf("process %s answers in place of process %d", info["process_id"], s.process.os.Pid)
	}
	return err
}

// Client returns a client for this server that obeys the deadline of a context.
// It is closed when the given test ends.
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

// adminClient returns a client for asking the server: it fails at once.
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

// poll calls check until it succeeds or the context ends, and then returns the
// last error that was not merely the end of the context.
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

// readInfo reads the "name:value" lines of INFO and CLUSTER INFO.
func readInfo(answer *redis.StringCmd) (map[string]string, error) {
	fields := map[string]string{}
	for line := range strings.Lines(answer.Val()) {
		if name, value, found := strings.Cut(strings.TrimSpace(line), ":"); found {
			fields[name] = value
		}
	}
	return fields, answer.Err()
}

// logs returns the last log lines of all the servers, for messages.
func logs(servers []*Server) string {
	var text strings.Builder
	for _, s := range servers {
		s.mu.Lock()
		fmt.Fprintf(&text, "server at %s, %s\n", s.Addr(), s.process.lastLog())
		s.mu.Unlock()
	}
	return text.String()
}
