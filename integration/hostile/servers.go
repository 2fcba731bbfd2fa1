package main

import (
	"bufio"
	"context"
	"errors"
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

// servers are the Redis and the demo host, as processes of their own.
type servers struct {
	redis, host *exec.Cmd
	client      *redis.Client
	address     string // of the host
	folder      string
}

// patience is for what takes less than a second on a machine that is not busy.
const patience = 15 * time.Second

// startServers starts the demo host with flags on a Redis. Without a program it
// is built.
func startServers(ctx context.Context, program string, flags []string) (s *servers, err error) {
	s = new(servers)
	defer func() {
		if err != nil {
			s.stop()
		}
	}()
	if s.folder, err = os.MkdirTemp("", "hostile-*"); err != nil {
		return nil, err
	}
	if program == "" {
		program = filepath.Join(s.folder, "homeserver")
		build := exec.CommandContext(ctx, "go", "build", "-o", program, "github.com/pushfx/pushfx/integration/homeserver")
		if out, err := build.CombinedOutput(); err != nil {
			return nil, fmt.Errorf("go build: %w\n%s", err, out)
		}
	}
	if err := s.startRedis(ctx); err != nil {
		return nil, fmt.Errorf("cannot start a Redis: %w", err)
	}
	flags = append([]string{"-listen", "127.0.0.1:0", "-redis-mode", "standalone",
		"-redis", s.client.Options().Addr, "-log-level", "error"}, flags...)
	return s, s.startHost(program, flags)
}

// startRedis starts a server that saves nothing. Its program is the one that
// REDIS_SERVER names, as in the tests.
func (s *servers) startRedis(ctx context.Context) error {
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	address := free.Addr().String()
	_, port, _ := net.SplitHostPort(address)
	if err := free.Close(); err != nil {
		return err
	}
	program := os.Getenv("REDIS_SERVER")
	if program == "" {
		program = "redis-server"
	}
	redisServer := exec.Command(program, "--port", port, "--bind", "127.0.0.1", "--save", "", "--appendonly", "no")
	redisServer.Dir = s.folder
	if err := redisServer.Start(); err != nil {
		return err
	}
	s.redis = redisServer
	s.client = redis.NewClient(&redis.Options{Addr: address})
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for s.client.Ping(ctx).Err() != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		time.Sleep(20 * time.Millisecond)
	}
	return nil
}

// startHost starts the demo host and waits until it says where it listens.
func (s *servers) startHost(program string, flags []string) error {
	host := exec.Command(program, flags...)
	host.Stderr = os.Stderr
	greeting, err := host.StdoutPipe()
	if err != nil {
		return err
	}
	if err := host.Start(); err != nil {
		return err
	}
	s.host = host
	for lines := bufio.NewScanner(greeting); lines.Scan(); {
		if _, url, found := strings.Cut(lines.Text(), " listens on http://"); found {
			s.address = strings.TrimSpace(url)
			go io.Copy(io.Discard, greeting)
			return nil
		}
	}
	return errors.New("the demo host does not say where it listens")
}

// stop ends both processes and removes what they left.
func (s *servers) stop() {
	for _, process := range []*exec.Cmd{s.host, s.redis} {
		if process != nil {
			_ = process.Process.Signal(syscall.SIGTERM) // it may have ended
			end := time.AfterFunc(patience, func() { _ = process.Process.Kill() })
			_ = process.Wait()
			end.Stop()
		}
	}
	if s.client != nil {
		s.client.Close()
	}
	os.RemoveAll(s.folder)
}

// memory is the most that the servers had in RAM, in bytes.
type memory struct{ host, redis int64 }

const memoryInterval = 50 * time.Millisecond

// watchMemory looks at the servers' memory until ctx ends, and returns the
// maximum.
func (s *servers) watchMemory(ctx context.Context) (most memory) {
	ticker := time.NewTicker(memoryInterval)
	defer ticker.Stop()
	for {
		most.host = max(most.host, resident(s.host.Process.Pid))
		most.redis = max(most.redis, resident(s.redis.Process.Pid))
		select {
		case <-ctx.Done():
			return most
		case <-ticker.C:
		}
	}
}

// resident is what a process has in RAM, 0 where the system does not tell.
func resident(pid int) int64 {
	status, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	_, rest, _ := strings.Cut(string(status), "VmRSS:")
	number, _, _ := strings.Cut(strings.TrimSpace(rest), " ")
	kilobytes, _ := strconv.ParseInt(number, 10, 64)
	return kilobytes << 10
}
