package main

import (
	"bufio"
	"cmp"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"
)

// patience is the longest wait for the end of a process.
const patience = 15 * time.Second

// servers are a Redis that saves nothing, and the processes that use it.
type servers struct {
	redis   *redis.Client
	address string // of the Redis

	folder  string
	started []*process
}

type process struct {
	address string // where it listens
	cmd     *exec.Cmd
}

// startRedis starts the program in REDIS_SERVER, as the tests do. The caller closes the result even after an error.
func startRedis(ctx context.Context) (*servers, error) {
	s := new(servers)
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return s, err
	}
	s.address = free.Addr().String()
	free.Close()
	if s.folder, err = os.MkdirTemp("", "bench-*"); err != nil {
		return s, err
	}
	_, port, _ := net.SplitHostPort(s.address)
	cmd := exec.Command(cmp.Or(os.Getenv("REDIS_SERVER"), "redis-server"), "--port", port, "--bind", "127.0.0.1", "--save", "")
	cmd.Dir = s.folder
	if _, err := s.start(cmd, "eady to accept connections"); err != nil {
		return s, err
	}
	s.redis = redis.NewClient(&redis.Options{Addr: s.address, ContextTimeoutEnabled: true})
	return s, s.redis.Ping(ctx).Err()
}

// startDemo starts a demo host without rate limits on the Redis. It builds the host if program is empty.
func (s *servers) startDemo(ctx context.Context, program string) (*process, error) {
	if program == "" {
		const demo = "github.com/pushfx/pushfx/integration/homeserver"
		program = filepath.Join(s.folder, "homeserver")
		if out, err := exec.CommandContext(ctx, "go", "build", "-o", program, demo).CombinedOutput(); err != nil {
			return nil, fmt.Errorf("go build: %w\n%s", err, out)
		}
	}
	return s.start(exec.Command(program, "-listen", "127.0.0.1:0", "-redis-mode", "standalone", "-redis", s.address,
		"-data", filepath.Join(s.folder, "demo.db"), "-log-level", "error", "-user-rate", "0"), " listens on http://")
}

// self returns a command that runs this program with other arguments.
func self(args ...string) *exec.Cmd {
	program, _ := os.Executable() // without a name, the start fails
	return exec.Command(program, args...)
}

// start starts a process. If greeting is not empty, start waits until the process prints the greeting, followed by the
// address where it listens.
func (s *servers) start(cmd *exec.Cmd, greeting string) (*process, error) {
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	p := &process{cmd: cmd}
	s.started = append(s.started, p)
	for lines := bufio.NewScanner(out); greeting != "" && lines.Scan(); {
		if _, address, found := strings.Cut(lines.Text(), greeting); found {
			p.address = strings.TrimSpace(address)
			go io.Copy(io.Discard, out)
			return p, nil
		}
	}
	if greeting != "" {
		return nil, fmt.Errorf("%s has ended, or does not say that it listens", cmd.Path)
	}
	return p, nil
}

func (p *process) stop() {
	_ = p.cmd.Process.Signal(syscall.SIGTERM) // the process may have ended
	p.wait()
}

// wait waits until the process has ended, and returns its CPU time.
func (p *process) wait() time.Duration {
	if p.cmd.ProcessState == nil {
		end := time.AfterFunc(patience, func() { _ = p.cmd.Process.Kill() })
		defer end.Stop()
		_ = p.cmd.Wait()
	}
	return p.cmd.ProcessState.UserTime() + p.cmd.ProcessState.SystemTime()
}

// cpu returns the CPU time of a running process, to 10 ms, or 0 if the system does not report
// it.
func (p *process) cpu() time.Duration {
	stat, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.cmd.Process.Pid))
	_, rest, _ := strings.Cut(string(stat), ") ") // the name of the program may have spaces
	fields := strings.Fields(rest)
	if len(fields) < 13 {
		return 0
	}
	user, _ := strconv.ParseInt(fields[11], 10, 64)
	system, _ := strconv.ParseInt(fields[12], 10, 64)
	const tick = 10 * time.Millisecond // USER_HZ is 100 wherever Go runs
	return time.Duration(user+system) * tick
}

// redisCPUOf returns the CPU time of the Redis while do runs.
func (s *servers) redisCPUOf(ctx context.Context, do func() error) (spent time.Duration, err error) {
	before, err := s.redisCPU(ctx)
	if err == nil {
		err = do()
	}
	if err != nil {
		return 0, err
	}
	after, err := s.redisCPU(ctx)
	return after - before, err
}

func (s *servers) redisCPU(ctx context.Context) (sum time.Duration, err error) {
	info, err := s.redis.InfoMap(ctx, "cpu").Result()
	for _, name := range []string{"used_cpu_user", "used_cpu_sys"} {
		part, _ := time.ParseDuration(info["CPU"][name] + "s")
		sum += part
	}
	return sum, err
}

// close ends all processes and removes their files.
func (s *servers) close() {
	if s.redis != nil {
		s.redis.Close()
	}
	for _, p := range s.started {
		p.stop()
	}
	os.RemoveAll(s.folder)
}
